"""Columns of a table as plain arrays: coded categories and float64 reals."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl

Int32 = npt.NDArray[np.int32]
Int64 = npt.NDArray[np.int64]
Float64 = npt.NDArray[np.float64]

NULL_CODE = -1
# Names of the extra columns of an EventTable.
SPLIT, MASK, CURRICULUM = "split", "mask", "curriculum"


@dataclass(frozen=True)
class CodedColumn:
    """A categorical column: `values` sorted and distinct (strings by code point, or integers), and
    `codes` int32 `[n_rows]`, indices into `values`, -1 for null."""

    values: pl.Series
    codes: Int32


@dataclass(frozen=True)
class EventTable:
    """Rows as arrays of equal length.

    `sequence_keys` are the ids, or the ranks of ids that are text; `codes` those of categorical columns (-1
    for null); reals that are missing are NaN; `extra` holds what is no feature: `split` (integers, or
    microseconds since 1970), `mask` (0, 1), `curriculum`.
    """

    sequence_keys: Int64
    item_positions: Int64
    codes: dict[str, Int32]
    real: dict[str, Float64]
    extra: dict[str, Int64]

    def take(self, rows: Int64) -> EventTable:
        """The table with its rows in another order."""
        return self.map(lambda array: array[rows])

    def map(self, change: Callable[[Any], Any]) -> EventTable:
        """The table of changed arrays."""
        return EventTable(
            change(self.sequence_keys),
            change(self.item_positions),
            {name: change(column) for name, column in self.codes.items()},
            {name: change(column) for name, column in self.real.items()},
            {name: change(column) for name, column in self.extra.items()},
        )


def read_frame(path: Path) -> pl.DataFrame:
    """A frame that `write_ipc` wrote; through a file object, for polars takes a name with [ for a pattern."""
    with path.open("rb") as file:
        return pl.read_ipc(file)


def code_column(column: pl.Series) -> CodedColumn:
    """Code a column of strings or of 64-bit integers over its own distinct values."""
    values = column.drop_nulls().unique().sort()
    if column.dtype == pl.String:
        ranks = column.cast(pl.Enum(values)).to_physical().cast(pl.Int32)
        return CodedColumn(values, ranks.fill_null(NULL_CODE).to_numpy())
    if not len(values):
        return CodedColumn(values, np.full(len(column), NULL_CODE, np.int32))
    known = values.to_numpy()
    codes = np.searchsorted(known, column.fill_null(known[0]).to_numpy()).astype(np.int32)
    codes[column.is_null().to_numpy()] = NULL_CODE
    return CodedColumn(values, codes)


def places_in(values: pl.Series, known: pl.Series) -> Int32:
    """Where each of some distinct values stands among the sorted distinct `known`, and one place more: the
    null code, which the null code -1 finds. All of them must be known."""
    if not len(values):
        return np.full(1, NULL_CODE, np.int32)
    places = known.search_sorted(values).cast(pl.Int32).to_numpy()
    return np.append(places, np.int32(NULL_CODE)).astype(np.int32)


def union_of_values(parts: Sequence[pl.Series]) -> pl.Series:
    """The sorted distinct values of several such series."""
    return pl.concat(parts).unique().sort()
