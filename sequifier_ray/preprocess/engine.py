"""Where the passes run: in threads of this process, or wherever another engine sends them."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Protocol, TypeVar

from sequifier_ray.preprocess.job import Job
from sequifier_ray.preprocess.spill import Spilled, spill_task

Shared = TypeVar("Shared")
Item = TypeVar("Item")
Result = TypeVar("Result")
# Each of them holds a partition in memory, and polars and arrow use all cores in each.
MOST_THREADS = 4


class Engine(Protocol):
    """Runs kernels: functions of what all share and of one item, which write files of their own only."""

    def map(
        self, kernel: Callable[[Shared, Item], Result], shared: Shared, items: Sequence[Item]
    ) -> Iterator[Result]:
        """The results in the order of the items."""

    def spill(self, job: Job) -> Iterator[Spilled]:
        """Bring the rows of all tasks to their partitions."""


class LocalEngine:
    """Threads of this process; `n_cores` of them, four at most. An error stops what has not begun."""

    def __init__(self, n_cores: int | None = None) -> None:
        self._n_threads = min(n_cores or os.cpu_count() or 1, MOST_THREADS)

    def map(
        self, kernel: Callable[[Shared, Item], Result], shared: Shared, items: Sequence[Item]
    ) -> Iterator[Result]:
        """The results in the order of the items."""
        waiting = iter(items)
        with ThreadPoolExecutor(self._n_threads) as pool:
            running: list[Future[Result]] = []
            try:
                # A few ahead of the slowest: results that wait are held in memory.
                for item in waiting:
                    running.append(pool.submit(kernel, shared, item))
                    if len(running) > 2 * self._n_threads:
                        yield running.pop(0).result()
                while running:
                    yield running.pop(0).result()
            finally:
                for future in running:
                    future.cancel()

    def spill(self, job: Job) -> Iterator[Spilled]:
        """Bring the rows of all tasks to their partitions."""
        return self.map(spill_task, job, job.tasks)
