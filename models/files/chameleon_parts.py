"""Where the tokenizers of a Chameleon checkpoint lie; free of slow imports, for the command line.

Meta's text_tokenizer.json, vqgan.yaml and the VQGAN's weights are looked for in --tokenizer_path
(itself, its `tokenizer`, its `chameleon/tokenizer`) or, without that flag, in the checkpoint's
`tokenizer`, then in `chameleon/tokenizer` next to the checkpoint. Where the VQGAN is in none of
them, the checkpoint's own weights `model.vqmodel.*` take its place if they hold a decoder; their
sizes are `vq_config` in config.json. Where the text tokenizer is not, the checkpoint's
tokenizer.json does. For a hub id, --tokenizer_path is by default `chameleon/tokenizer` in `ckpts`,
where that exists (configs/targets.py).
"""

from pathlib import Path

from configs.targets import CHAMELEON_TOKENIZER, META_FILES
from models.files.tensors import read_header
from models.files.weights import (
    BUNDLED_VQGAN,
    HUB_TOKENIZER,
    TEXT_TOKENIZER,
    VQGAN_CONFIG,
    VQGAN_WEIGHTS,
    all_of,
    listed_files,
    placed_keys,
)


def tokenizer_places(folder: Path, given: Path | None) -> list[Path]:
    """Return the folders in which a checkpoint's tokenizers are looked for, in this order."""
    if given is None:
        return [folder / "tokenizer", folder.absolute().parent / CHAMELEON_TOKENIZER]
    folders = [given, given / "tokenizer", given / CHAMELEON_TOKENIZER]
    if not any(
        (candidate / TEXT_TOKENIZER).is_file() or not missing_vqgan(candidate)
        for candidate in folders
    ):
        raise _missing(f"{TEXT_TOKENIZER} and no {VQGAN_CONFIG} with weights", folders)
    return folders


def find_tokenizer(folder: Path, given: Path | None = None) -> tuple[Path, Path | None]:
    """Return what `find_text` and `find_vqgan` do; ValueError names all that is missing."""
    text, vqgan = all_of(lambda: find_text(folder, given), lambda: find_vqgan(folder, given))
    return text, vqgan


def find_text(folder: Path, given: Path | None = None) -> Path:
    """Return the text tokenizer's file of a Chameleon checkpoint; given: --tokenizer_path."""
    folders = tokenizer_places(folder, given)
    for path in (*(candidate / TEXT_TOKENIZER for candidate in folders), folder / HUB_TOKENIZER):
        if path.is_file():
            return path
    raise _missing(TEXT_TOKENIZER, folders, f"{HUB_TOKENIZER} in {folder}")


def find_vqgan(folder: Path, given: Path | None = None) -> Path | None:
    """Return the folder of a checkpoint's VQGAN, None if the checkpoint's own weights hold it."""
    folders = tokenizer_places(folder, given)
    home = next((candidate for candidate in folders if not missing_vqgan(candidate)), None)
    if home is None and f"{BUNDLED_VQGAN}decoder.conv_out.weight" not in stored_names(folder):
        # a folder that has one of the two files is the one that the user meant
        begun = next(
            (candidate for candidate in folders if (candidate / VQGAN_CONFIG).is_file()), folders[0]
        )
        names = " and no ".join(missing_vqgan(begun))
        raise _missing(names, folders, f"{BUNDLED_VQGAN}decoder.* in the weights")
    return home


def _missing(names: str, places: list[Path], instead: str = "") -> ValueError:
    where = " or ".join(map(str, places)) + (f", and no {instead}" if instead else "")
    source = f"move {META_FILES}, to {places[-1]}, or name it by --tokenizer_path"
    return ValueError(f"found no {names} in {where}; {source}")


def missing_vqgan(folder: Path) -> list[str]:
    """Return which of the VQGAN's two files a folder lacks."""
    missing = [] if (folder / VQGAN_CONFIG).is_file() else [VQGAN_CONFIG]
    weights = any((folder / name).is_file() for name in VQGAN_WEIGHTS)
    return missing if weights else [*missing, " or ".join(VQGAN_WEIGHTS)]


def stored_names(folder: Path) -> set[str]:
    """Return the keys of a checkpoint; none of files that are damaged, which reading them tells."""
    try:
        return set(placed_keys(folder) or read_header(listed_files(folder)[0]))
    except ValueError:
        return set()
