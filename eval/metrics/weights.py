"""Libraries and weights that metrics need and users may not have."""

import importlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType

from torch import Tensor

from configs.downloads import damage
from configs.evaluation import SOURCES
from eval.metrics.base import Unavailable
from models.files.folders import LOCAL
from models.files.identity import checkpoint_id
from models.files.tensors import load_pickled

_OPEN_CLIP_FILES = ["open_clip_config.json", "open_clip_model.safetensors"]


def library(module: str, package: str) -> ModuleType:
    """Import an optional library; Unavailable with the command that installs it."""
    try:
        return importlib.import_module(module)
    except (ImportError, RuntimeError) as error:  # the second where it was built for another torch
        how = f"pip install -r requirements.txt ({error})"
        raise Unavailable(f"{package} cannot be imported: {how}") from error


def find_weights(flag: str, path: str) -> Path:
    """Return the file or folder that a flag gave; Unavailable says where users get it.

    On the hub it is owner/name, in open_clip's layout, or owner/name/file.
    """
    if Path(path).exists():
        return Path(path)
    if "/" not in path or path.startswith(("/", ".", "~")) or Path(path.split("/")[0]).exists():
        raise Unavailable(f"--{flag} {path}: no such file or folder; {SOURCES[flag]}")
    if LOCAL.get():  # what the hub has is known once it has delivered it
        return Path(path)
    import huggingface_hub
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError

    owner, name, *rest = path.split("/")
    files = ["/".join(rest)] if rest else _OPEN_CLIP_FILES
    try:
        paths = [Path(huggingface_hub.hf_hub_download(f"{owner}/{name}", file)) for file in files]
    except (HfHubHTTPError, HFValidationError, OSError) as error:  # offline, or not there
        why = f"not here, and the hub did not deliver it: {error}"
        raise Unavailable(f"--{flag} {path}: {why}") from error
    return paths[0] if rest else paths[0].parent


def read_state(file: Path) -> dict[str, Tensor]:
    """Return the tensors of a file of torch.save by key, without running code in it."""
    try:
        state = load_pickled(file)
    except ValueError as error:
        raise ValueError(f"cannot be read as weights: {error}") from error
    if isinstance(state, dict) and all(isinstance(value, Tensor) for value in state.values()):
        return state
    raise ValueError("found no tensors by name")


@contextmanager
def fitting(flag: str, file: Path, fault: str) -> Iterator[None]:
    """Let a reader's complaint about weights say which flag gave them and where users get them."""
    try:
        yield
    except Unavailable:
        raise
    except Exception as error:  # libraries also assert what they expect of weights
        why = f"{fault}: {damage(file, error)}; {SOURCES[flag]}"
        raise Unavailable(f"--{flag} {file}: {why}") from error


def weights_label(file: Path) -> str:
    """Return the name of a weights file with a hash of its content."""
    return f"{file.name} [{checkpoint_id(file)}]"
