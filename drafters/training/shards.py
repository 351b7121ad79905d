"""Token shards: a folder of image codes with their captions, which drafters are trained on.

about.json      what the codes are of: model and checkpoint (a fingerprint); rows and columns of
                the grid of codes; vocab (codes are below it); width and height in pixels; origin:
                "images", or "own" for the target's own samples; law: the sampling settings of
                these, or null; settings: the flags that decide what the folder holds
tokens-<rank>-<number>.safetensors
                codes (images, tokens), int16 where all fit, else int32; the metadata entry
                `examples` is a JSON list of id, caption and seed. A shard is there as a whole or
                not at all
skipped.jsonl   id and reason of what was left out; of process N > 0: skipped.N.jsonl
"""

import hashlib
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import torch
from torch import Tensor

from configs.fields import SettingsError
from models.files.opening import open_safetensors
from support.json_files import Line, parse_json, read_object, shortened

SHARDS = "tokens-*-*.safetensors"


@dataclass(frozen=True)
class Example:
    """One image.

    codes: (tokens,) integers in raster order, row ends left out. seed: of the target's own samples.
    """

    id: str
    caption: str
    codes: Tensor
    seed: int | None = None


class Tokens:
    """All examples of a folder, sorted by id, whatever number of processes wrote them.

    Ids and captions are in memory; codes are read when they are asked for.
    """

    def __init__(self, about: Line, entries: Sequence[Line], places: Sequence[tuple[Path, int]]):
        """about: of about.json; entries: id, caption, seed; places: shard and row of each."""
        self.about, self._entries, self._places = about, list(entries), list(places)
        self.ids: list[str] = [entry["id"] for entry in entries]
        self.captions: list[str] = [entry["caption"] for entry in entries]
        self.seeds: list[int | None] = [entry.get("seed") for entry in entries]

    @classmethod
    def read(cls, folder: str | Path) -> Self:
        """Return the tokens of a folder.

        Raises:
            ValueError: a file is missing, damaged or of another size than about.json says, or two
                shards hold the same id; names the file.
        """
        about = read_about(Path(folder))
        rows, columns = about["rows"], about["columns"]
        examples: dict[str, tuple[Line, tuple[Path, int]]] = {}
        for path in shard_paths(Path(folder)):
            entries, tokens = read_shard(path)
            if tokens != rows * columns:
                size = f"{tokens} codes per image; about.json has {rows} x {columns}"
                raise ValueError(f"{path}: {size}")
            for row, entry in enumerate(entries):
                if entry["id"] in examples:
                    other = examples[entry["id"]][1][0].name
                    raise ValueError(f"{path}: the id {entry['id']!r} stands in {other}, too")
                examples[entry["id"]] = entry, (path, row)
        if not examples:
            raise ValueError(f"{folder}: found no {SHARDS}")
        # by id, so that indices do not depend on which process wrote an image
        ordered = [examples[name] for name in sorted(examples)]
        return cls(about, *zip(*ordered, strict=True))

    @classmethod
    def joined(cls, folders: Sequence[str | Path]) -> Self:
        """Return the tokens of several folders, one after the other, with the first one's `about`.

        Raises:
            ValueError: as `read`; or a folder's codes are of another model, checkpoint, grid of
                tokens or codebook.
        """
        parts = [cls.read(folder) for folder in folders]
        first = parts[0].about
        for folder, tokens in zip(folders, parts, strict=True):
            for name in ("model", "checkpoint", "rows", "columns", "vocab"):
                if (value := tokens.about.get(name)) != first.get(name):
                    other = f"that of {folders[0]} is {first.get(name)!r}"
                    raise ValueError(f"{folder}: its {name} is {value!r}; {other}")
        entries = [entry for tokens in parts for entry in tokens._entries]
        return cls(first, entries, [address for tokens in parts for address in tokens._places])

    def __len__(self) -> int:
        return len(self.ids)

    def codes(self, indices: Sequence[int]) -> Tensor:
        """Return codes (len(indices), tokens), int64; a ValueError names a damaged shard.

        Every shard is opened once, whatever the order of the indices.
        """
        tokens = self.about["rows"] * self.about["columns"]
        result = torch.empty((len(indices), tokens), dtype=torch.int64)
        wanted: dict[Path, list[tuple[int, int]]] = defaultdict(list)
        for position, index in enumerate(indices):
            path, row = self._places[index]
            wanted[path].append((position, row))
        for path, pairs in wanted.items():
            with open_safetensors(path) as shard:
                stored = shard.get_slice("codes")
                for position, row in pairs:
                    result[position] = stored[row]
            # a damaged shard may have a sound header, which is all that `read` has seen
            self._check(path, result[[position for position, _ in pairs]])
        return result

    def _check(self, path: Path, codes: Tensor) -> None:
        """Refuse codes that the codebook does not have."""
        least, most, vocab = int(codes.min()), int(codes.max()), self.about["vocab"]
        if not 0 <= least <= most < vocab:
            fault = f"codes from {least} to {most}; about.json has {vocab} codes"
            raise ValueError(f"{path}: damaged shard: {fault}")

    def split(self, holdout: int, most: int = 0) -> tuple[list[int], list[int]]:
        """Return the indices for training and at least `holdout` others, apart by caption.

        Captions are taken in the order of a hash, with all of their images: first those that are
        held out, then those for training. So a larger holdout contains a smaller one, and so do
        the first `most` images for training (0 = all). A ValueError if too few are left for it.
        """
        images: dict[str, list[int]] = defaultdict(list)
        for index, caption in enumerate(self.captions):
            images[caption].append(index)
        held: list[int] = []
        training: list[int] = []
        for caption in sorted(images, key=lambda text: hashlib.sha256(text.encode()).digest()):
            (held if len(held) < holdout else training).extend(images[caption])
        if len(training) < max(most, 1):
            fault = f"found {len(self)} images; holding out {holdout} by caption"
            raise ValueError(f"{fault} leaves {len(training) or 'none'} for training")
        return sorted(training[: most or None]), sorted(held)


