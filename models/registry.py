"""From a target's name to what its family opens."""

from pathlib import Path

from configs.rules import loaded
from configs.targets import TARGETS
from models.base import TargetOptions
from models.codecs.codec import Codec
from models.files.folders import checkpoint_folder
from models.files.recognition import refuse_other_model
from models.target import TargetModel
from models.targets.family import Family


def family_of(name: str) -> Family:
    """Return the family that opens the files of the target `name`."""
    return loaded(TARGETS[name].family)()


def load_target(name: str, path: str, options: TargetOptions) -> TargetModel:
    """Load the target `name` from a folder or hub id."""
    return family_of(name).load(_folder_of(name, path), options)


def load_codec(name: str, path: str, options: TargetOptions) -> Codec:
    """Load the codec of the target `name` from a folder or hub id, without its transformer."""
    return family_of(name).codec(_folder_of(name, path), options)


def _folder_of(name: str, path: str) -> Path:
    """Return the folder of a target's files; ValueError if they are another model's."""
    folder = checkpoint_folder(path, "--model_path")
    refuse_other_model(name, path, folder)
    return folder
