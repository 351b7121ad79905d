"""From a target's name to what its family opens."""

from configs.rules import loaded
from configs.targets import TARGETS
from models.base import TargetOptions
from models.codecs.codec import Codec
from models.files.folders import open_folder
from models.target import TargetModel
from models.targets.family import Family


def family_of(name: str) -> Family:
    """Return the family that opens the files of the target `name`."""
    return loaded(TARGETS[name].family)()


def load_target(name: str, path: str, options: TargetOptions) -> TargetModel:
    """Load the target `name` from a folder or hub id."""
    return family_of(name).load(open_folder("model_path", path, name).path, options)


def load_codec(name: str, path: str, options: TargetOptions) -> Codec:
    """Load the codec of the target `name` from a folder or hub id, without its transformer."""
    return family_of(name).codec(open_folder("model_path", path, name).path, options)
