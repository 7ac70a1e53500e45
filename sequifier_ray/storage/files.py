"""Files and folders at any place. What is read goes through ``pyarrow.fs``, imported on first use; local
writes go through ``os``, for fsync and rename."""

from __future__ import annotations

import errno
import os
import posixpath
import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote

from sequifier_ray.errors import DataError
from sequifier_ray.storage.addresses import file_system, is_local, join

if TYPE_CHECKING:
    from pyarrow import NativeFile
    from pyarrow.fs import FileSystem

_CHUNK_BYTES = 8 << 20
# What S3 copies at one request.
_LARGEST_COPY_BYTES = 5 * 10**9
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_DENIED = (errno.EACCES, errno.EPERM, errno.EROFS)


def exists(path: str) -> bool:
    """True where a file or folder is."""
    return _info_type(path) != "NotFound"


def file_bytes(path: str) -> int | None:
    """Size of a file in bytes; None where there is no such file."""
    system, inner = file_system(path)
    with _reporting("look at", path):
        info = system.get_file_info(inner)
    return int(info.size) if info.is_file else None


def read_bytes(path: str) -> bytes:
    """The whole content of a file."""
    system, inner = file_system(path)
    with _reporting("read", path), system.open_input_stream(inner) as stream:
        return bytes(stream.read())


def read_text(path: str) -> str:
    """The whole content of a UTF-8 file."""
    try:
        return read_bytes(path).decode("utf-8")
    except UnicodeDecodeError as error:
        raise DataError(f"{path} is not UTF-8 text (byte {error.start:,}); write the file again") from error


@dataclass(frozen=True)
class FileEntry:
    """A file: its path as it can be opened, its size, and when it was last written (nanoseconds since
    1970)."""

    path: str
    bytes: int
    modified_ns: int


def open_file(path: str) -> NativeFile:
    """A file for reading at any place."""
    system, inner = file_system(path)
    with _reporting("read", path):
        return system.open_input_file(inner)


@contextmanager
def writing(path: str) -> Iterator[NativeFile]:
    """A new file at any place, there once the context ends well; if it ends with an exception, what was there
    before stays.

    pyarrow completes an upload when its stream is closed or forgotten, and cannot give one up: a file that
    is there already is written beside it first.
    """
    system, inner = file_system(path)
    with _reporting("write", path):
        is_there = system.get_file_info(inner).is_file
        beside = f".{secrets.token_hex(4)}.partial" if is_there else ""
        target = inner + beside
        stream = system.open_output_stream(target)
    try:
        yield stream
        with _reporting("write", path):
            stream.close()
            is_large = system.type_name == "s3" and system.get_file_info(target).size > _LARGEST_COPY_BYTES
            if is_there and not is_large:
                _replace(system, target, inner)
    except BaseException:
        with suppress(OSError):
            stream.close()
        with suppress(OSError):
            system.delete_file(target)
        raise
    if is_there and is_large:
        _write_again(system, target, inner, path, path + beside)


def _replace(system: FileSystem, source: str, target: str) -> None:
    """Give a file the name of another, which goes; on failure both stay. A store copies it by itself."""
    if system.type_name == "local":
        system.move(source, target)
    else:
        system.copy_file(source, target)
        system.delete_file(source)


def _write_again(system: FileSystem, source: str, target: str, path: str, path_of_source: str) -> None:
    """``_replace`` for what S3 does not copy: broken off, it leaves the target cut off, and so the source."""
    try:
        with system.open_input_stream(source) as reading, system.open_output_stream(target) as stream:
            shutil.copyfileobj(reading, stream, _CHUNK_BYTES)
    except OSError as error:
        raise DataError(
            f"cannot write {path}: {error}; what is there is cut off, and all of it lies in "
            f"{path_of_source}: run again, or copy it"
        ) from error
    with _reporting("delete", path_of_source):
        system.delete_file(source)


def modified_ns(path: str) -> int:
    """When a file was last written, in nanoseconds since 1970; 0 where the file system does not say."""
    system, inner = file_system(path)
    with _reporting("look at", path):
        return int(system.get_file_info(inner).mtime_ns or 0)


def find_files(path: str) -> list[FileEntry] | None:
    """The file itself, or all files in a folder and the folders in it, by name; None where nothing is."""
    from pyarrow.fs import FileSelector, FileType

    system, inner = file_system(path)
    with _reporting("look at", path):
        info = system.get_file_info(inner)
        if info.type == FileType.NotFound:
            return None
        if info.type != FileType.Directory:
            return [FileEntry(path, int(info.size or 0), int(info.mtime_ns or 0))]
        infos = [i for i in system.get_file_info(FileSelector(inner, recursive=True)) if i.is_file]
    entries = []
    for found in sorted(infos, key=lambda i: i.path):
        relative = posixpath.relpath(found.path, inner)
        address = join(path, quote(relative) if path.startswith("file://") else relative)
        entries.append(FileEntry(address, int(found.size), int(found.mtime_ns or 0)))
    return entries