def shard_paths(folder: Path) -> list[Path]:
    """Return the shards in a folder, sorted by name."""
    return sorted(folder.glob(SHARDS))


def read_about(folder: Path) -> Line:
    """Return about.json; a SettingsError if it is missing, damaged or lacks the codes' numbers."""
    path = folder / "about.json"
    if not path.exists():
        raise SettingsError(f"{folder}: found no about.json; `main.py extract_tokens` writes one")
    about = read_object(path)
    for name in ("rows", "columns", "vocab"):
        if type(about.get(name)) is not int or about[name] < 1:
            fault = f"found {name} {shortened(about.get(name))}"
            raise SettingsError(f"{path}: {fault}; allowed: a whole number above 0")
    if not isinstance(about.get("settings", {}), dict):
        fault = f"found settings {shortened(about['settings'])}"
        raise SettingsError(f"{path}: {fault}; allowed: a JSON object")
    return about


def read_shard(path: Path) -> tuple[list[Line], int]:
    """Return id, caption and seed of a shard's images, and the codes per image; reads no codes."""
    try:
        with open_safetensors(path) as shard:
            entries = parse_json(shard.metadata()["examples"])
            codes = shard.get_slice("codes")
            images, tokens = codes.get_shape()
            dtype = codes.get_dtype()
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{path}: damaged shard: {error}") from error
    if dtype not in ("I16", "I32"):
        raise ValueError(f"{path}: damaged shard: codes of type {dtype}, not I16 or I32")
    if not isinstance(entries, list) or not all(map(_is_entry, entries)):
        raise ValueError(f"{path}: damaged shard: examples without id, caption and seed")
    if images != len(entries):
        raise ValueError(f"{path}: damaged shard: {images} images with {len(entries)} captions")
    return entries, tokens


def _is_entry(entry: object) -> bool:
    if not isinstance(entry, dict) or not isinstance(entry.get("seed"), int | None):
        return False
    return isinstance(entry.get("id"), str) and isinstance(entry.get("caption"), str)
