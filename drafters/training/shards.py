"""Token shards: a folder of image codes with their captions, which drafters are trained on.

about.json      what the codes are of: model and checkpoint (a fingerprint); rows and columns of
                the grid of codes; preview, those of the small grid before it, if there is one;
                vocab (codes are below it); width and height in pixels; origin:
                "images", or "own" for the target's own samples; law: the sampling settings of
                these, or null; settings: the flags that decide what the folder holds
tokens-<rank>-<number>.safetensors
                codes (images, tokens), int16 where all fit, else int32; the metadata entry
                `examples` is a JSON list of id, caption and seed. A shard is there as a whole or
                not at all
skipped.jsonl   id and reason of what was left out; of process N > 0: skipped.N.jsonl
"""

import hashlib
import json
import time
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import torch
from safetensors.torch import save
from torch import Tensor

from configs.fields import SettingsError, mismatch
from models.base import ImageGrid
from models.files.entries import is_size
from models.files.tensors import open_safetensors
from support.durable import append_lines, encode_json, files_named, replace_file
from support.json_files import parse_json, read_object, shortened
from support.json_lines import Line, mended_lines, read_lines
from support.locks import RANK, lock, refuse_others
from support.wording import differences, first_of

_SHARD, _SKIPPED = rf"tokens-{RANK}-[0-9]{{5}}\.safetensors", rf"skipped(\.{RANK})?\.jsonl"
_SECONDS = 300.0  # after which an unfinished shard is written, to be replaced by the whole one


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

    def __init__(self, about: Line, entries: Sequence[Line], rows: Sequence[tuple[Path, int]]):
        """about: of about.json; entries: id, caption, seed; rows: shard and row of each."""
        self.about, self._entries, self._rows = about, list(entries), list(rows)
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
        grid = grid_of(about)
        examples: dict[str, tuple[Line, tuple[Path, int]]] = {}
        for path in shard_paths(Path(folder)):
            entries, tokens = read_shard(path)
            if tokens != grid.tokens:
                size = f"{tokens} codes per image; about.json has {grid}"
                raise ValueError(f"{path}: {size}")
            for row, entry in enumerate(entries):
                id = entry["id"]
                if id in examples:
                    other = examples[id][1][0].name
                    raise ValueError(f"{path}: the id {id!r} is also in {other}")
                examples[id] = entry, (path, row)
        if not examples:
            raise ValueError(f"{folder}: found no tokens-*-*.safetensors")
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
            for name in ("model", "checkpoint", "rows", "columns", "preview", "vocab"):
                if (value := tokens.about.get(name)) != first.get(name):
                    other = f"that of {folders[0]} is {first.get(name)!r}"
                    raise ValueError(f"{folder}: its {name} is {value!r}; {other}")
        entries = [entry for tokens in parts for entry in tokens._entries]
        return cls(first, entries, [row for tokens in parts for row in tokens._rows])

    def __len__(self) -> int:
        return len(self.ids)

    def codes(self, indices: Sequence[int]) -> Tensor:
        """Return codes (len(indices), tokens), int64; a ValueError names a damaged shard.

        Every shard is opened once, whatever the order of the indices.
        """
        result = torch.empty((len(indices), grid_of(self.about).tokens), dtype=torch.int64)
        wanted: dict[Path, list[tuple[int, int]]] = defaultdict(list)
        for position, index in enumerate(indices):
            path, row = self._rows[index]
            wanted[path].append((position, row))
        for path, pairs in wanted.items():
            with open_safetensors(path) as shard:
                stored = shard.get_slice("codes")
                for position, row in pairs:
                    result[position] = stored[row]
            # a damaged shard may have a sound header, which is all that `read` has seen
            codes, vocab = result[[position for position, _ in pairs]], self.about["vocab"]
            if not 0 <= int(codes.min()) <= int(codes.max()) < vocab:
                span = f"codes from {codes.min()} to {codes.max()}; about.json has {vocab} codes"
                raise ValueError(f"{path}: damaged shard: {span}")
        return result

    @property
    def groups(self) -> list[str]:
        """What keeps images together: their captions, or their ids where all have one caption.

        Models that read no text have one.
        """
        return self.captions if len(set(self.captions)) > 1 else self.ids

    def split(self, holdout: int, most: int = 0) -> tuple[list[int], list[int]]:
        """Return the indices for training and at least `holdout` others, apart by caption.

        Captions are taken in the order of a hash, with all of their images: first those that are
        held out, then those for training. So a larger holdout contains a smaller one, and so do
        the first `most` images for training (0 = all). A ValueError if too few are left for it.
        """
        images: dict[str, list[int]] = defaultdict(list)
        for index, caption in enumerate(self.groups):
            images[caption].append(index)
        held: list[int] = []
        training: list[int] = []
        # Python's own hash differs from process to process
        for caption in sorted(images, key=lambda text: hashlib.sha256(text.encode()).digest()):
            (held if len(held) < holdout else training).extend(images[caption])
        if len(training) < max(most, 1):
            raise ValueError(
                f"found {len(self)} images; holding out {holdout} by caption leaves "
                f"{len(training) or 'none'} for training"
            )
        return sorted(training[: most or None]), sorted(held)

    def shared(self, images: Sequence[int], others: Sequence[int]) -> int:
        """Return how many captions of images are also those of others.

        Captions that differ only in case, spaces or the full stop count as one.
        """
        groups = self.groups
        captions, theirs = (
            {" ".join(groups[image].casefold().split()).rstrip(" .") for image in some}
            for some in (images, others)
        )
        return len(captions & theirs)


