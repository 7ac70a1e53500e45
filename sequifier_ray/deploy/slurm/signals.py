"""Requests to stop, given to a process once and only when it can hear them."""

from __future__ import annotations

import os
import re
import signal
from pathlib import Path

# The one that `sequifier-ray train` takes as: save a checkpoint and end.
STOP_SIGNAL = signal.SIGUSR1


def catches_stop(pid: int) -> bool:
    """Whether a process has a handler for it: before, it would die of the signal, or lose it."""
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return False
    found = re.search(r"^SigCgt:\s*([0-9a-f]+)", status, re.MULTILINE)
    return found is not None and bool(int(found.group(1), 16) >> (STOP_SIGNAL - 1) & 1)


def children_of(pid: int) -> list[int]:
    """Process ids of a process's children."""
    try:
        lists = [path.read_text() for path in Path(f"/proc/{pid}/task").glob("*/children")]
    except OSError:
        return []
    return [int(word) for text in lists for word in text.split()]


class StopRequest:
    """A request on its way to some processes."""

    def __init__(self) -> None:
        self.is_made = False
        self.told: set[int] = set()

    def pass_on(self, pids: list[int]) -> None:
        """Tell those that can hear it and do not know yet."""
        if not self.is_made:
            return
        for pid in pids:
            if pid not in self.told and catches_stop(pid):
                self.told.add(pid)
                try:
                    os.kill(pid, STOP_SIGNAL)
                except ProcessLookupError:
                    continue  # it has just ended
