"""Shards of an object store on the node's own disk, each fetched once for all processes of the node."""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

from sequifier_ray import storage
from sequifier_ray.errors import DataError

_CHUNK_BYTES = 8 << 20


def _own_folder() -> str:
    return os.path.join(tempfile.gettempdir(), f"sequifier-ray-{os.getuid()}", "shards")


@dataclass(frozen=True)
class NodeCache:
    """Up to ``max_bytes`` of fetched files in ``folder``; those used last stay.

    Files are named by address, size and time of writing, so that what was written again is fetched again.
    Safe between processes: each file has a lock, held shared while somebody opens it and alone while it is
    fetched or given up. A file that is given up stays readable for those who have it open.
    """

    folder: str = field(default_factory=_own_folder)
    max_bytes: int = 100 * 10**9

    @contextmanager
    def opened(self, address: str, n_bytes: int) -> Iterator[str]:
        """A local path of the file of ``n_bytes`` bytes, good for opening it within the context.

        Raises:
            DataError: it cannot be read, or what came is not ``n_bytes`` long.
        """
        if storage.is_local(address):
            yield storage.file_system(address)[1]
            return
        modified_ns = storage.modified_ns(address)
        key = hashlib.sha256(f"{address} {n_bytes} {modified_ns}".encode()).hexdigest()[:32]
        place = Path(self.folder) / key
        place.parent.mkdir(parents=True, exist_ok=True)
        with _lock_file(place) as lock:
            while True:
                fcntl.flock(lock, fcntl.LOCK_SH)
                if place.exists():
                    break
                fcntl.flock(lock, fcntl.LOCK_EX)
                if not place.exists():
                    self._make_room(n_bytes)
                    _fetch(address, n_bytes, place)
            os.utime(place)
            yield str(place)

    def _make_room(self, n_bytes: int) -> None:
        """Give up the files used longest ago until ``n_bytes`` more fit; those being opened stay."""
        kept = []
        for path in Path(self.folder).iterdir():
            if not path.suffix:
                with _gone_meanwhile():
                    found = path.stat()
                    kept.append((found.st_mtime_ns, found.st_size, path))
        excess = sum(size for _, size, _ in kept) + n_bytes - self.max_bytes
        for _, size, path in sorted(kept):
            if excess <= 0:
                return
            with _lock_file(path) as lock:
                try:
                    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except BlockingIOError:
                    continue
                path.unlink(missing_ok=True)
            excess -= size


def _lock_file(place: Path) -> IO[bytes]:
    # It stays when its file goes: others may wait for it.
    return place.with_suffix(".lock").open("ab")


def _fetch(address: str, n_bytes: int, place: Path) -> None:
    partial = place.with_suffix(".part")
    try:
        with storage.open_file(address) as source, partial.open("wb") as target:
            shutil.copyfileobj(source, target, _CHUNK_BYTES)
    except OSError as error:
        partial.unlink(missing_ok=True)
        raise DataError(
            f"{address} could not be fetched to {place.parent} ({error}); free space there, or set "
            "global_training.shard_cache_path and shard_cache_gigabytes"
        ) from error
    found = partial.stat().st_size
    if found != n_bytes:
        partial.unlink()
        raise DataError(f"{address} came with {found} bytes instead of {n_bytes}; run again")
    partial.replace(place)


# The user's own folder under the node's temporary ones.
DEFAULT_CACHE = NodeCache()


@contextmanager
def _gone_meanwhile() -> Iterator[None]:
    """Another process may give up a file between our look at the folder and at the file."""
    try:
        yield
    except FileNotFoundError:
        return
