"""The target models of configs/targets.py: what opens each, and what is known of its files."""

from collections.abc import Callable
from functools import partial
from pathlib import Path

from models.base import TargetModel, TargetOptions
from models.codecs.codec import Codec
from models.files.folders import checkpoint_folder
from models.files.recognition import refuse_other_model
from models.targets.chameleon import Chameleon
from models.targets.chameleon_files import CHAMELEON, LUMINA_MGPT
from models.targets.emu3 import Emu3
from models.targets.emu3_files import EMU3
from models.targets.family import Family
from models.targets.janus import JanusPro
from models.targets.janus_files import JANUS_PRO
from models.targets.liquid import Liquid
from models.targets.liquid_files import LIQUID
from models.targets.llamagen import LlamaGen
from models.targets.llamagen_files import llamagen_family
from models.targets.lumina_mgpt import LuminaMgpt

TARGETS: dict[str, Callable[[Path, TargetOptions], TargetModel]] = {
    "tiny": Chameleon.load,
    "anole": Chameleon.load,
    "lumina_mgpt": LuminaMgpt.load,
    "llamagen": partial(LlamaGen.load, side=16),
    "llamagen2": partial(LlamaGen.load, side=32),
    "janus_pro": JanusPro.load,
    "emu3": Emu3.load,
    "liquid": Liquid.load,
}
FAMILIES: dict[str, Family] = {
    "tiny": CHAMELEON,
    "anole": CHAMELEON,
    "lumina_mgpt": LUMINA_MGPT,
    "llamagen": llamagen_family(side=16),
    "llamagen2": llamagen_family(side=32),
    "janus_pro": JANUS_PRO,
    "emu3": EMU3,
    "liquid": LIQUID,
}


def load_target(name: str, path: str, options: TargetOptions) -> TargetModel:
    """Load the target `name` from a folder or hub id; ValueError lists the names if unknown."""
    if name not in TARGETS:
        raise ValueError(f"--model: {name!r} is unknown; allowed: {', '.join(TARGETS)}")
    return TARGETS[name](_folder_of(name, path), options)


def load_codec(name: str, path: str, options: TargetOptions) -> Codec:
    """Load the codec of the target `name` from a folder or hub id, without its transformer."""
    return FAMILIES[name].codec(_folder_of(name, path), options)


def _folder_of(name: str, path: str) -> Path:
    """Return the folder of a target's files; ValueError if they are another model's."""
    folder = checkpoint_folder(path, "--model_path")
    refuse_other_model(name, path, folder)
    return folder
