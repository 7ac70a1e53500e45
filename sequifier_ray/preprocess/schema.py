"""Column types of the input files, made one for all files, and the role of every column."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import polars as pl
from polars.datatypes import DataTypeClass

from sequifier_ray.errors import ConfigError, DataError, nearest

if TYPE_CHECKING:
    from sequifier_ray.config.preprocess import PreprocessConfig

SEQUENCE_ID = "sequenceId"
ITEM_POSITION = "itemPosition"
CSV_SAMPLE_ROWS = 10_000

Type = pl.DataType | DataTypeClass
Schema = Mapping[str, Type]


@dataclass(frozen=True)
class SourceFile:
    """One input file: its column types, and whether it holds rows at all."""

    path: str
    schema: Schema
    has_rows: bool


@dataclass(frozen=True)
class Roles:
    """What is made of every column: `columns` in their order, each either categorical or real; the column
    of a value_cutoff split, and whether its boundaries are timestamps."""

    columns: tuple[str, ...]
    categorical: tuple[str, ...]
    real: tuple[str, ...]
    split_column: str | None
    cuts_at_times: bool


def describe_parquet(path: str) -> SourceFile:
    """Types from the footer of a Parquet file."""
    try:
        scan = pl.scan_parquet(path, glob=False)
        schema = scan.collect_schema()
        n_rows = scan.select(pl.len()).collect().item()
    except (pl.exceptions.PolarsError, OSError) as error:
        raise DataError(f"{path} cannot be read as Parquet: {first_line(error)}") from error
    return SourceFile(path, {name: simple_type(dtype) for name, dtype in schema.items()}, n_rows > 0)


def describe_csv(path: str, *, every_row: bool) -> SourceFile:
    """Types from the first 10,000 rows of a CSV file, or from all of them; columns without a value
    are of type Null.

    Raises polars' ComputeError where types from the first rows do not fit those that follow.
    """
    try:
        scan = pl.scan_csv(path, glob=False, infer_schema_length=None if every_row else CSV_SAMPLE_ROWS)
        schema: dict[str, Type] = dict(scan.collect_schema())
        sample = scan.head(CSV_SAMPLE_ROWS).collect()
        blank = [name for name in sample.columns if sample[name].null_count() == sample.height]
        if sample.height and blank:
            if not every_row:
                return describe_csv(path, every_row=True)
            has_value = scan.select(pl.col(blank).is_not_null().any()).collect().row(0, named=True)
            schema |= {name: pl.Null for name in blank if not has_value[name]}
    except (pl.exceptions.PolarsError, OSError) as error:
        if isinstance(error, pl.exceptions.ComputeError) and not every_row:
            raise
        raise DataError(f"{path} cannot be read as CSV: {first_line(error)}") from error
    return SourceFile(path, schema, sample.height > 0)


def simple_type(dtype: Type) -> Type:
    """Integers as Int64, floats and decimals as Float64, dictionary types as String; others as they are."""
    if dtype == pl.UInt64:
        return pl.UInt64
    if dtype.is_integer():
        return pl.Int64
    if dtype.is_float() or dtype.is_decimal():
        return pl.Float64
    if dtype in (pl.Categorical, pl.Enum):
        return pl.String
    return dtype


def unify_schemas(files: Sequence[SourceFile], read_format: str) -> Schema:
    """One schema for all files; files without rows only need the same column names.

    Integers and floats become floats; in CSV, text and anything else becomes text. Raises DataError
    naming the two files that differ.
    """
    first = files[0]
    unified: dict[str, Type] = dict.fromkeys(first.schema, pl.Null)
    origin: dict[str, str] = {}
    for file in files:
        if set(file.schema) != set(unified):
            missing = sorted(set(unified) - set(file.schema))
            extra = sorted(set(file.schema) - set(unified))
            parts = [f"lacks {missing}"] * bool(missing) + [f"has {extra} besides"] * bool(extra)
            raise DataError(
                f"{file.path} and {first.path} have different columns: {file.path} {' and '.join(parts)}; "
                "all files of the folder need the same columns"
            )
        for name, dtype in file.schema.items() if file.has_rows else ():
            joined = _join_types(unified[name], dtype, read_format)
            if joined is None:
                raise DataError(
                    f'column "{name}" is {unified[name]} in {origin[name]} and {dtype} in {file.path}; '
                    "all files of the folder need the same column types"
                )
            if dtype != pl.Null:
                origin.setdefault(name, file.path)
            unified[name] = joined
    return unified


def _join_types(left: Type, right: Type, read_format: str) -> Type | None:
    if left in (right, pl.Null):
        return right
    if right == pl.Null:
        return left
    if left.is_numeric() and right.is_numeric():
        return pl.Float64
    return pl.String if read_format == "csv" else None


def choose_roles(config: PreprocessConfig, schema: Schema) -> Roles:
    """Which columns are processed and how: by `categorical_columns` and `real_columns`, else strings,
    booleans and integers are categorical and floats real."""
    for name in (SEQUENCE_ID, ITEM_POSITION):
        if name not in schema:
            raise DataError(
                f'the input has no column "{name}"{nearest(name, schema)}; its columns are {list(schema)}. '
                "Every row needs the integers sequenceId and itemPosition"
            )
    split_column = config.split_column if config.split_method == "value_cutoff" else None
    features = [name for name in schema if name not in (SEQUENCE_ID, ITEM_POSITION)]
    if config.selected_columns is None:
        columns = [name for name in features if name != split_column or not _is_time(schema[name])]
    else:
        columns = [n for n in config.selected_columns if n not in (SEQUENCE_ID, ITEM_POSITION)]
    named = {
        "selected_columns": columns,
        "categorical_columns": config.categorical_columns or (),
        "real_columns": config.real_columns or (),
        "column_data_types": config.column_data_types or (),
        "split_column": [split_column] if split_column else (),
    }
    for field, names in named.items():
        for name in names:
            if name not in schema:
                raise ConfigError(
                    f'{field}: "{name}" is not a column of the input{nearest(name, features)}; '
                    f"its columns are {features}"
                )
    if not columns:
        raise ConfigError("no columns to process: the input holds only sequenceId and itemPosition")
    categorical = tuple(name for name in columns if _is_categorical(config, schema, name))
    real = tuple(name for name in columns if name not in categorical)
    cuts_at_times = not all(isinstance(value, int) for value in config.split_values or ())
    return Roles(tuple(columns), categorical, real, split_column, cuts_at_times)


def _is_time(dtype: Type) -> bool:
    return dtype.is_temporal() or dtype == pl.String


def _is_categorical(config: PreprocessConfig, schema: Schema, name: str) -> bool:
    dtype = schema[name]
    if dtype == pl.Null:
        raise DataError(f'column "{name}" is all null; take it out of selected_columns or give it values')
    if dtype != pl.Boolean and dtype != pl.String and not dtype.is_numeric():
        raise DataError(
            f'column "{name}" is of type {dtype}, which can be neither categorical nor real; '
            "cast it, or leave it out of selected_columns"
        )
    if name in (config.categorical_columns or ()):
        return True
    if name in (config.real_columns or ()):
        return False
    return not dtype.is_float()


def first_line(error: BaseException) -> str:
    """The first line of a library's message, for an error of one line."""
    return (str(error).strip() or type(error).__name__).splitlines()[0]
