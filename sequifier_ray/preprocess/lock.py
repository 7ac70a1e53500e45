"""A file that one process at a time holds."""

from __future__ import annotations

import errno
import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from sequifier_ray.errors import ConfigError, DataError

_NO_LOCKS = (errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOLCK)


@contextmanager
def holding(path: Path, taken: str) -> Iterator[None]:
    """Hold the file, made for it and gone afterwards; released also when the process is killed.

    Raises:
        DataError: another process has it; the text is ``taken``.
        ConfigError: its file system has no locks.
        OSError: it cannot be made.
    """
    # Closed below, after its name is gone.
    handle = open(path, "a", opener=_open_no_link)  # noqa: SIM115
    with handle:
        if not _has(handle, path):
            raise DataError(taken)
        try:
            yield
        finally:
            path.unlink(missing_ok=True)


def _open_no_link(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NOFOLLOW, 0o666)


def _has(handle: IO[str], path: Path) -> bool:
    """Whether this process now holds the file that bears the name, not one removed meanwhile."""
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return os.fstat(handle.fileno()).st_ino == path.stat().st_ino
    except (BlockingIOError, FileNotFoundError):
        return False
    except OSError as error:
        if error.errno not in _NO_LOCKS:
            raise
        path.unlink(missing_ok=True)
        raise ConfigError(
            f"{path.parent} cannot be worked in by one run alone: its file system has no locks "
            f"({error.strerror}); mount it with them (Lustre: -o flock), or choose a folder elsewhere with "
            "project_root or --scratch"
        ) from error
