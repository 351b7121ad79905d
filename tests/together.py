"""Threads that stand in for processes."""

import threading

from support.processes import Processes


class Together:
    """Stand-ins for processes: threads that wait for each other."""

    def __init__(self, count: int):
        self.count, self.values = count, [None] * count
        self.barrier = threading.Barrier(count, timeout=60)

    def run(self, work) -> list[BaseException | None]:
        """Call work(processes) in every thread; returns what each raised.

        A thread that fails lets the others go on.
        """
        faults: list[BaseException | None] = [None] * self.count

        def one(rank: int) -> None:
            try:
                work(Processes(rank, self.count, gather=lambda value: self._gather(rank, value)))
            except BaseException as error:
                faults[rank] = error
                self.barrier.abort()

        threads = [threading.Thread(target=one, args=(rank,)) for rank in range(self.count)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return faults

    def _gather(self, rank: int, value: object) -> list[object]:
        self.values[rank] = value
        self.barrier.wait()
        values = list(self.values)
        self.barrier.wait()
        return values
