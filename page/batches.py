"""Requests that wait for images, and the thread that generates them in batches.

The page's images are not queued here: `Weights` lets the rounds of both take turns.
"""

import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from dataclasses import dataclass, field
from math import ceil
from queue import Full

from adt_tree.weights import Weights
from configs.model import EngineSettings
from decoding.engine import StepStats
from decoding.images import Job
from runs.drawing import Drawn

UNMEASURED = 60  # seconds to wait where no image has been finished
GATHER = 0.05  # seconds that the first request waits, so that those sent with it share its batch


# eq=False: compared by identity, because two equal requests are two orders.
@dataclass(frozen=True, eq=False)
class Order:
    """Images that a request asks for, and the future that they are put in."""

    settings: EngineSettings
    jobs: Sequence[Job]  # with ids that no other order has
    images: Future[list[Drawn]] = field(default_factory=Future)  # cancelled: nobody waits any more


@dataclass
class Counts:
    """What the queue has generated since the server started."""

    images: int = 0
    rounds: int = 0  # of all images
    tokens: int = 0  # decided in these rounds
    seconds: float = 0.0  # of generating

    def add(self, step: StepStats[Drawn], seconds: float) -> None:
        self.seconds += seconds
        self.images += len(step.finished)
        self.rounds += len(step.rounds)
        self.tokens += sum(stats.accepted + 1 for stats in step.rounds)


class Stopping(Exception):
    """Why an order gets no images: the server is being stopped."""


class ImageQueue:
    """Generates the images of orders; orders with the same settings share batches."""

    def __init__(self, weights: Weights, most: int):
        self.counts = Counts()
        self._weights, self._most = weights, most
        self._waiting: list[Order] = []
        self._batch: list[Order] = []  # whose images are being generated
        self._stopping = False
        self._changed = threading.Condition()
        threading.Thread(target=self._work, name="image queue", daemon=True).start()

    @property
    def waiting(self) -> int:
        """Orders of which no image has been begun."""
        with self._changed:
            self._forget_cancelled()
            return len(self._waiting)

    @property
    def pause(self) -> int:
        """Seconds until a request that found no room may come again: those of an image so far."""
        images, seconds = self.counts.images, self.counts.seconds
        return max(1, ceil(seconds / images)) if images else UNMEASURED

    def put(self, order: Order) -> None:
        """Queue an order; queue.Full if too many wait already, Stopping after `stop`."""
        with self._changed:
            if self._stopping:
                raise Stopping
            self._forget_cancelled()
            if len(self._waiting) >= self._most:
                raise Full
            self._waiting.append(order)
            self._changed.notify()

    def stop(self) -> int:
        """Refuse all orders, those being generated too; returns how many there were."""
        with self._changed:
            orders = [order for order in (*self._batch, *self._waiting) if not order.images.done()]
            self._waiting, self._stopping = [], True
        _refuse(orders, Stopping())
        return len(orders)

    def _work(self) -> None:
        while True:
            batch = self._take()
            try:
                self._generate(batch)
            except Exception as error:  # those who wait are told
                _refuse(batch, error)
            with self._changed:
                self._batch = []

    def _take(self) -> list[Order]:
        """Wait for orders, and take out those of the next batch."""
        with self._changed:
            self._changed.wait_for(lambda: self._waiting)
        # Without the lock, so that `put` can add to the batch.
        time.sleep(GATHER)
        with self._changed:
            self._forget_cancelled()
            batch = next_batch(self._waiting)
            self._waiting = [order for order in self._waiting if order not in batch]
            self._batch = batch
        return batch

    def _forget_cancelled(self) -> None:
        self._waiting = [order for order in self._waiting if not order.images.cancelled()]

    def _generate(self, batch: list[Order]) -> None:
        """Generate until every order has its images or is cancelled; others may join the batch."""
        # All were cancelled during the wait.
        if not batch:
            return
        settings, jobs = batch[0].settings, [job for order in batch for job in order.jobs]
        # into fewer rows nobody is let: the next batch has more of them
        joining = self._joining(batch) if len(jobs) >= settings.batch_size else ()
        done: dict[Job, Drawn] = {}
        started = time.perf_counter()
        for step in self._weights.draw(settings, jobs, joining=joining):
            now = time.perf_counter()
            self.counts.add(step, now - started)
            started = now
            done |= {drawn.image.job: drawn for drawn in step.finished}
            for order in batch:
                if not order.images.done() and all(job in done for job in order.jobs):
                    with suppress(InvalidStateError):  # cancelled just now
                        order.images.set_result([done[job] for job in order.jobs])
            batch[:] = [order for order in batch if not order.images.done()]
            if not batch:
                return
            wanted = {job for order in batch for job in order.jobs}
            done = {job: drawn for job, drawn in done.items() if job in wanted}

    def _joining(self, batch: list[Order]) -> Iterator[Job | None]:
        """Yield the jobs of orders that join a running batch; None while there are none.

        The first order that waits joins if it has the batch's settings; none overtakes it.
        """
        settings = batch[0].settings
        while True:
            with self._changed:
                self._forget_cancelled()
                order = next(iter(self._waiting), None)
                if order is not None and order.settings == settings:
                    batch.append(self._waiting.pop(0))
                else:
                    order = None
            yield from (None,) if order is None else order.jobs


def _refuse(orders: Sequence[Order], error: Exception) -> None:
    for order in orders:
        with suppress(InvalidStateError):  # cancelled or finished
            order.images.set_exception(error)


def next_batch(waiting: Sequence[Order]) -> list[Order]:
    """Return the first order, and the later ones with its settings that fit into its batch."""
    if not waiting:
        return []
    first, *later = waiting
    batch, room = [first], first.settings.batch_size - len(first.jobs)
    # Small orders may overtake large ones, but the first is always taken: none waits for ever.
    for order in later:
        if order.settings == first.settings and len(order.jobs) <= room:
            batch.append(order)
            room -= len(order.jobs)
    return batch
