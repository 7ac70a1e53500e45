"""What kind of values a column holds: from its Parquet type, or from all the texts of a CSV column."""

from __future__ import annotations

from dataclasses import dataclass

import polars as pl
from polars.datatypes import DataTypeClass

from sequifier_ray.preprocess.dialect import NUMBER_NULLS

INTEGER, REAL, BOOLEAN, TEXT, TIME, EMPTY = "integer", "real", "boolean", "text", "timestamp", "empty"
KINDS = (INTEGER, REAL, BOOLEAN, TEXT, TIME, EMPTY)
# "007" is a code: as a number it would lose what tells it from "7"
CODE_PATTERN = r"^[+-]?0\d+$"
WHOLE_PATTERN = r"^[+-]?\d+$"
TRUE_AND_FALSE = ("true", "false")
# Where the first text of a text column mostly is.
FEW_ROWS = 1000


def kind_of_type(dtype: pl.DataType | DataTypeClass) -> str:
    """The kind of a typed column; the type's own name where it is none that can be used."""
    if dtype.is_integer():
        return INTEGER
    if dtype.is_float() or dtype.is_decimal():
        return REAL
    if dtype in (pl.String, pl.Categorical, pl.Enum, pl.Binary):
        return TEXT
    if dtype in (pl.Date, pl.Datetime):
        return TIME
    if dtype == pl.Null:
        return EMPTY
    return BOOLEAN if dtype == pl.Boolean else str(dtype)


@dataclass(frozen=True)
class Evidence:
    """What the texts of a column look like; that of two parts is merged into that of both.

    `values` counts texts that are not missing by any rule, `nulls` those that mean a missing number (`NA`),
    `whole` those of digits alone, `integers` those of them that are 64-bit integers as usually written.
    `first_text` is the place (file, row from 1) and text of the first value that is no number.
    """

    values: int = 0
    numbers: int = 0
    whole: int = 0
    integers: int = 0
    codes: int = 0
    booleans: int = 0
    nulls: int = 0
    first_text: tuple[int, int, str] | None = None

    def merge(self, other: Evidence) -> Evidence:
        """The evidence of both parts."""
        firsts = [e.first_text for e in (self, other) if e.first_text is not None]
        return Evidence(
            self.values + other.values,
            self.numbers + other.numbers,
            self.whole + other.whole,
            self.integers + other.integers,
            self.codes + other.codes,
            self.booleans + other.booleans,
            self.nulls + other.nulls,
            min(firsts) if firsts else None,
        )

    @property
    def kind(self) -> str:
        """The narrowest kind that all values have."""
        if not self.values:
            return TEXT if self.nulls else EMPTY
        if self.is_whole:
            return INTEGER if self.integers == self.values else TEXT
        if self.numbers == self.values and not self.codes:
            return REAL
        return BOOLEAN if self.booleans == self.values else TEXT

    @property
    def is_whole(self) -> bool:
        """All values are digits: integers, or codes such as `007`, `+1` or what 64 bits do not hold."""
        return self.whole == self.values > 0

    @property
    def is_doubtful(self) -> bool:
        """A text column that is mostly numbers."""
        return self.kind == TEXT and not (self.codes or self.is_whole) and self.numbers * 2 > self.values


def evidence_of(column: pl.Series, decimal: str, file: int, first_row: int) -> Evidence:
    """Look at a block of texts; `first_row` is the number of its first row, from 1."""
    # Each distinct text is looked at once.
    counted = column.drop_nulls().alias("text").value_counts(name="rows")
    texts, rows = counted["text"], counted["rows"]
    stripped = texts.str.strip_chars()
    is_null = stripped.is_in(NUMBER_NULLS)
    is_number = as_numbers(texts, decimal).is_not_null() & ~is_null
    is_text = ~is_null & ~is_number

    def n_rows(mask: pl.Series) -> int:
        return int(rows.filter(mask).sum())

    return Evidence(
        values=n_rows(~is_null),
        numbers=n_rows(is_number),
        whole=n_rows(stripped.str.contains(WHOLE_PATTERN)),
        integers=n_rows(are_canonical(texts)),
        codes=n_rows(stripped.str.contains(CODE_PATTERN)),
        booleans=n_rows(stripped.str.to_lowercase().is_in(TRUE_AND_FALSE)),
        nulls=n_rows(is_null),
        first_text=_first(column, texts.filter(is_text), file, first_row),
    )


def _first(column: pl.Series, texts: pl.Series, file: int, first_row: int) -> tuple[int, int, str] | None:
    """The first row that holds one of some texts."""
    if not len(texts):
        return None
    for rows in (column.head(FEW_ROWS), column):
        found = rows.is_in(texts.implode()).fill_null(value=False)
        if found.any():
            row = int(found.arg_max() or 0)
            return file, first_row + row, str(column[row])
    raise AssertionError("the texts come from these rows")


def as_text(column: pl.Series) -> pl.Series:
    """A column as texts; null also where bytes are no UTF-8."""
    if column.dtype != pl.Binary:
        return column.cast(pl.String)
    try:
        return column.cast(pl.String)
    except pl.exceptions.ComputeError:
        return pl.Series(column.name, [_decoded(value) for value in column], dtype=pl.String)


def _decoded(value: bytes | None) -> str | None:
    try:
        return None if value is None else value.decode()
    except UnicodeDecodeError:
        return None


def as_integers(column: pl.Series) -> pl.Series:
    """Texts as 64-bit integers, null where they are none; blanks around them do not matter."""
    return _cast(column, pl.Int64)


def are_canonical(texts: pl.Series) -> pl.Series:
    """Whether each text is what its own 64-bit integer is written like: of two such texts one integer never
    stands for both. Blanks around them do not matter."""
    return (as_integers(texts).cast(pl.String) == texts.str.strip_chars()).fill_null(value=False)


def as_numbers(column: pl.Series, decimal: str) -> pl.Series:
    """Texts as float64, null where they are none; blanks around them do not matter."""
    if decimal != ".":
        # of two marks in one column one separates thousands
        column = column.str.replace(r"(?s)^.*\..*$", "?").str.replace(decimal, ".", literal=True)
    return _cast(column, pl.Float64)


def _cast(column: pl.Series, dtype: type[pl.DataType]) -> pl.Series:
    cast = column.cast(dtype, strict=False)
    if cast.null_count() > column.null_count():
        again = column.str.strip_chars().cast(dtype, strict=False)
        cast = cast.fill_null(again)
    return cast
