"""Columns of a table as plain arrays: coded categories and float64 reals."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import polars as pl

Int32 = npt.NDArray[np.int32]
Int64 = npt.NDArray[np.int64]
Float64 = npt.NDArray[np.float64]

NULL_CODE = -1


@dataclass(frozen=True)
class CodedColumn:
    """A categorical column: `values` sorted and distinct (strings by code point, or integers), and
    `codes` int32 `[n_rows]`, indices into `values`, -1 for null."""

    values: pl.Series
    codes: Int32

    def take(self, rows: Int64) -> CodedColumn:
        """The same column with its rows in another order."""
        return CodedColumn(self.values, self.codes[rows])


@dataclass(frozen=True)
class EventTable:
    """Rows as arrays of equal length; `split_values` (integers, or microseconds since 1970) only for
    the value_cutoff split."""

    sequence_ids: Int64
    item_positions: Int64
    categorical: dict[str, CodedColumn]
    real: dict[str, Float64]
    split_values: Int64 | None

    def take(self, rows: Int64) -> EventTable:
        """The table with its rows in another order."""
        return EventTable(
            self.sequence_ids[rows],
            self.item_positions[rows],
            {name: column.take(rows) for name, column in self.categorical.items()},
            {name: column[rows] for name, column in self.real.items()},
            None if self.split_values is None else self.split_values[rows],
        )


def code_values(values: pl.Series, known: pl.Series) -> Int32:
    """Index of every value in the sorted distinct `known`; -1 for null and for values not in it."""
    if known.dtype == pl.String:
        codes = values.cast(pl.Enum(known), strict=False).to_physical()
        return codes.cast(pl.Int32).fill_null(NULL_CODE).to_numpy()
    if len(known) == 0:
        return np.full(len(values), NULL_CODE, np.int32)
    sorted_known = known.to_numpy()
    filled = values.fill_null(sorted_known[0]).to_numpy()
    places = np.minimum(np.searchsorted(sorted_known, filled), len(sorted_known) - 1)
    is_known = (sorted_known[places] == filled) & values.is_not_null().to_numpy()
    return np.where(is_known, places, NULL_CODE).astype(np.int32)


def code_column(column: pl.Series) -> CodedColumn:
    """Code a column of strings or of 64-bit integers over its own distinct values."""
    values = column.drop_nulls().unique().sort()
    return CodedColumn(values, code_values(column, values))


def concatenate_coded(parts: Sequence[CodedColumn]) -> CodedColumn:
    """One column out of several, over the union of their values."""
    if len(parts) == 1:
        return parts[0]
    values = pl.concat([part.values for part in parts]).unique().sort()
    codes = []
    for part in parts:
        # one place more than values, so that the null code -1 finds the null code at the end
        recoded = np.append(code_values(part.values, values), np.int32(NULL_CODE))
        codes.append(recoded[part.codes])
    return CodedColumn(values, np.concatenate(codes))


def concatenate_tables(parts: Sequence[EventTable]) -> EventTable:
    """One table out of several with the same columns, rows in the order of the parts."""
    if len(parts) == 1:
        return parts[0]
    first = parts[0]
    splits = [part.split_values for part in parts if part.split_values is not None]
    return EventTable(
        np.concatenate([part.sequence_ids for part in parts]),
        np.concatenate([part.item_positions for part in parts]),
        {name: concatenate_coded([part.categorical[name] for part in parts]) for name in first.categorical},
        {name: np.concatenate([part.real[name] for part in parts]) for name in first.real},
        np.concatenate(splits) if splits else None,
    )
