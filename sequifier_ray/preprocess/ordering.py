"""Events in their one order, (sequence, position), whatever the order of the input rows."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import polars as pl

from sequifier_ray.preprocess.columns import EventTable, Int64
from sequifier_ray.preprocess.flaws import Flaw


def order_events(table: EventTable) -> EventTable:
    """The table sorted by (sequence, position), exactly, on int64."""
    if _is_sorted(table.sequence_keys, table.item_positions):
        return table
    keys = pl.DataFrame({"sequence": table.sequence_keys, "position": table.item_positions})
    rows = keys.select(pl.arg_sort_by("sequence", "position")).to_series().cast(pl.Int64).to_numpy()
    return table.take(rows)


def _is_sorted(keys: Int64, positions: Int64) -> bool:
    later, earlier = keys[1:], keys[:-1]
    return bool(((later > earlier) | ((later == earlier) & (positions[1:] >= positions[:-1]))).all())


def position_flaws(
    table: EventTable, *, consecutive: bool, name_of: Callable[[int], object], partition: int
) -> list[Flaw]:
    """Repeated positions of a sorted table, and gaps where positions must be `consecutive`; `name_of` gives
    the id of a sequence key."""
    keys, positions = table.sequence_keys, table.item_positions
    is_same = keys[1:] == keys[:-1]
    flaws = []
    repeated = np.flatnonzero(is_same & (positions[1:] == positions[:-1]))
    if len(repeated):
        row = int(repeated[0])
        first = f"({name_of(int(keys[row]))}, {positions[row]})"
        flaws.append(
            Flaw(
                "the (sequenceId, itemPosition) of another row occurs again {n} time{s}",
                len(repeated),
                (partition, row),
                first,
                "every pair may occur once",
            )
        )
    gaps = np.flatnonzero(is_same & (positions[1:] != positions[:-1] + 1) & (positions[1:] != positions[:-1]))
    if consecutive and len(gaps):
        row = int(gaps[0])
        where = f"in sequenceId {name_of(int(keys[row]))} between {positions[row]} and {positions[row + 1]}"
        flaws.append(
            Flaw(
                "itemPosition has {n} gap{s}",
                len(gaps),
                (partition, row),
                where,
                "positions must rise by exactly one within a sequence: set item_position: order if gaps are "
                "meant, or number the rows of every sequence anew",
            )
        )
    return flaws