def shard_paths(folder: Path) -> list[Path]:
    """Return the shards in a folder, sorted by name."""
    return files_named(folder, _SHARD)


def skipped_paths(folder: Path) -> list[Path]:
    """Return the lists of what was left out, one per process."""
    return files_named(folder, _SKIPPED)


def read_skipped(folder: Path) -> list[Line]:
    """Return id and reason of what was left out, by all processes."""
    return [entry for path in skipped_paths(folder) for entry in read_lines(path)]


def read_about(folder: Path) -> Line:
    """Return about.json; a SettingsError if it is missing, damaged or lacks the codes' numbers."""
    path = folder / "about.json"
    if not path.exists():
        raise SettingsError(f"{folder}: found no about.json; `main.py extract_tokens` writes one")
    about = read_object(path)
    for name in ("rows", "columns", "vocab"):
        if not is_size(about.get(name)):
            got = shortened(about.get(name))
            raise mismatch(f"{path}: {name}", got, "a whole number above 0")
    preview = about.get("preview", [1, 1])
    if not (isinstance(preview, list) and len(preview) == 2 and all(map(is_size, preview))):
        raise mismatch(f"{path}: preview", shortened(preview), "two whole numbers above 0")
    if not isinstance(about.get("settings", {}), dict):
        raise mismatch(f"{path}: settings", shortened(about["settings"]), "a JSON object")
    return about


def grid_of(about: Line) -> ImageGrid:
    """Return the grid of an image's codes, without row ends."""
    preview = about.get("preview")
    return ImageGrid(about["rows"], about["columns"], preview=preview and tuple(preview))


def read_shard(path: Path) -> tuple[list[Line], int]:
    """Return id, caption and seed of a shard's images, and the codes per image; reads no codes."""
    try:
        with open_safetensors(path) as shard:
            entries = parse_json(shard.metadata()["examples"])
            codes = shard.get_slice("codes")
            images, tokens = codes.get_shape()
            if (dtype := codes.get_dtype()) not in ("I16", "I32"):
                raise ValueError(f"codes of type {dtype}, not I16 or I32")
        if not isinstance(entries, list) or not all(map(_is_entry, entries)):
            raise ValueError("examples without id, caption and seed")
        if images != len(entries):
            raise ValueError(f"{images} images with {len(entries)} captions")
    except (ValueError, KeyError, TypeError) as error:
        advice = "Delete it and run its extract_tokens command again"
        fault = str(error).removeprefix(f"{path}: ")
        raise ValueError(f"{path}: damaged shard: {fault}. {advice}") from error
    return entries, tokens


def _is_entry(entry: object) -> bool:
    if not isinstance(entry, dict) or not isinstance(entry.get("seed"), int | None):
        return False
    return isinstance(entry.get("id"), str) and isinstance(entry.get("caption"), str)


