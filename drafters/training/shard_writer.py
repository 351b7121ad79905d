"""Writing token shards, a few examples at a time, by one process or several."""

import json
import time
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save

from drafters.training.shards import Example, read_about, read_shard, shard_paths
from support.durable import append_lines, encode_json, lock, replace_file
from support.json_files import read_lines

_SECONDS = 300.0  # after which an unfinished shard is written, to be replaced by the whole one


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
        if rank == 0:  # locks of a command whose first process is gone
            for left in self.folder.glob(".lock.*"):
                lock(left).close()
        self._lock = lock(self.folder / f".lock.{rank}")
        try:
            # as it will come back from the file, tuples as lists, so that the two compare
            self._claim(json.loads(json.dumps(about)))
            self.done = self._known()
        # an interrupt, too, must not leave the folder locked
        except BaseException:
            self._lock.close()
            raise
        shards = self.folder.glob(f"tokens-{rank}-*.safetensors")
        self._dtype = torch.int16 if about["vocab"] <= 2**15 else torch.int32
        # a new shard, also after an unfinished one, which stays as it is
        self._number = max((int(path.stem.split("-")[2]) for path in shards), default=-1) + 1
        self._examples: list[Example] = []
        self._written = time.monotonic()

    def _known(self) -> set[str]:
        """Return the ids in the folder's shards and lists of what was skipped."""
        skipped = [entry for path in self._skipped() for entry in read_lines(path)]
        entries = [entry for path in shard_paths(self.folder) for entry in read_shard(path)[0]]
        return {entry["id"] for entry in (*entries, *skipped)}

    def _skipped(self) -> list[Path]:
        return sorted(self.folder.glob("skipped*.jsonl"))

    def _claim(self, about: dict[str, Any]) -> None:
        """Write about.json into a new folder; refuse one with tokens of other settings."""
        path = self.folder / "about.json"
        begun = bool(shard_paths(self.folder) or self._skipped())
        if begun and not path.exists():
            fault = "found tokens but no about.json"
            raise ValueError(f"{self.folder}: {fault}; allowed: another folder")
        if path.exists():
            read_about(self.folder)  # raises for another program's file, which stays
        if not begun:
            replace_file(path, encode_json(about, indent=2))
        before, now = _by_flag(read_about(self.folder)), _by_flag(about)
        changed = [name for name in now | before if before.get(name) != now.get(name)]
        # flags first, which a user can change; other entries only where no flag differs
        changed = [name for name in changed if name.startswith("--")] or changed
        if changed:
            words = [f"{name} {before.get(name)!r} (now {now.get(name)!r})" for name in changed]
            fault = f"found tokens with {', '.join(words)}"
            raise ValueError(f"{self.folder}: {fault}; allowed: the same, or another folder")

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
        examples = self._examples
        entries = [
            {"id": example.id, "caption": example.caption, "seed": example.seed}
            for example in examples
        ]
        rows = [example.codes.to(self._dtype) for example in examples]
        codes = torch.stack(rows)  # (images, tokens)
        content = save({"codes": codes}, {"examples": json.dumps(entries, ensure_ascii=False)})
        replace_file(self.folder / f"tokens-{self.rank}-{self._number:05d}.safetensors", content)
        self._written = time.monotonic()


def _by_flag(about: dict[str, Any]) -> dict[str, Any]:
    """Return the entries of about.json, the settings among them by their flags."""
    settings = {f"--{name}": value for name, value in about.get("settings", {}).items()}
    return {name: value for name, value in about.items() if name != "settings"} | settings
