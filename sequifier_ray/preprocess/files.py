"""Which input files there are, and whether they are what `read_format` says."""

from __future__ import annotations

import fnmatch
import posixpath
import re
from collections.abc import Callable
from typing import TYPE_CHECKING

from sequifier_ray import storage
from sequifier_ray.data.metadata import shard_names
from sequifier_ray.errors import ConfigError, DataError
from sequifier_ray.storage import FileEntry

if TYPE_CHECKING:
    from sequifier_ray.config.preprocess import PreprocessConfig

PARQUET_MAGIC = b"PAR1"
COMPRESSIONS = {".gz": "gzip", ".zst": "zstd", ".zstd": "zstd", ".bz2": "bz2"}
ENDINGS = {"csv": (".csv", ".tsv", ".txt"), "parquet": (".parquet", ".pq")}
PATTERN = re.compile(r"[*?\[]")
FIELD = "preprocessing_data_path"


def compression_of(path: str) -> str | None:
    """The compression that a file's name says it has: gzip, zstd, bz2 or none."""
    return COMPRESSIONS.get(posixpath.splitext(path)[1].lower())


def data_ending(path: str) -> str:
    """The file extension below that of a compression, in lower case: `.csv` of `a.CSV.gz`."""
    stem, ending = posixpath.splitext(path)
    if ending.lower() in COMPRESSIONS:
        ending = posixpath.splitext(stem)[1]
    return ending.lower()


def dataset_name(config: PreprocessConfig) -> str:
    """The stem of every output name: the input's file or folder name without extensions; of a pattern, the
    last folder name without pattern characters."""
    path = config.resolve(config.preprocessing_data_path)
    parts = path.rstrip("/").split("/")
    while len(parts) > 1 and PATTERN.search(parts[-1]) and _is_pattern(path):
        parts.pop()
    name = parts[-1]
    if (stem := posixpath.splitext(name))[1].lower() in COMPRESSIONS:
        name = stem[0]
    stem = posixpath.splitext(name)
    return stem[0] if stem[1].lower() in ENDINGS[config.read_format] and stem[0] else name


def find_input_files(path: str, read_format: str, warn: Callable[[str], None]) -> list[FileEntry]:
    """The input files in name order: a file, the files of a format in a folder and in its folders, or what a
    pattern matches.

    Hidden files and those below `_` or `.` names (`_SUCCESS`) are not data, nor is what `preprocess` has
    written; that and files of other formats are told to `warn`. Raises ConfigError when the path or the
    format is not what the configuration says, DataError for an empty file.
    """
    if _is_pattern(path):
        entries = _matching(path, warn)
        if not entries:
            raise ConfigError(f"{FIELD}: no file matches {path}; check the pattern, relative to project_root")
    else:
        found = storage.find_files(path)
        if found is None:
            raise ConfigError(
                f"{FIELD}: {path} does not exist; name a file, a folder or a pattern, relative to "
                f"project_root"
            )
        entries = found if _is_the_file(path, found) else _of_folder(path, found, read_format, warn)
    for entry in entries:
        _check_format(entry, read_format)
    return entries


def _is_pattern(path: str) -> bool:
    """A name that exists is a name, whatever its characters."""
    return bool(PATTERN.search(path)) and not storage.exists(path)


def _is_the_file(path: str, entries: list[FileEntry]) -> bool:
    return len(entries) == 1 and entries[0].path == path


def _matching(path: str, warn: Callable[[str], None]) -> list[FileEntry]:
    parts = path.split("/")
    fixed = next(i for i, part in enumerate(parts) if PATTERN.search(part))
    folder = "/".join(parts[:fixed]) or "/"
    relative = re.compile(_translate("/".join(parts[fixed:])))
    entries = storage.find_files(folder) or []
    start = len(folder.rstrip("/")) + 1
    visible = [entry for entry in entries if _is_visible(entry.path[start:])]
    found = [entry for entry in visible if relative.fullmatch(entry.path[start:])]
    return _without_results(found, visible, warn)


def _without_results(
    files: list[FileEntry], listing: list[FileEntry], warn: Callable[[str], None]
) -> list[FileEntry]:
    """The files that no run of `preprocess` wrote, by the metadata in `listing` that lies with them."""
    known = {entry.path for entry in listing}
    results: dict[str, set[str]] = {}
    kept = []
    for entry in files:
        folder, name = posixpath.split(entry.path)
        beside = f"{posixpath.splitext(entry.path)[0]}.metadata.json"
        candidates = [path for path in (f"{folder}/metadata.json", beside) if path in known]
        for path in candidates:
            if path not in results:
                results[path] = shard_names(path)
        if not any(name in results[path] for path in candidates):
            kept.append(entry)
    if left_out := len(files) - len(kept):
        count = f"{left_out:,} file{'s' * (left_out > 1)}"
        first = next(entry for entry in files if entry not in kept)
        warn(f"{count} that preprocess wrote left out, such as {first.path}")
    return kept


def _is_visible(relative: str) -> bool:
    return not any(part[:1] in "._" for part in relative.split("/") if part)


def _translate(pattern: str) -> str:
    """`*` and `?` stay within a name, `**` crosses folders."""
    pieces = re.split(r"(\*\*/?|\*|\?|\[[^\]]*\])", pattern)
    known = {"**/": "(?:.*/)?", "**": ".*", "*": "[^/]*", "?": "[^/]"}
    regex = ""
    for piece in pieces:
        if piece.startswith("[") and piece.endswith("]"):
            regex += fnmatch.translate(piece).removeprefix("(?s:").rsplit(")", 1)[0]
        else:
            regex += known.get(piece, re.escape(piece))
    return regex


def _of_folder(
    path: str, entries: list[FileEntry], read_format: str, warn: Callable[[str], None]
) -> list[FileEntry]:
    start = len(path.rstrip("/")) + 1
    visible = [entry for entry in entries if _is_visible(entry.path[start:])]
    of_format = [entry for entry in visible if data_ending(entry.path) in ENDINGS[read_format]]
    files = _without_results(of_format, visible, warn)
    others = [entry for entry in visible if entry not in of_format]
    endings = ", ".join(sorted({data_ending(e.path) or "no extension" for e in others}))
    if not files:
        found = f" (found {endings})" if others else " (it is empty)"
        if of_format:
            found = " besides those that preprocess wrote"
        raise ConfigError(
            f"{FIELD}: the folder {path} holds no .{read_format} files{found}; "
            f"read_format is {read_format}, allowed are csv and parquet"
        )
    if others:
        count = f"{len(others):,} file{'s' * (len(others) > 1)}"
        warn(f"{count} of other kinds in {path} ({endings}) left out, such as {others[0].path[start:]}")
    return files


def _check_format(entry: FileEntry, read_format: str) -> None:
    """Look at the first bytes: an empty file, Parquet read as CSV, or CSV read as Parquet."""
    if entry.bytes == 0:
        raise DataError(
            f"{entry.path} is empty (0 bytes); give a file with rows, or take it out of the folder"
        )
    with storage.open_file(entry.path) as stream:
        head = stream.read(4)
    is_parquet = head == PARQUET_MAGIC
    if is_parquet and read_format == "csv":
        raise ConfigError(f"{entry.path} is a Parquet file, but read_format is csv; set read_format: parquet")
    if not is_parquet and read_format == "parquet":
        raise ConfigError(
            f"{entry.path} is not a Parquet file, but read_format is parquet; "
            "set read_format: csv if it is a table in text form"
        )
    if head[:4] == b"PK\x03\x04":
        raise ConfigError(f"{entry.path} is an Excel or zip file; save the table as CSV or Parquet")
