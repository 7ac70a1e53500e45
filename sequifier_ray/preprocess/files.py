"""Which input files there are, and whether they are what `read_format` says."""

from __future__ import annotations

from pathlib import Path

from sequifier_ray.errors import ConfigError, DataError

PARQUET_MAGIC = b"PAR1"
SEPARATORS = {";": "';'", "\t": "a tab", "|": "'|'"}


def find_input_files(path: str, read_format: str) -> list[str]:
    """The input files in name order: the file itself, or the files of a folder in the given format.

    Hidden files and names that start with "_" (`_SUCCESS`) are not data. Raises ConfigError when
    the path or the format is not what the configuration says, DataError for an empty file.
    """
    source = Path(path)
    if not source.exists():
        raise ConfigError(
            f"preprocessing_data_path: {path} does not exist; "
            "name a file, or a folder of files, relative to project_root"
        )
    if source.is_file():
        _check_format(source, read_format)
        return [str(source)]
    visible = sorted(p for p in source.iterdir() if p.is_file() and p.name[0] not in "._")
    files = [p for p in visible if p.suffix.lower() == f".{read_format}"]
    if not files:
        others = sorted({p.suffix.lower() for p in visible if p.suffix})
        found = f" (found {', '.join(others)})" if others else " (it is empty)"
        raise ConfigError(
            f"preprocessing_data_path: the folder {path} holds no .{read_format} files{found}; "
            f"read_format is {read_format}, allowed are csv and parquet"
        )
    for file in files:
        _check_format(file, read_format)
    return [str(file) for file in files]


def _check_format(file: Path, read_format: str) -> None:
    """Look at the first bytes: an empty file, Parquet read as CSV, or CSV read as Parquet."""
    with file.open("rb") as stream:
        head = stream.read(4)
        first_line = head + stream.readline(65536)
    if not head:
        raise DataError(f"{file} is empty (0 bytes); give a file with rows, or take it out of the folder")
    is_parquet = head == PARQUET_MAGIC
    if is_parquet and read_format == "csv":
        raise ConfigError(f"{file} is a Parquet file, but read_format is csv; set read_format: parquet")
    if not is_parquet and read_format == "parquet":
        raise ConfigError(
            f"{file} is not a Parquet file, but read_format is parquet; "
            "set read_format: csv if it is a table in text form"
        )
    if read_format == "csv" and b"," not in first_line:
        for separator, shown in SEPARATORS.items():
            if separator.encode() in first_line:
                raise DataError(f"{file} is separated by {shown}; CSV input must be separated by commas")
