"""Folders of checkpoints: given ones, or snapshots from the Hugging Face hub."""

from pathlib import Path

from configs.targets import TARGETS, inner_folder

_OTHERS = ("*.h5", "*.msgpack", "*.onnx")  # the same weights for other programs
_PART = Path(TARGETS["glm_image"].folder).name  # what is read of its whole repository


def checkpoint_folder(path: str, flag: str, download: bool = True) -> Path:
    """Return the local folder of a checkpoint: `path` itself, or the snapshot of a hub id.

    Of GLM-Image's whole repository it is the part that is read. flag: that named it, for errors.
    download: whether a snapshot may be fetched; it never is with HF_HUB_OFFLINE. ValueError if path
    is neither, or a snapshot is not here and cannot be fetched.
    """
    folder = Path(path)
    if folder.is_dir():
        return inner_folder(folder, _PART)
    if path.count("/") != 1 or path.startswith((".", "/", "~")) or folder.exists():
        raise ValueError(f"{flag}: {path!r} is neither a folder nor a hub id like 'owner/name'")
    # imported here, since a local folder does without it
    from huggingface_hub import constants, snapshot_download
    from huggingface_hub.errors import LocalEntryNotFoundError

    offline = constants.HF_HUB_OFFLINE
    local = offline or not download
    try:
        root = Path(snapshot_download(path, local_files_only=local, ignore_patterns=_OTHERS))
        return inner_folder(root, _PART)
    except LocalEntryNotFoundError as error:
        if offline:
            why = f"HF_HUB_OFFLINE is set: `hf download {path}` where it is not"
        elif not download:
            why = f"`hf download {path}` fetches it"
        else:
            why = (
                f"the hub did not deliver it: {error}. Download it on a machine that reaches the "
                f"hub, with `hf download {path} --local-dir FOLDER`, and give the folder to {flag}"
            )
        absence = f"{path!r} is no folder here and not in the hub's cache {constants.HF_HUB_CACHE}"
        raise ValueError(f"{flag}: {absence}; {why}") from error
    except Exception as error:  # the hub's, and those of the libraries that transfer the files
        raise ValueError(
            f"{flag}: {path!r} is no folder here, and the hub did not deliver it: {error}"
        ) from error
