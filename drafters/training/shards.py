"""A folder of image codes with their captions: what a drafter is trained on.

about.json      what the codes are: model and checkpoint (a fingerprint); rows, columns (of the grid of codes) and vocab
                (codes below it); width, height (pixels); origin: "images", or "own" for the target's own samples; law:
                the sampling law of these, or null; settings: the flags that decide what the folder holds
tokens-<rank>-<number>.safetensors   codes int32 (images, tokens); the metadata entry `examples` is a JSON list of id,
                caption and seed. Written in one step, so a file is there as a whole or not at all
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
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from support.durable import append_lines, lock, replace_file
from support.json_files import read_lines

_SHARDS = "tokens-*-*.safetensors"
_SECONDS = 300.0  # after which an unfinished shard is written, to be replaced by the whole one


@dataclass(frozen=True)
class Example:
    """One image: codes (tokens,) int32 from 0, in raster order, without row ends; seed: of the target's own samples."""

    id: str
    caption: str
    codes: Tensor
    seed: int | None = None


class ShardWriter:
    """Adds examples to a folder, `size` to a shard; a kill takes those of the last five minutes in an unfinished shard.

    `done`: ids that are there, or were skipped, when the folder was opened, by all processes, and those added since.

    Args:
        folder: made if it is not there.
        about: the content of about.json; the same at every opening.
        rank: this process's number; every process writes files of its own, and the first one opens the folder first.
        size: examples of a shard.

    Raises:
        ValueError: the folder holds tokens of another `about`, which names the entry; or a file in it is damaged.
        BlockingIOError: another command is at work in it.
    """

    def __init__(self, folder: str | Path, about: dict[str, Any], rank: int = 0, size: int = 256):
        self.folder, self.rank, self.size = Path(folder), rank, size
        self.folder.mkdir(parents=True, exist_ok=True)
        for left in (
            self.folder.glob(".lock.*") if rank == 0 else ()
        ):  # of a command whose first process is gone
            lock(left).close()
        self._lock = lock(self.folder / f".lock.{rank}")
        try:
            self._claim(json.loads(json.dumps(about)))
            self.done = {
                entry["id"] for path in shard_paths(self.folder) for entry in _read_shard(path)[0]
            }
            self.done |= {
                line["id"]
                for path in self.folder.glob("skipped*.jsonl")
                for line in read_lines(path)
            }
        except BaseException:
            self._lock.close()
            raise
        numbers = [
            int(path.stem.split("-")[2])
            for path in self.folder.glob(f"tokens-{rank}-*.safetensors")
        ]
        self._number = max(numbers, default=-1) + 1
        self._examples: list[Example] = []
        self._written = time.monotonic()

    def _claim(self, about: dict[str, Any]) -> None:
        path, begun = (
            self.folder / "about.json",
            shard_paths(self.folder) or any(self.folder.glob("skipped*.jsonl")),
        )
        if begun and not path.exists():
            raise ValueError(
                f"{self.folder}: found tokens but no about.json; allowed: another folder"
            )
        if not begun:
            replace_file(path, (json.dumps(about, indent=2, ensure_ascii=False) + "\n").encode())
        before, now = _by_flag(_read_about(self.folder)), _by_flag(about)
        changed = [name for name in now | before if before.get(name) != now.get(name)]
        if changed := [name for name in changed if name.startswith("--")] or changed:
            words = ", ".join(
                f"{name} {before.get(name)!r} (now {now.get(name)!r})" for name in changed
            )
            raise ValueError(
                f"{self.folder}: found tokens with {words}; allowed: the same, or another folder"
            )

    def add(self, example: Example) -> None:
        """Keep an example; a ValueError for an id that is there."""
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
        name = "skipped.jsonl" if self.rank == 0 else f"skipped.{self.rank}.jsonl"
        append_lines(self.folder / name, [{"id": id, "reason": reason}])
        self.done.add(id)

    def close(self) -> None:
        """Write the unfinished shard."""
        try:
            if self._examples:
                self._write()
        finally:
            self._lock.close()

    def _write(self) -> None:
        entries = [
            {"id": each.id, "caption": each.caption, "seed": each.seed} for each in self._examples
        ]
        codes = torch.stack(
            [each.codes.to(torch.int32) for each in self._examples]
        )  # (images, tokens)
        content = save({"codes": codes}, {"examples": json.dumps(entries, ensure_ascii=False)})
        replace_file(self.folder / f"tokens-{self.rank}-{self._number:05d}.safetensors", content)
        self._written = time.monotonic()


