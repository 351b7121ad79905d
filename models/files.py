"""Where the files of a checkpoint lie, and where users get them; free of slow imports, for the command line too.

Chameleon family: Meta's text_tokenizer.json, vqgan.yaml and the VQGAN's weights are looked for in --tokenizer_path
(itself, its `tokenizer`, its `chameleon/tokenizer`) or, without that flag, in the checkpoint's folder `tokenizer`, then
in `chameleon/tokenizer` beside the checkpoint. Where the VQGAN is in none of them, the weights `model.vqmodel.*` of the
checkpoint itself take its place if they hold a decoder, sized by `vq_config` in config.json; where the text tokenizer is
not, the checkpoint's tokenizer.json.
"""

import json
from collections.abc import Callable, Collection
from dataclasses import dataclass
from pathlib import Path

from models.headers import read_header

WEIGHT_FILES = ("model.safetensors", "pytorch_model.bin")
WEIGHT_INDEXES = tuple(f"{name}.index.json" for name in WEIGHT_FILES)
TEXT_TOKENIZER, HUB_TOKENIZER = "text_tokenizer.json", "tokenizer.json"
VQGAN_CONFIG, VQGAN_WEIGHTS = "vqgan.yaml", ("vqgan.safetensors", "vqgan.ckpt")
BUNDLED_VQGAN = "model.vqmodel."
META_FILES = (
    "the folder `tokenizer` of Meta's Chameleon download (github.com/facebookresearch/chameleon) or "
    "`original_tokenizers` of Alpha-VLLM/Chameleon_7B_mGPT on the Hugging Face hub"
)


@dataclass(frozen=True)
class TokenizerFiles:
    """The text tokenizer's file and the VQGAN's folder; vqgan is None where the checkpoint's own weights hold it."""

    text: Path
    vqgan: Path | None


def tokenizer_places(folder: Path, given: Path | None) -> list[Path]:
    """The folders in which a Chameleon checkpoint's tokenizer is looked for, in this order."""
    if given is not None:
        return [given, given / "tokenizer", given / "chameleon" / "tokenizer"]
    return [folder / "tokenizer", folder.parent / "chameleon" / "tokenizer"]


def find_tokenizer(folder: Path, given: Path | None = None) -> TokenizerFiles:
    """The tokenizer files of a Chameleon checkpoint.

    Args:
        folder: the checkpoint's.
        given: --tokenizer_path.

    Raises:
        ValueError: naming each missing file, the places where it was looked for and where it comes from.
    """
    places = tokenizer_places(folder, given)
    texts = [*(place / TEXT_TOKENIZER for place in places), folder / HUB_TOKENIZER]
    text = next((path for path in texts if path.is_file()), None)
    faults = [] if text else [f"{TEXT_TOKENIZER} (nor {HUB_TOKENIZER} in {folder})"]
    home = next((place for place in places if not missing_vqgan(place)), None)
    if home is None and not has_decoder(stored_names(folder)):
        begun = next((place for place in places if (place / VQGAN_CONFIG).is_file()), places[0])
        faults += [f"{name} (nor {BUNDLED_VQGAN}decoder.* in the checkpoint)" for name in missing_vqgan(begun)]
    if faults:
        where = " or ".join(map(str, places))
        raise ValueError(f"found no {' and no '.join(faults)} in {where}; --tokenizer_path names another; "
                         f"the files come from {META_FILES}")  # fmt: skip
    return TokenizerFiles(text, home)


def missing_vqgan(folder: Path) -> list[str]:
    """Which of the VQGAN's two files a folder lacks."""
    missing = [] if (folder / VQGAN_CONFIG).is_file() else [VQGAN_CONFIG]
    weights = any((folder / name).is_file() for name in VQGAN_WEIGHTS)
    return missing if weights else [*missing, " or ".join(VQGAN_WEIGHTS)]


def has_decoder(names: Collection[str]) -> bool:
    """Whether a checkpoint with these keys brings a VQGAN that can decode."""
    return f"{BUNDLED_VQGAN}decoder.conv_out.weight" in names


def stored_names(folder: Path) -> set[str]:
    """The keys of a checkpoint, from its index or a single safetensors file; none where these cannot be read."""
    for index in WEIGHT_INDEXES:
        if (folder / index).is_file():
            try:
                return set(json.loads((folder / index).read_text(encoding="utf-8"))["weight_map"])
            except (ValueError, KeyError, TypeError):
                return set()
    try:
        return set(read_header(folder / WEIGHT_FILES[0]))
    except ValueError:
        return set()


# What a target's folder needs besides config.json and weights: raises ValueError where something is missing.
NEEDED: dict[str, Callable[[Path, Path | None], TokenizerFiles]] = {"tiny": find_tokenizer, "anole": find_tokenizer}
