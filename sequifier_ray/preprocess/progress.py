"""What a long run says while it works: a moving line on a terminal, else one line a pass."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import TextIO, TypeVar

Result = TypeVar("Result")
REDRAW_S = 0.2
Report = Callable[[str], None]


@dataclass
class Progress:
    """Seconds and rows by pass, in the order of the passes; `report` gets one line when a pass ends.

    `terminal` is where a moving line is drawn; None draws none.
    """

    report: Report
    terminal: TextIO | None = None
    seconds: dict[str, float] = field(default_factory=dict)

    @staticmethod
    def to(report: Report) -> Progress:
        """With a moving line where stderr is a terminal."""
        is_terminal = sys.stderr is not None and sys.stderr.isatty()
        return Progress(report, sys.stderr if is_terminal else None)

    def follow(
        self, name: str, results: Iterable[Result], total: int, rows_of: Callable[[Result], int] | None = None
    ) -> Iterator[Result]:
        """The results of one pass as they come; `total` of them are expected, each of so many rows."""
        start = drawn = time.perf_counter()
        rows = 0
        for done, result in enumerate(results, start=1):
            rows += 0 if rows_of is None else rows_of(result)
            now = time.perf_counter()
            if self.terminal is not None and now - drawn > REDRAW_S:
                drawn = now
                self._draw(_moving(name, done, total, rows, now - start))
            yield result
        self._end(name, time.perf_counter() - start, rows)

    def _end(self, name: str, seconds: float, rows: int) -> None:
        self.seconds[name] = self.seconds.get(name, 0.0) + seconds
        self._draw("")
        rate = f", {rows:,} rows ({rows / max(seconds, 1e-9):,.0f} rows/s)" if rows else ""
        self.report(f"{name}: {seconds:.1f} s{rate}")

    def _draw(self, line: str) -> None:
        if self.terminal is not None:
            # Back to the start of the line, and clear what a longer one has left.
            self.terminal.write(f"\r\x1b[K{line}")
            self.terminal.flush()


def _moving(name: str, done: int, total: int, rows: int, seconds: float) -> str:
    left_s = seconds / done * (total - done)
    rate = f", {rows / seconds:,.0f} rows/s" if rows else ""
    return f"{name}: {done:,} of {total:,}{rate}, {_clock(left_s)} left"


def _clock(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"
