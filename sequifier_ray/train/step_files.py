"""The files of a distributed checkpoint, on a local file system or in an object store."""

from __future__ import annotations

import functools
import io
import os
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

from torch.distributed.checkpoint.filesystem import FileSystemBase, FileSystemReader, FileSystemWriter

from sequifier_ray import storage

_BLOCK_BYTES = 4 << 20
_BLOCKS = 8


def reader(path: str) -> FileSystemReader:
    """Reads the folder ``path`` of a checkpoint; from an object store only the bytes that a rank needs."""
    found = FileSystemReader(path)
    if not storage.is_local(path):
        found.fs, found.path = _Store(), path  # type: ignore[assignment]
    return found


def writer(path: str) -> FileSystemWriter:
    """Writes this rank's part into the folder ``path`` of a checkpoint."""
    if storage.is_local(path):
        return FileSystemWriter(path)
    # Nothing to sync: an object is there once its upload is complete.
    found = FileSystemWriter(path, sync_files=False)
    found.fs, found.path = _Store(), path  # type: ignore[assignment]
    return found


class _Blocks(io.RawIOBase):
    """A file of an object store: torch reads small pieces here and there, and each request takes its time."""

    def __init__(self, address: str) -> None:
        self._source = storage.open_file(address)
        self._at = 0
        self._block = functools.lru_cache(maxsize=_BLOCKS)(self._fetch)

    def _fetch(self, number: int) -> bytes:
        self._source.seek(number * _BLOCK_BYTES)
        return bytes(self._source.read(_BLOCK_BYTES))

    def readinto(self, buffer: Any) -> int:
        number, offset = divmod(self._at, _BLOCK_BYTES)
        found = self._block(number)[offset : offset + len(buffer)]
        buffer[: len(found)] = found
        self._at += len(found)
        return len(found)

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        base = {os.SEEK_SET: 0, os.SEEK_CUR: self._at, os.SEEK_END: self._source.size()}[whence]
        self._at = base + offset
        return self._at

    def tell(self) -> int:
        return self._at

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def close(self) -> None:
        self._source.close()
        super().close()


class _Store(FileSystemBase):
    """What torch asks of a file system, answered by ``storage``."""

    @contextmanager
    def create_stream(self, path: str | os.PathLike[str], mode: str) -> Generator[io.IOBase, None, None]:
        address = str(path)
        with _Blocks(address) if mode == "rb" else storage.writing(address) as stream:
            yield stream

    def concat_path(self, path: str | os.PathLike[str], suffix: str) -> str:
        return storage.join(str(path), suffix)

    def rename(self, path: str | os.PathLike[str], new_path: str | os.PathLike[str]) -> None:
        storage.write_atomic(str(new_path), storage.read_bytes(str(path)))
        storage.delete_file(str(path))

    def init_path(self, path: str | os.PathLike[str]) -> str:
        return str(path)

    def mkdir(self, path: str | os.PathLike[str]) -> None:
        storage.make_folder(str(path))

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: str | os.PathLike[str]) -> bool:
        return True

    def exists(self, path: str | os.PathLike[str]) -> bool:
        return storage.exists(str(path))

    def rm_file(self, path: str | os.PathLike[str]) -> None:
        storage.delete_file(str(path))
