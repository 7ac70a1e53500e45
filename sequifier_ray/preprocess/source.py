"""The input files: what columns they have, and their rows, a block at a time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import polars as pl
import pyarrow as pa
import pyarrow.parquet

from sequifier_ray import storage
from sequifier_ray.errors import DataError
from sequifier_ray.preprocess.dialect import CsvFile, describe_csv, unreadable
from sequifier_ray.preprocess.kinds import kind_of_type
from sequifier_ray.storage import FileEntry

if TYPE_CHECKING:
    from sequifier_ray.config.preprocess import PreprocessConfig

TASK_ROWS = 1_000_000
UUID_BYTES = 16


@dataclass(frozen=True)
class SourceFile:
    """One input file: its columns in order, their kinds (empty for CSV, which only its values tell), and the
    rows of each row group of Parquet."""

    path: str
    columns: tuple[str, ...]
    kinds: dict[str, str]
    group_rows: tuple[int, ...]
    csv: CsvFile | None


@dataclass(frozen=True)
class Task:
    """Some rows of one file: row groups `first_group` to `last_group` of Parquet, or all of CSV; `first_row`
    counts from 1, `max_rows` None means all."""

    number: int
    file: int
    first_group: int
    last_group: int
    first_row: int
    max_rows: int | None


@dataclass(frozen=True)
class Block:
    """Consecutive rows as they were read; `first_row` is the number of its first one in the file, from 1;
    `keys` are the id and position columns, where both are among them."""

    path: str
    file: int
    first_row: int
    frame: pl.DataFrame
    keys: tuple[str, ...] = ()

    def column(self, name: str) -> pl.Series:
        """The values of a column under another name: polars takes one like `^x.*$` for a pattern."""
        return self.frame.get_column(name).alias("values")


def describe_file(config: PreprocessConfig, entry: FileEntry) -> SourceFile:
    """Columns of a file, from the header of CSV or the footer of Parquet."""
    if config.read_format == "csv":
        keys = (config.sequence_id_column, config.item_position_column)
        csv = describe_csv(entry.path, config.csv, keys)
        return SourceFile(entry.path, csv.columns, {}, (), csv)
    try:
        with pyarrow.parquet.ParquetFile(storage.open_file(entry.path)) as file:
            names = file.schema_arrow.names
            empty = frame_of(pa.Table.from_batches([], file.schema_arrow), list(dict.fromkeys(names)))
            metadata = file.metadata
            rows = tuple(metadata.row_group(i).num_rows for i in range(metadata.num_row_groups))
    except (pa.ArrowException, OSError, pl.exceptions.PolarsError) as error:
        raise _bad_parquet(entry.path, error) from error
    repeated = sorted({name for name in names if names.count(name) > 1})
    if repeated:
        raise DataError(
            f"{entry.path}: columns {repeated} occur more than once; every column needs its own name"
        )
    kinds = {name: kind_of_type(dtype) for name, dtype in empty.schema.items()}
    return SourceFile(entry.path, tuple(names), kinds, rows, None)


def plan_tasks(files: Sequence[SourceFile], max_rows: int | None) -> list[Task]:
    """Pieces of work of about a million rows, in the order of files and rows; a CSV file is one of them."""
    tasks: list[Task] = []
    left = max_rows
    for i, file in enumerate(files):
        if file.csv is not None:
            tasks.append(Task(len(tasks), i, 0, 0, 1, None))
            continue
        first, first_row, rows = 0, 1, 0
        for group, n_rows in enumerate(file.group_rows):
            rows += n_rows
            is_last = group == len(file.group_rows) - 1
            if rows and (rows >= TASK_ROWS or is_last):
                limit = None if left is None else min(left, rows)
                if limit != 0:
                    tasks.append(Task(len(tasks), i, first, group + 1, first_row, limit))
                left = None if left is None or limit is None else left - limit
                first, first_row, rows = group + 1, first_row + rows, 0
    return tasks


def read_blocks(file: SourceFile, task: Task, columns: Sequence[str]) -> Iterator[Block]:
    """The rows of a task, the named columns only. Raises DataError naming the file where it is damaged."""
    row = task.first_row
    left = task.max_rows
    batches = (
        _csv_batches(file.csv, columns) if file.csv is not None else _parquet_batches(file, task, columns)
    )
    for batch in batches:
        if left is not None:
            batch = batch[:left]
            left -= batch.num_rows
        if batch.num_rows:
            yield Block(file.path, task.file, row, frame_of(batch, columns))
            row += batch.num_rows
        if left == 0:
            return


def _csv_batches(file: CsvFile, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
    """Blocks of about `TASK_ROWS` rows; small ones would cost more than they hold."""
    pending: list[pa.RecordBatch] = []
    rows, last = 0, None
    try:
        # a quote that is never closed makes all that follows a part of the last column
        for batch in file.read(tuple(dict.fromkeys([*columns, file.columns[-1]]))):
            if batch.num_rows:
                rows, last = rows + batch.num_rows, batch.column(file.columns[-1])[-1].as_py()
            pending.append(batch)
            if sum(b.num_rows for b in pending) >= TASK_ROWS:
                yield pa.concat_batches(pending)
                pending = []
        if pending:
            yield pa.concat_batches(pending)
        file.refuse_open_quote(rows, last)
    except (pa.ArrowException, OSError, UnicodeError) as error:
        if "Empty CSV file" in str(error):
            return
        raise unreadable(file.path, file.dialect, error) from error


def _parquet_batches(file: SourceFile, task: Task, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
    groups = list(range(task.first_group, task.last_group))
    try:
        with pyarrow.parquet.ParquetFile(storage.open_file(file.path), pre_buffer=False) as parquet:
            yield from parquet.iter_batches(TASK_ROWS, groups, columns=list(columns))
    except (pa.ArrowException, OSError) as error:
        raise _bad_parquet(file.path, error) from error


def _bad_parquet(path: str, error: Exception) -> DataError:
    text = (str(error).strip() or type(error).__name__).splitlines()[0]
    return DataError(f"{path} cannot be read as Parquet: {text}")


def frame_of(data: pa.Table | pa.RecordBatch, names: Sequence[str]) -> pl.DataFrame:
    """A polars frame of the named columns, in their order; dictionaries, half floats and UUIDs as plain
    values that polars knows."""
    places = {name: i for i, name in enumerate(data.schema.names)}
    columns = {}
    for name in names:
        column = _plain(data.column(places[name]))
        values = pl.Series(pl.from_arrow(column))
        columns[name] = _uuid_text(values) if _is_uuid(column.type) else values
    return pl.DataFrame(columns)


def _plain(column: Any) -> Any:
    if isinstance(column.type, pa.BaseExtensionType):
        chunks = column.chunks if isinstance(column, pa.ChunkedArray) else [column]
        column = pa.chunked_array([chunk.storage for chunk in chunks], column.type.storage_type)
    if pa.types.is_dictionary(column.type):
        column = column.cast(column.type.value_type)
    if pa.types.is_float16(column.type):
        column = column.cast(pa.float32())
    if pa.types.is_decimal256(column.type):
        column = column.cast(pa.float64())
    return column


def _is_uuid(dtype: pa.DataType) -> bool:
    return bool(pa.types.is_fixed_size_binary(dtype) and dtype.byte_width == UUID_BYTES)


def _uuid_text(column: pl.Series) -> pl.Series:
    """16 bytes in the usual text form, 8-4-4-4-12 hexadecimal digits."""
    return column.bin.encode("hex").str.replace(r"^(.{8})(.{4})(.{4})(.{4})(.{12})$", "$1-$2-$3-$4-$5")