class Tokens:
    """All examples of a folder in the order of their ids, whatever number of processes wrote them.

    Captions and ids are in memory, codes are read when they are asked for.
    """

    def __init__(
        self,
        about: dict[str, Any],
        entries: Sequence[dict[str, Any]],
        places: Sequence[tuple[Path, int]],
    ):
        """entries: id, caption, seed; places: shard and row of each."""
        self.about, self._entries, self._places = about, list(entries), list(places)
        self.ids: list[str] = [entry["id"] for entry in entries]
        self.captions: list[str] = [entry["caption"] for entry in entries]
        self.seeds: list[int | None] = [entry["seed"] for entry in entries]

    @classmethod
    def read(cls, folder: str | Path) -> Self:
        """The tokens in a folder.

        Raises:
            ValueError: naming the file that is missing, damaged or of another size than about.json says, or the id that
                stands in two shards.
        """
        about = _read_about(Path(folder))
        found: dict[str, tuple[dict[str, Any], tuple[Path, int]]] = {}
        for path in shard_paths(Path(folder)):
            entries, tokens = _read_shard(path)
            if tokens != about["rows"] * about["columns"]:
                raise ValueError(f"{path}: {tokens} codes per image; about.json has {about['rows']} x "
                                 f"{about['columns']}")  # fmt: skip
            for row, entry in enumerate(entries):
                if entry["id"] in found:
                    other = found[entry["id"]][1][0].name
                    raise ValueError(f"{path}: the id {entry['id']!r} stands in {other}, too")
                found[entry["id"]] = entry, (path, row)
        if not found:
            raise ValueError(f"{folder}: found no {_SHARDS}")
        ordered = [found[name] for name in sorted(found)]
        return cls(about, *zip(*ordered, strict=True))

    @classmethod
    def joined(cls, folders: Sequence[str | Path]) -> Self:
        """The tokens of several folders, one folder behind the other; with the first one's `about`.

        Raises:
            ValueError: as `read`, or a folder's codes are of another model, checkpoint, grid or codebook.
        """
        parts = [cls.read(folder) for folder in folders]
        first = parts[0].about
        for folder, part in zip(folders, parts, strict=True):
            for name in ("model", "checkpoint", "rows", "columns", "vocab"):
                if (found := part.about.get(name)) != first.get(name):
                    raise ValueError(
                        f"{folder}: its {name} is {found!r}; that of {folders[0]} is {first.get(name)!r}"
                    )
        entries = [entry for part in parts for entry in part._entries]
        return cls(first, entries, [place for part in parts for place in part._places])

    def __len__(self) -> int:
        return len(self.ids)

    def codes(self, indices: Sequence[int]) -> Tensor:
        """Codes (len(indices), tokens), int64; every shard is opened once. A ValueError names a damaged shard."""
        result = torch.empty(
            (len(indices), self.about["rows"] * self.about["columns"]), dtype=torch.int64
        )
        wanted: dict[Path, list[tuple[int, int]]] = defaultdict(list)
        for place, index in enumerate(indices):
            path, row = self._places[index]
            wanted[path].append((place, row))
        for path, pairs in wanted.items():
            try:
                with safe_open(path, framework="pt") as shard:
                    part = shard.get_slice("codes")
                    for place, row in pairs:
                        result[place] = part[row]
            except (SafetensorError, OSError) as error:
                raise ValueError(f"{path}: damaged shard: {error}") from error
            own = result[[place for place, _ in pairs]]
            if not 0 <= int(own.min()) <= int(own.max()) < self.about["vocab"]:
                found = f"codes from {int(own.min())} to {int(own.max())}"
                raise ValueError(
                    f"{path}: damaged shard: {found}; about.json has {self.about['vocab']} codes"
                )
        return result

    def split(self, holdout: int) -> tuple[list[int], list[int]]:
        """Indices for training and the held-out ones: all images of the first captions by a hash, until there are
        `holdout` of them. A ValueError if that leaves none for training."""
        images: dict[str, list[int]] = defaultdict(list)
        for index, caption in enumerate(self.captions):
            images[caption].append(index)
        held: list[int] = []
        for caption in sorted(images, key=lambda text: hashlib.sha256(text.encode()).digest()):
            if len(held) >= holdout:
                break
            held += images.pop(caption)
        if not images:
            raise ValueError(
                f"found {len(self)} images; holding out {holdout} by caption leaves none for training"
            )
        return sorted(index for own in images.values() for index in own), sorted(held)


def shard_paths(folder: Path) -> list[Path]:
    """The shards in a folder, in the order of their names."""
    return sorted(folder.glob(_SHARDS))


def _read_about(folder: Path) -> dict[str, Any]:
    path = folder / "about.json"
    try:
        return dict(json.loads(path.read_text("utf-8")))
    except FileNotFoundError as error:
        raise ValueError(
            f"{folder}: found no about.json; `main.py extract_tokens` writes one"
        ) from error
    except (ValueError, TypeError) as error:
        raise ValueError(f"{path}: cannot be read: {error}") from error


def _read_shard(path: Path) -> tuple[list[dict[str, Any]], int]:
    """Id, caption and seed of a shard's images, and the number of codes of each; the codes are not read."""
    try:
        with safe_open(path, framework="pt") as shard:
            entries = json.loads(shard.metadata()["examples"])
            images, tokens = shard.get_slice("codes").get_shape()
    except (SafetensorError, OSError, ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{path}: damaged shard: {error}") from error
    if images != len(entries):
        raise ValueError(f"{path}: damaged shard: {images} images with {len(entries)} captions")
    return entries, tokens


def _by_flag(about: dict[str, Any]) -> dict[str, Any]:
    """The entries, the settings by their flags."""
    settings = {f"--{name}": value for name, value in about.get("settings", {}).items()}
    return {name: value for name, value in about.items() if name != "settings"} | settings