def list_names(folder: str) -> list[str]:
    """Names of the files and folders directly in a folder, sorted."""
    from pyarrow.fs import FileSelector

    system, inner = file_system(folder)
    # In Google's store pyarrow sees a folder directly below only where somebody has made it on purpose;
    # of what lies deeper it sees every file.
    is_deep = system.type_name == "gcs"
    with _reporting("list", folder):
        infos = system.get_file_info(FileSelector(inner, recursive=is_deep))
    return sorted({posixpath.relpath(info.path, inner).partition("/")[0] for info in infos})


def make_folder(path: str) -> None:
    """Make a folder and those above it; one that is there already is fine."""
    system, inner = file_system(path)
    with _reporting("make the folder", path):
        system.create_dir(inner, recursive=True)


def delete_partial(folder: str, of: str = "") -> None:
    """Delete what killed processes have left beside names that begin with ``of``: files of ``writing`` and
    folders of ``unpublished``. Only for a folder in which nobody else writes."""
    if not exists(folder):
        return
    for name in list_names(folder):
        if name.startswith(of) and name.endswith(".partial"):
            path = join(folder, name)
            delete_folder(path) if file_bytes(path) is None else delete_file(path)


def delete_folder(path: str, missing_ok: bool = True) -> None:
    """Delete a folder with all it holds."""
    kind = _info_type(path)
    if kind == "NotFound" and missing_ok:
        return
    system, inner = file_system(path)
    with _reporting("delete", path):
        system.delete_dir(inner)


def delete_file(path: str) -> None:
    """Delete a file; one that is not there is fine."""
    system, inner = file_system(path)
    with _reporting("delete", path):
        if system.get_file_info(inner).is_file:
            system.delete_file(inner)


def copy_file(source: str, target: str) -> None:
    """Copy a file between any two places; the folder is made where it lacks."""
    make_folder(target.rpartition("/")[0])
    with open_file(source) as reading, writing(target) as stream:
        while True:
            with _reporting("read", source):
                block = reading.read(_CHUNK_BYTES)
            if not block:
                return
            with _reporting("write", target):
                stream.write(block)


def write_atomic(path: str, data: bytes | str) -> None:
    """Write a file that is seen whole or not at all: a temporary file beside it, fsync, rename.

    The folder is made where it lacks. An object store shows an object only once it is complete.
    """
    content = data.encode("utf-8") if isinstance(data, str) else data
    if not is_local(path):
        with writing(path) as stream, _reporting("write", path):
            stream.write(content)
        return
    final = Path(file_system(path)[1])
    temporary = final.with_name(f".{final.name}.{secrets.token_hex(4)}")
    with _reporting("write", path):
        final.parent.mkdir(parents=True, exist_ok=True)
        try:
            with temporary.open("wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            temporary.replace(final)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise
        _sync_folder(final.parent)


def unpublished(target: str) -> str:
    """A new name for writing a folder that is not to be seen before it is whole.

    New, as another node of a network file system may still take an earlier name for what it was. In
    an object store it is the place itself: its readers take a folder as there once its last file is.
    """
    return f"{target}.{secrets.token_hex(4)}.partial" if is_local(target) else target


def publish_folder(temporary: str, target: str) -> None:
    """Rename a finished folder to its published name.

    An existing target is moved aside, deleted afterwards, and moved back when the publishing fails. An object
    store has no rename: there both names are one, see ``unpublished``.
    """
    if temporary == target and not is_local(target):
        return
    source, final = Path(file_system(temporary)[1]), Path(file_system(target)[1])
    aside = final.with_name(f".{final.name}.previous")
    with _reporting("publish", target):
        final.parent.mkdir(parents=True, exist_ok=True)
        had_target = final.exists()
        if had_target:
            if aside.exists():
                shutil.rmtree(aside)
            final.rename(aside)
        try:
            source.rename(final)
        except BaseException:
            if had_target:
                aside.rename(final)
            raise
        _sync_folder(final.parent)
    if had_target:
        delete_folder(str(aside))


def _info_type(path: str) -> str:
    system, inner = file_system(path)
    with _reporting("look at", path):
        return str(system.get_file_info(inner).type.name)


def _sync_folder(folder: Path) -> None:
    """Names on disk, not only contents."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


@contextmanager
def _reporting(action: str, path: str) -> Iterator[None]:
    try:
        yield
    except UnicodeEncodeError as error:
        raise DataError(f"cannot {action} {path!r}: the name is not UTF-8; rename the file") from error
    except OSError as error:
        if isinstance(error, FileNotFoundError) or error.errno == errno.ENOENT:
            raise DataError(f"cannot {action} {path}: it does not exist") from error
        if error.errno == errno.ENAMETOOLONG:
            raise DataError(f"cannot {action} {path}: the name is too long; choose a shorter one") from error
        remedy = ""
        if error.errno in _FULL:
            remedy = "; free space or point project_root elsewhere"
        elif isinstance(error, PermissionError) or error.errno in _DENIED:
            remedy = "; check the permissions of the folder"
        raise DataError(f"cannot {action} {path}: {error.strerror or error}{remedy}") from error
    except _arrow_error() as error:  # Azure's way to say that it has no keys, or wrong ones
        raise DataError(f"cannot {action} {path}: {error}") from error


def _arrow_error() -> type[Exception]:
    from pyarrow import ArrowException

    error: type[Exception] = ArrowException
    return error
