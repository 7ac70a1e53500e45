"""Figures of a run: metrics.jsonl while it goes on, summary.json at its end. Only rank 0 writes."""

from __future__ import annotations

import json
import os
import resource
import time
from typing import Any

from sequifier_ray import storage


class MetricsFile:
    """``logs/<model>/metrics.jsonl``: one JSON object a line.

    A fresh run moves an earlier file to ``metrics-previous.jsonl``. A resumed one drops the lines of
    updates that it will do again.
    """

    def __init__(self, folder: str, resumed_at: int | None) -> None:
        storage.make_folder(folder)
        self._path = os.path.join(folder, "metrics.jsonl")
        if resumed_at is None and os.path.exists(self._path):
            os.replace(self._path, os.path.join(folder, "metrics-previous.jsonl"))
        elif resumed_at is not None and os.path.exists(self._path):
            storage.write_atomic(self._path, "".join(_lines_until(self._path, resumed_at)))
        self._file = open(self._path, "a", encoding="utf-8")  # noqa: SIM115 - closed by close()

    def write(self, kind: str, **values: Any) -> None:
        """Append one line; readers see it at once."""
        self._file.write(json.dumps({"kind": kind, **values}) + "\n")
        self._file.flush()

    def close(self) -> None:
        self._file.close()


def _lines_until(path: str, update: int) -> list[str]:
    kept = []
    with open(path, encoding="utf-8") as lines:
        for line in lines:
            # A killed run may have left half a line.
            if line.endswith("\n") and json.loads(line)["step"] <= update:
                kept.append(line)
    return kept


class Throughput:
    """Samples per second of training alone: the clock stands still while validation and saves run."""

    def __init__(self) -> None:
        self.n_samples = 0
        self.seconds = 0.0
        self._interval_samples = 0
        self._interval_seconds = 0.0
        self._started_s: float | None = None

    def start(self) -> None:
        self._started_s = time.perf_counter()

    def pause(self) -> None:
        if self._started_s is not None:
            self._interval_seconds += time.perf_counter() - self._started_s
            self._started_s = None

    def add(self, n_samples: int) -> None:
        self._interval_samples += n_samples

    def interval_rate(self) -> float:
        """Samples per second since the last call; starts a new interval."""
        running = self._started_s is not None
        self.pause()
        rate = self._interval_samples / max(self._interval_seconds, 1e-9)
        self.n_samples += self._interval_samples
        self.seconds += self._interval_seconds
        self._interval_samples, self._interval_seconds = 0, 0.0
        if running:
            self.start()
        return rate

    def forget(self) -> None:
        """Start counting anew: the first update's warm-up is no throughput."""
        self.interval_rate()
        self.n_samples, self.seconds = 0, 0.0

    def rate(self) -> float | None:
        """Samples per second over everything counted; None if nothing was."""
        return self.n_samples / self.seconds if self.seconds > 0 and self.n_samples else None


def peak_rss_bytes() -> int:
    """The largest resident memory this process has had."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
