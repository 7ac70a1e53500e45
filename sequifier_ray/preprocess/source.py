"""Read the input files one by one into arrays, refusing values that cannot be trained on."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np
import polars as pl

from sequifier_ray.errors import DataError
from sequifier_ray.preprocess.columns import EventTable, Float64, Int64, code_column, concatenate_tables
from sequifier_ray.preprocess.schema import (
    ITEM_POSITION,
    SEQUENCE_ID,
    Roles,
    Schema,
    Type,
    choose_roles,
    describe_csv,
    describe_parquet,
    first_line,
    unify_schemas,
)

if TYPE_CHECKING:
    from sequifier_ray.config.preprocess import PreprocessConfig


def read_source(
    config: PreprocessConfig, files: list[str], report: Callable[[str], None]
) -> tuple[EventTable, Roles]:
    """All rows of the input files in file order, with the columns' roles.

    CSV types come from the first 10,000 rows of each file; where a later row contradicts them, from
    all rows. Raises ConfigError or DataError, naming file, column, row (1 = first data row) and value.
    """
    report(f"reading {len(files)} {config.read_format} file{'s' * (len(files) > 1)}")
    if config.read_format == "parquet":
        return _read_files(config, files, every_row=True)
    try:
        return _read_files(config, files, every_row=False)
    except pl.exceptions.ComputeError:
        return _read_files(config, files, every_row=True)


def _read_files(config: PreprocessConfig, files: list[str], *, every_row: bool) -> tuple[EventTable, Roles]:
    if config.read_format == "csv":
        described = [describe_csv(path, every_row=every_row) for path in files]
    else:
        described = [describe_parquet(path) for path in files]
    if not any(file.has_rows for file in described):
        raise DataError(f"{', '.join(files)}: no rows; there is nothing to preprocess")
    schema = unify_schemas(described, config.read_format)
    roles = choose_roles(config, schema)
    tables = []
    rows_left = config.max_rows
    for file in described:
        if not file.has_rows or rows_left == 0:
            continue
        table = _read_file(file.path, schema, roles, config.read_format, rows_left, every_row=every_row)
        if rows_left is not None:
            rows_left -= len(table.sequence_ids)
        tables.append(table)
    table = concatenate_tables(tables)
    for name in roles.categorical:
        if not len(table.categorical[name].values):
            raise DataError(f'column "{name}" is all null; take it out of selected_columns or give it values')
    return table, roles


def _read_file(
    path: str, schema: Schema, roles: Roles, read_format: str, n_rows: int | None, *, every_row: bool
) -> EventTable:
    """One file as arrays; only the columns needed are parsed."""
    extra = [roles.split_column] if roles.split_column and roles.split_column not in roles.columns else []
    names = [SEQUENCE_ID, ITEM_POSITION, *roles.columns, *extra]
    try:
        if read_format == "csv":
            types = {name: pl.String if schema[name] == pl.Null else schema[name] for name in names}
            scan = pl.scan_csv(path, glob=False, schema_overrides=types)
        else:
            scan = pl.scan_parquet(path, glob=False)
        scan = scan.select(names)
        frame = (scan if n_rows is None else scan.head(n_rows)).collect()
    except (pl.exceptions.PolarsError, OSError) as error:
        if isinstance(error, pl.exceptions.ComputeError) and not every_row:
            raise
        raise DataError(f"{path} cannot be read as {read_format}: {first_line(error)}") from error
    sequence_ids = _integers(frame[SEQUENCE_ID], path)
    item_positions = _integers(frame[ITEM_POSITION], path)
    real = {}
    for name in roles.real:
        real[name] = _reals(frame[name], path, sequence_ids)
    split_values = None
    if roles.split_column is not None:
        split_values = _split_values(frame[roles.split_column], path, at_times=roles.cuts_at_times)
    categorical = {}
    for name in roles.categorical:
        categorical[name] = code_column(_categories(frame[name], schema[name], path))
    return EventTable(sequence_ids, item_positions, categorical, real, split_values)


def _first_row(mask: pl.Series) -> int:
    """0-based row of the first true value."""
    return int(mask.arg_max() or 0)


def _refuse_nulls(column: pl.Series, path: str, remedy: str) -> None:
    if count := column.null_count():
        row = _first_row(column.is_null()) + 1
        raise DataError(
            f'{path}: column "{column.name}" holds {count:,} null value{"s" * (count > 1)}, '
            f"first in row {row:,}; {remedy}"
        )


def _integers(column: pl.Series, path: str) -> Int64:
    """sequenceId or itemPosition as int64."""
    _refuse_nulls(column, path, "every row needs an integer")
    numbers = column.cast(pl.Int64, strict=False) if column.dtype.is_integer() else None
    if numbers is None or numbers.null_count():
        row = 0
        if column.dtype == pl.String or numbers is not None:
            row = _first_row(column.cast(pl.Int64, strict=False).is_null())
        raise DataError(
            f'{path}: column "{column.name}" must hold integers of 64 bits, but is of type {column.dtype} '
            f"(row {row + 1:,}: {column[row]!r})"
        )
    return numbers.to_numpy()


def _as_floats(column: pl.Series, path: str) -> pl.Series:
    numbers = column.cast(pl.Float64, strict=False)
    if numbers.null_count() > column.null_count():
        row = _first_row(numbers.is_null() & column.is_not_null())
        raise DataError(
            f'{path}: real column "{column.name}" holds {column[row]!r} in row {row + 1:,}, which is not '
            "a number; mend it, or name the column in categorical_columns"
        )
    return numbers


def _reals(column: pl.Series, path: str, sequence_ids: Int64) -> Float64:
    """A real column as float64, finite throughout."""
    numbers = _as_floats(column, path)
    if numbers.null_count() == len(numbers):
        raise DataError(f'{path}: column "{column.name}" is all null; leave it out of selected_columns')
    _refuse_nulls(numbers, path, "real columns have no value for 'missing': fill or drop these rows")
    values = numbers.to_numpy()
    if not np.isfinite(values).all():
        bad = np.flatnonzero(~np.isfinite(values))
        row = int(bad[0])
        raise DataError(
            f'{path}: real column "{column.name}" holds {len(bad):,} NaN or infinite '
            f"value{'s' * (len(bad) > 1)}, first in row {row + 1:,} (sequenceId {sequence_ids[row]}, "
            f"value {values[row]}); fill or drop these rows"
        )
    return values


def _categories(column: pl.Series, dtype: Type, path: str) -> pl.Series:
    """A categorical column as strings, or as int64 (booleans as 0 and 1)."""
    if dtype == pl.String:
        return column.cast(pl.String)
    numbers = column.cast(pl.Float64) if dtype == pl.Float64 else column
    integers = numbers.cast(pl.Int64, strict=False)
    wrong = integers.is_null() & column.is_not_null()
    if dtype == pl.Float64:
        wrong |= (integers.cast(pl.Float64) != numbers).fill_null(value=False)
    if wrong.any():
        row = _first_row(wrong)
        raise DataError(
            f'{path}: categorical column "{column.name}" holds {column[row]!r} in row {row + 1:,}; '
            "categories are strings, booleans or integers of 64 bits: cast it, or name it in real_columns"
        )
    return integers


def _split_values(column: pl.Series, path: str, *, at_times: bool) -> Int64:
    """The split column as int64: integers as they are, timestamps as microseconds since 1970 in UTC."""
    _refuse_nulls(column, path, "split_column needs a value in every row")
    if column.dtype.is_integer() and not at_times:
        return _integers(column, path)
    times = column
    if column.dtype == pl.String and at_times:
        times = column.str.to_datetime(time_unit="us", time_zone="UTC", strict=False)
        if times.null_count():
            row = _first_row(times.is_null())
            raise DataError(
                f'{path}: split_column "{column.name}" holds {column[row]!r} in row {row + 1:,}, '
                "which is not an ISO timestamp"
            )
    if not at_times or times.dtype not in (pl.Date, pl.Datetime):
        wanted = "timestamps" if at_times else "integers"
        raise DataError(
            f'{path}: split_column "{column.name}" is of type {column.dtype}, but split_values are {wanted}; '
            "both must be integers, or both dates and timestamps"
        )
    if times.dtype == pl.Date:
        times = times.cast(pl.Datetime("us"))
    # the physical value of a time with a zone is UTC already; a naive one counts as UTC
    return times.dt.cast_time_unit("us").to_physical().to_numpy()