class ShardWriter:
    """Adds examples to a folder, `size` to a shard.

    A kill takes at most the examples of the last five minutes. `done`: the ids that the folder
    holds or has skipped, by all processes when it was opened, and those added since.

    Args:
        folder: made if it is not there.
        about: the content of about.json; the same at every opening.
        rank: this process's number. Every process writes its own files, and the first one opens
            the folder first.
        size: examples of a shard.

    Raises:
        ValueError: the folder holds tokens of another `about`, which names the entry; or a file in
            it is damaged.
        BlockingIOError: another command is at work in it.
    """

    def __init__(self, folder: str | Path, about: dict[str, Any], rank: int = 0, size: int = 256):
        self.folder, self.rank, self.size = Path(folder), rank, size
        self.folder.mkdir(parents=True, exist_ok=True)
        if rank == 0:
            refuse_others(self.folder)  # of a command whose first process is gone
        self._lock = lock(self.folder / f".lock.{rank}")
        try:
            # as it will come back from the file, tuples as lists, so that the two compare
            self._claim(json.loads(json.dumps(about)))
            mended_lines(self._skipped)
            self.done = self._known()
        # an interrupt must not leave the folder locked either
        except BaseException:
            self._lock.close()
            raise
        shards = files_named(self.folder, _SHARD)
        # codes are below vocab, so 2**15 of them still fit
        self._dtype = torch.int16 if about["vocab"] <= 2**15 else torch.int32
        # a new shard, also after an unfinished one, which stays as it is
        names = (path.stem.split("-") for path in shards)
        self._number = max((int(n) for _, of, n in names if int(of) == rank), default=-1) + 1
        self._examples: list[Example] = []
        self._written = time.monotonic()

    def _known(self) -> set[str]:
        """Return the ids in the folder's shards and lists of what was skipped."""
        entries = [entry for path in shard_paths(self.folder) for entry in read_shard(path)[0]]
        return {entry["id"] for entry in (*entries, *read_skipped(self.folder))}

    def _claim(self, about: dict[str, Any]) -> None:
        """Write about.json into a new folder; refuse one with tokens of other settings."""
        path = self.folder / "about.json"
        there = read_about(self.folder) if path.exists() else None  # another program's stays
        if not (shard_paths(self.folder) or skipped_paths(self.folder)):
            replace_file(path, encode_json(about, indent=2))
            return
        if there is None:
            got = "tokens without about.json"
            raise mismatch(str(self.folder), got, "an empty folder or one of this command")
        # settings first, which a user can change; other entries only where no setting differs
        settings = (one.get("settings", {}) for one in (there, about))
        changed = differences(*settings) or differences(there, about, "")
        if changed:
            got = f"those with other settings: {first_of(changed)}"
            advice = "Use the same settings or another folder."
            raise mismatch(str(self.folder), got, "tokens with the same settings", advice)

    def add(self, example: Example) -> None:
        """Keep an example; a ValueError for an id that is done already."""
        if example.id in self.done:
            raise ValueError(f"{self.folder}: the id {example.id!r} is there already")
        self.done.add(example.id)
        self._examples.append(example)
        whole = len(self._examples) == self.size
        if whole or time.monotonic() - self._written >= _SECONDS:
            self._write()
        if whole:
            self._number += 1
            self._examples = []

    def skip(self, id: str, reason: str) -> None:
        """Note that an example was left out, and why."""
        append_lines(self._skipped, [{"id": id, "reason": reason}])
        self.done.add(id)

    @property
    def _skipped(self) -> Path:
        name = "skipped.jsonl" if self.rank == 0 else f"skipped.{self.rank}.jsonl"
        return self.folder / name

    def close(self) -> None:
        """Write the unfinished shard."""
        try:
            if self._examples:
                self._write()
        finally:
            self._lock.close()

    def _write(self) -> None:
        entries = [
            {"id": example.id, "caption": example.caption, "seed": example.seed}
            for example in self._examples
        ]
        codes = torch.stack([example.codes.to(self._dtype) for example in self._examples])
        content = save({"codes": codes}, {"examples": json.dumps(entries, ensure_ascii=False)})
        replace_file(self.folder / f"tokens-{self.rank}-{self._number:05d}.safetensors", content)
        self._written = time.monotonic()
