"""The target models of configs/targets.py, each with the family that opens its files."""

from pathlib import Path

from models.base import TargetOptions
from models.codecs.codec import Codec
from models.files.folders import checkpoint_folder
from models.files.recognition import refuse_other_model
from models.target import TargetModel
from models.targets.chameleon import Chameleon, LuminaMgpt, LuminaMgpt2
from models.targets.emu3 import Emu3, Emu35
from models.targets.family import Family
from models.targets.glm_image import GlmImage
from models.targets.janus import JanusPro
from models.targets.liquid import Liquid
from models.targets.llamagen import LlamaGen

FAMILIES: dict[str, Family] = {
    "tiny": Chameleon(),
    "anole": Chameleon(),
    "lumina_mgpt": LuminaMgpt(),
    "lumina_mgpt2": LuminaMgpt2(),
    "llamagen": LlamaGen(side=16),
    "llamagen2": LlamaGen(side=32),
    "janus_pro": JanusPro(),
    "emu3": Emu3(),
    "emu3_5": Emu35(),
    "liquid": Liquid(),
    "glm_image": GlmImage(),
}


def load_target(name: str, path: str, options: TargetOptions) -> TargetModel:
    """Load the target `name` from a folder or hub id."""
    return FAMILIES[name].load(_folder_of(name, path), options)


def load_codec(name: str, path: str, options: TargetOptions) -> Codec:
    """Load the codec of the target `name` from a folder or hub id, without its transformer."""
    return FAMILIES[name].codec(_folder_of(name, path), options)


def _folder_of(name: str, path: str) -> Path:
    """Return the folder of a target's files; ValueError if they are another model's."""
    folder = checkpoint_folder(path, "--model_path")
    refuse_other_model(name, path, folder)
    return folder
