"""Requests that wait for images, and the thread that generates them in batches.

The page's images are not queued here: `Weights` lets the rounds of both take turns.
"""

import threading
import time
from collections.abc import Sequence
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from dataclasses import dataclass, field
from queue import Full

from adt_tree.weights import Weights
from configs.model import EngineSettings
from decoding.images import Job
from runs.drawing import Drawn

GATHER = 0.05  # seconds that the first request waits, so that those sent with it share its batch


# eq=False: compared by identity, because two equal requests are two orders.
@dataclass(frozen=True, eq=False)
class Order:
    """Images that a request asks for, and the future that they are put in."""

    settings: EngineSettings
    jobs: Sequence[Job]
    images: Future[list[Drawn]] = field(default_factory=Future)  # cancelled: nobody waits any more


class ImageQueue:
    """Generates the images of orders; orders with the same settings share batches."""

    def __init__(self, weights: Weights, most: int):
        self._weights, self._most = weights, most
        self._waiting: list[Order] = []
        self._changed = threading.Condition()
        threading.Thread(target=self._work, name="image queue", daemon=True).start()

    def put(self, order: Order) -> None:
        """Queue an order; queue.Full if too many wait already."""
        with self._changed:
            self._forget_cancelled()
            if len(self._waiting) >= self._most:
                raise Full
            self._waiting.append(order)
            self._changed.notify()

    def _work(self) -> None:
        while True:
            batch = self._take()
            try:
                self._generate(batch)
            except Exception as error:  # those who wait are told
                for order in batch:
                    with suppress(InvalidStateError):
                        order.images.set_exception(error)

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
        return batch

    def _forget_cancelled(self) -> None:
        self._waiting = [order for order in self._waiting if not order.images.cancelled()]

    def _generate(self, batch: Sequence[Order]) -> None:
        """Generate until every order has its images or is cancelled."""
        # All were cancelled during the wait.
        if not batch:
            return
        jobs = [job for order in batch for job in order.jobs]
        done: dict[Job, Drawn] = {}  # equal jobs of two orders have equal images
        for step in self._weights.draw(batch[0].settings, jobs):
            done |= {drawn.image.job: drawn for drawn in step.finished}
            for order in batch:
                if not order.images.done() and all(job in done for job in order.jobs):
                    with suppress(InvalidStateError):  # cancelled just now
                        order.images.set_result([done[job] for job in order.jobs])
            if all(order.images.done() for order in batch):
                return


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
