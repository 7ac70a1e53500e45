"""Requests to stop: the first signal saves and ends the run, the second ends it at once."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from types import FrameType, TracebackType
from typing import Any

STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1)
EXIT_STOPPED = 75
EXIT_INTERRUPTED = 130


class StopSignals:
    """Context manager that catches SIGTERM, SIGINT and SIGUSR1 in the main thread.

    ``is_interrupt``: the request came from the keyboard (SIGINT).
    """

    def __init__(self, on_first: Callable[[], None] | None = None, ends_on_second: bool = True) -> None:
        self.requested = False
        self.is_interrupt = False
        self._ends_on_second = ends_on_second
        self._on_first = on_first
        self._earlier: dict[int, object] = {}

    def __enter__(self) -> StopSignals:
        for number in STOP_SIGNALS:
            self._earlier[number] = signal.signal(number, self._handle)
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        for number, handler in self._earlier.items():
            signal.signal(number, handler)  # type: ignore[arg-type]

    def mark(self, summary: dict[str, Any]) -> dict[str, Any]:
        """A run's summary, with whether it was the keyboard that stopped it."""
        return {**summary, "interrupted": self.is_interrupt and summary["status"] == "stopped"}

    def is_requested(self) -> bool:
        """Whether a first signal came."""
        return self.requested

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self.requested and self._ends_on_second:
            os._exit(128 + number)
        if not self.requested:
            self.is_interrupt = number == signal.SIGINT
        self.requested = True
        if self._on_first is not None:
            self._on_first()
