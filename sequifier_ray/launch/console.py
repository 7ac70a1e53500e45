"""What a run shows on the terminal: a progress bar where there is one, plain lines otherwise."""

from __future__ import annotations

import sys
import time
from typing import Any

from rich.console import Console as RichConsole
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

Event = dict[str, Any]


class Console:
    """Shows the events of rank 0; results go to stdout, warnings and progress to stderr."""

    def __init__(self, plain_interval_s: float = 5.0) -> None:
        self._rich = RichConsole(stderr=True)
        self._progress: Progress | None = None
        self._task: TaskID | None = None
        self._plain_interval_s = plain_interval_s
        self._last_plain_s = 0.0

    def show(self, event: Event) -> None:
        """One event: ``line``, ``warning`` or ``progress``; others are not for eyes."""
        if event["kind"] == "line":
            self.line(event["text"])
        elif event["kind"] == "warning":
            self.warn(event["text"])
        elif event["kind"] == "progress":
            self._show_progress(event)

    def line(self, text: str) -> None:
        """A line of the log, on stdout."""
        if self._progress is not None:
            self._progress.console.print(text, highlight=False, markup=False, soft_wrap=True)
        else:
            print(text, flush=True)

    def warn(self, text: str) -> None:
        """A warning, on stderr."""
        if self._progress is not None:
            self._progress.console.print(f"warning: {text}", highlight=False, markup=False, soft_wrap=True)
        else:
            print(f"warning: {text}", file=sys.stderr, flush=True)

    def close(self) -> None:
        """End the progress bar."""
        if self._progress is not None:
            self._progress.stop()
            self._progress = None

    def _show_progress(self, event: Event) -> None:
        rate = f"  {event['samples_per_s']:,.0f} samples/s" if event["samples_per_s"] else ""
        figures = f"loss {event['loss']:.4f}{rate}"
        if not self._rich.is_terminal:
            now_s = time.monotonic()
            done = event["update"] >= event["updates_total"]
            if done or now_s - self._last_plain_s >= self._plain_interval_s:
                self._last_plain_s = now_s
                print(f"step {event['update']}/{event['updates_total']}  {figures}", flush=True)
            return
        if self._progress is None:
            columns = (
                TextColumn("step {task.completed}/{task.total}"),
                BarColumn(),
                TextColumn("{task.fields[figures]}"),
            )
            self._progress = Progress(*columns, TimeRemainingColumn(), console=self._rich)
            self._task = self._progress.add_task("train", total=event["updates_total"], figures=figures)
            self._progress.start()
        assert self._task is not None
        self._progress.update(
            self._task, completed=event["update"], total=event["updates_total"], figures=figures
        )


def describe_summary(summary: dict[str, Any]) -> str:
    """The last lines of a run that ended well."""
    loss = "–" if summary["final_loss"] is None else f"{summary['final_loss']:.4f}"
    best = "" if summary["best_loss"] is None else f", best validation loss {summary['best_loss']:.4f}"
    rate = "" if summary["samples_per_s"] is None else f", {summary['samples_per_s']:,.0f} samples/s"
    lines = [
        f"{summary['status']}: {summary['updates']} updates, {summary['epochs']} epochs on "
        f"{summary['world_size']} {'process' if summary['world_size'] == 1 else 'processes'} "
        f"({summary['launcher']}, {summary['strategy']}) in {summary['train_seconds']:.0f} s{rate}",
        f"training loss {loss}{best}",
    ]
    lines += [f"model ({suffix}): {path}" for suffix, path in summary["models"].items()]
    return "\n".join(lines)
