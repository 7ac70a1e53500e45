"""Requests to stop, given to a process once and only when it can hear them."""

from __future__ import annotations

import ctypes
import os
import re
import signal
from collections.abc import Callable
from pathlib import Path

# The one that `sequifier-ray train` takes as: save a checkpoint and end.
STOP_SIGNAL = signal.SIGUSR1


_PR_SET_PDEATHSIG = 1
_LIBC = ctypes.CDLL(None)


def ending_with_us() -> Callable[[], None]:
    """For a child between fork and exec: SIGTERM once this process is gone, also where it was killed. Else it
    would go on for nobody, and srun would wait for it."""
    parent = os.getpid()

    def ask_for_signal() -> None:
        _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
        if os.getppid() != parent:  # gone before we asked
            os._exit(1)

    return ask_for_signal


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
