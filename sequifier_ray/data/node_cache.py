"""Shards of an object store on the node's own disk, each fetched once for all processes of the node."""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
import secrets
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, TYPE_CHECKING

from sequifier_ray import storage
from sequifier_ray.errors import ConfigError, DataError
from sequifier_ray.own_folder import make_own_folder, own_folder

if TYPE_CHECKING:
    from pyarrow import NativeFile

_CHUNK_BYTES = 8 << 20
# Names that we give; whatever else lies in the folder is somebody else's.
_KEPT = re.compile(r"[0-9a-f]{32}")
_FETCHED = re.compile(r"[0-9a-f]{32}\.[0-9a-f]{16}\.part")


def _own_shards() -> str:
    return str(own_folder() / "shards")


@dataclass(frozen=True)
class NodeCache:
    """Up to ``max_bytes`` of fetched files in ``folder``; those used last stay.

    Files are named by address, size and time of writing, so that what was written again is fetched again.
    Safe between processes: each file has a lock, held shared while somebody opens it and alone while it is
    fetched or given up. A file that is given up stays readable for those who have it open.
    """

    folder: str = field(default_factory=_own_shards)
    max_bytes: int = 100 * 10**9

    @contextmanager
    def opened(self, address: str, n_bytes: int) -> Iterator[str]:
        """A local path of the file of ``n_bytes`` bytes, good for opening it within the context.

        Raises:
            ConfigError: the folder cannot be used, or is to hold less than this file.
            DataError: it cannot be read, or what came is not ``n_bytes`` long.
        """
        if storage.is_local(address):
            yield storage.file_system(address)[1]
            return
        modified_ns = storage.modified_ns(address)
        key = hashlib.sha256(f"{address} {n_bytes} {modified_ns}".encode()).hexdigest()[:32]
        place = Path(self.folder) / key
        self._make_folder()
        with _lock_file(place) as lock:
            while True:
                self._hold(lock, fcntl.LOCK_SH)
                if _bytes_of(place) == n_bytes:
                    break
                self._hold(lock, fcntl.LOCK_EX)
                if _bytes_of(place) != n_bytes:  # not there, or cut off by a crash
                    self._fetch(address, n_bytes, place)
            with _naming_the_option(self.folder):
                os.utime(place)
            yield str(place)

    def _hold(self, lock: IO[bytes], how: int) -> None:
        with _naming_the_option(self.folder):  # some file systems have no locks
            fcntl.flock(lock, how)

    def _make_folder(self) -> None:
        folder = Path(self.folder)
        if folder.parent.name == own_folder().name:
            make_own_folder(folder.parent)
        with _naming_the_option(self.folder):
            folder.mkdir(parents=True, exist_ok=True)

    def _fetch(self, address: str, n_bytes: int, place: Path) -> None:
        if n_bytes > self.max_bytes:
            raise ConfigError(
                f"global_training.shard_cache_gigabytes: {self.max_bytes / 1e9:g} is less than the shard "
                f"{address} takes ({n_bytes / 1e9:g}); set at least {2 * n_bytes / 1e9:g}"
            )
        with self._reserved(n_bytes, place) as target:
            with storage.open_file(address) as source:
                while block := _read(source, address):
                    _write(target, block, address)
            _write(target, b"", address, and_sync=True)
            if target.tell() != n_bytes:
                raise DataError(f"{address} came with {target.tell()} bytes instead of {n_bytes}; run again")
            Path(target.name).replace(place)

    @contextmanager
    def _reserved(self, n_bytes: int, place: Path) -> Iterator[IO[bytes]]:
        """A new file that counts with ``n_bytes`` from the beginning, so that fetches beside each other keep
        the bound together; gone after the context unless renamed. It is locked as long as its process lives.
        """
        partial = place.with_suffix(f".{secrets.token_hex(8)}.part")
        with _lock_file(Path(self.folder) / "room") as room, _naming_the_option(self.folder):
            fcntl.flock(room, fcntl.LOCK_EX)
            self._make_room(n_bytes)
            place.unlink(missing_ok=True)
            # Never what somebody else has put there, and no buffer that fails once more at its end.
            target = partial.open("xb", buffering=0)
            fcntl.flock(target, fcntl.LOCK_EX)
            target.truncate(n_bytes)
        try:
            with target:
                yield target
        finally:
            partial.unlink(missing_ok=True)

    def _make_room(self, n_bytes: int) -> None:
        """Give up what killed processes left, and the files used longest ago until ``n_bytes`` more fit;
        those being fetched or opened stay, and so does what is not ours."""
        kept = []
        excess = n_bytes - self.max_bytes
        for path in Path(self.folder).iterdir():
            with suppress(FileNotFoundError):  # another process has given it up or renamed it meanwhile
                found = path.lstat()
                if not stat.S_ISREG(found.st_mode):
                    continue
                if _FETCHED.fullmatch(path.name) and _is_unlocked(path):
                    path.unlink()
                elif _FETCHED.fullmatch(path.name):
                    excess += found.st_size
                elif _KEPT.fullmatch(path.name):
                    kept.append((found.st_mtime_ns, found.st_size, path))
                    excess += found.st_size
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


def _read(source: NativeFile, address: str) -> bytes:
    try:
        return bytes(source.read(_CHUNK_BYTES))
    except OSError as error:
        raise DataError(f"{address} could not be read to its end ({error}); run again") from error


def _write(target: IO[bytes], block: bytes, address: str, and_sync: bool = False) -> None:
    try:
        rest = memoryview(block)
        while rest:
            rest = rest[target.write(rest) :]
        if and_sync:
            os.fsync(target.fileno())
    except OSError as error:
        folder = os.path.dirname(target.name)
        raise DataError(
            f"{address} could not be fetched to {folder} ({error.strerror}); free space there, or set "
            "global_training.shard_cache_path and shard_cache_gigabytes"
        ) from error


def _bytes_of(place: Path) -> int | None:
    return place.stat().st_size if place.exists() else None


def _is_unlocked(path: Path) -> bool:
    with path.open("rb") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
    return True


def _open_no_link(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NOFOLLOW, 0o666)


def _lock_file(place: Path) -> IO[bytes]:
    # It stays when its file goes: others may wait for it.
    with _naming_the_option(str(place.parent)):
        return open(place.with_suffix(".lock"), "ab", opener=_open_no_link)


@contextmanager
def _naming_the_option(folder: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise ConfigError(
            f"global_training.shard_cache_path: shards cannot be kept in {folder} ({error.strerror}); name a "
            "folder on the node's own disk that you may write to"
        ) from error


# The user's own folder under the node's temporary ones.
DEFAULT_CACHE = NodeCache()
