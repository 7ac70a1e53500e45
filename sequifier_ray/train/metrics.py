"""Figures of a run: metrics.jsonl while it goes on, summary.json at its end. Only rank 0 writes."""

from __future__ import annotations

import json
import resource
import tempfile
import time
from typing import IO, Any

from sequifier_ray import storage


class MetricsFile:
    """``logs/<model>/metrics.jsonl``: one JSON object a line; in an object store as of the last checkpoint.

    A fresh run moves an earlier file to ``metrics-previous.jsonl``. A resumed one drops the lines of
    updates that it will do again.
    """

    def __init__(self, folder: str, resumed_at: int | None) -> None:
        self._path = storage.join(folder, "metrics.jsonl")
        storage.delete_partial(folder, "metrics")
        earlier = storage.read_text(self._path) if storage.exists(self._path) else ""
        if resumed_at is None and earlier:
            storage.write_atomic(storage.join(folder, "metrics-previous.jsonl"), earlier)
        kept = "" if resumed_at is None else "".join(_lines_until(earlier, resumed_at))
        storage.write_atomic(self._path, kept)
        self._file: IO[str]
        if storage.is_local(self._path):
            self._file = open(self._path, "a", encoding="utf-8")  # noqa: SIM115 - closed by close()
        else:
            self._file = tempfile.TemporaryFile("w+", encoding="utf-8")  # noqa: SIM115
            self._file.write(kept)

    def write(self, kind: str, **values: Any) -> None:
        """Append one line; readers see it at once."""
        self._file.write(json.dumps({"kind": kind, **values}) + "\n")
        self._file.flush()

    def publish(self) -> None:
        """Copy what was written so far to an object store, to whose files nothing can be added."""
        if not storage.is_local(self._path):
            self._file.seek(0)
            storage.write_atomic(self._path, self._file.read())

    def close(self) -> None:
        self.publish()
        self._file.close()


def _lines_until(text: str, update: int) -> list[str]:
    # A killed run may have left half a line.
    lines = [line for line in text.splitlines(keepends=True) if line.endswith("\n")]
    return [line for line in lines if json.loads(line)["step"] <= update]


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
