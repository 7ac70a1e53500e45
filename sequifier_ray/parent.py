"""A process that ends with the one that started it."""

from __future__ import annotations

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1
# Loaded here: between fork and exec nothing should be.
_LIBC = ctypes.CDLL(None)


def end_with(parent: int, request: signal.Signals) -> None:
    """Ask Linux to send this process a signal when its parent ends, however it does: killed, it can tell
    nobody. Other systems have no such request."""
    if sys.platform == "linux":
        _LIBC.prctl(_PR_SET_PDEATHSIG, request, 0, 0, 0)
    if os.getppid() != parent:  # it has ended already
        os._exit(1)
