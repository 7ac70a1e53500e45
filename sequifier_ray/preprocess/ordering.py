"""Events in their one order, (sequenceId, itemPosition), whatever the order of the input rows."""

from __future__ import annotations

import numpy as np
import polars as pl

from sequifier_ray.errors import DataError
from sequifier_ray.preprocess.columns import EventTable, Int64


def order_events(table: EventTable) -> EventTable:
    """The table sorted by (sequenceId, itemPosition), exactly, on int64.

    Raises DataError for duplicates, and for gaps: positions rise by exactly one within a sequence.
    """
    if not _is_sorted(table.sequence_ids, table.item_positions):
        keys = pl.DataFrame({"sequence": table.sequence_ids, "position": table.item_positions})
        rows = keys.select(pl.arg_sort_by("sequence", "position")).to_series().cast(pl.Int64).to_numpy()
        table = table.take(rows)
    _check_positions(table.sequence_ids, table.item_positions)
    return table


def _is_sorted(sequence_ids: Int64, positions: Int64) -> bool:
    later, earlier = sequence_ids[1:], sequence_ids[:-1]
    return bool(((later > earlier) | ((later == earlier) & (positions[1:] > positions[:-1]))).all())


def _check_positions(sequence_ids: Int64, positions: Int64) -> None:
    same_sequence = sequence_ids[1:] == sequence_ids[:-1]
    repeated = np.flatnonzero(same_sequence & (positions[1:] == positions[:-1]))
    if len(repeated):
        first = repeated[0]
        raise DataError(
            f"{len(repeated):,} row{'s' * (len(repeated) > 1)} repeat the (sequenceId, itemPosition) of "
            f"another, first ({sequence_ids[first]}, {positions[first]}); every pair may occur once"
        )
    gaps = np.flatnonzero(same_sequence & (positions[1:] != positions[:-1] + 1))
    if len(gaps):
        first = gaps[0]
        raise DataError(
            f"itemPosition has {len(gaps):,} gap{'s' * (len(gaps) > 1)}, first in sequenceId "
            f"{sequence_ids[first]} between {positions[first]} and {positions[first + 1]}; positions must "
            "rise by exactly one within a sequence: number the rows of every sequence anew"
        )
