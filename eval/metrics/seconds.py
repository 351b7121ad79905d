"""How long metrics take: measured by every evaluation, and said before the next one starts."""

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from eval.metrics.store import FeatureStore
from support.durable import encode_json, reason, replace_file
from support.json_files import read_object
from support.output import remark
from support.progress import announce, duration


class MetricSeconds:
    """Seconds per image of every metric on a device, in a file beside the features."""

    def __init__(self, store: FeatureStore, device: str, images: int):
        """Read what earlier evaluations took. images: how many a metric looks at."""
        self.store, self.images = store, images
        self.path = store.folder / f"seconds_{device}.json"
        self.known: dict[str, float] = read_object(self.path) if self.path.is_file() else {}

    def forecast(self, names: Sequence[str]) -> str:
        """Return how long metrics take if no features are stored, by earlier evaluations."""
        seconds = {name: self.images * self.known[name] for name in names if name in self.known}
        words = [f"{name} {duration(each)}" for name, each in seconds.items()]
        words += [f"{name} not timed here yet" for name in names if name not in seconds]
        total = f", {duration(sum(seconds.values()))} in all" if len(seconds) > 1 else ""
        return f"metrics of {self.images:,} images take at most: {', '.join(words)}{total}"

    @contextmanager
    def timing(self, name: str) -> Iterator[None]:
        """Say what a metric took, and keep the seconds per image whose features were computed."""
        start, before = time.perf_counter(), self.store.computed
        yield
        seconds, new = time.perf_counter() - start, self.store.computed - before
        announce(f"{name} took {duration(seconds)}, with new features of {new:,} images")
        if new or name not in self.known:
            self.known[name] = seconds / max(new or self.images, 1)
            try:
                self.path.parent.mkdir(parents=True, exist_ok=True)
                replace_file(self.path, encode_json(self.known))
            except OSError as error:
                remark(f"--cache_dir {self.store.folder}: not kept: {reason(error)}")
