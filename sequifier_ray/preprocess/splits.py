"""Which part of every sequence lies in which split."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import date, datetime, timedelta, timezone
from typing import TYPE_CHECKING

import numpy as np
import polars as pl

from sequifier_ray.errors import DataError
from sequifier_ray.preprocess.columns import SPLIT, EventTable, Int64
from sequifier_ray.preprocess.flaws import Flaw, quoted

if TYPE_CHECKING:
    from sequifier_ray.config.preprocess import PreprocessConfig


@dataclass(frozen=True)
class Segments:
    """The segments of one split, in the order of the sequences: all arrays int64 `[n_segments]`.

    Segment s is rows `start_rows[s]` to `start_rows[s] + lengths[s]` of the sorted table.
    """

    start_rows: Int64
    lengths: Int64

    @property
    def n_events(self) -> int:
        """Events of all segments together."""
        return int(self.lengths.sum())

    def slice(self, start: int, stop: int) -> Segments:
        """Segments start to stop."""
        return Segments(self.start_rows[start:stop], self.lengths[start:stop])

    def rows(self) -> Int64:
        """Row of every event, int64 `[n_events]`, without a loop over segments."""
        starts_in_split = np.cumsum(self.lengths) - self.lengths
        return np.repeat(self.start_rows - starts_in_split, self.lengths) + np.arange(self.n_events)


def sequence_lengths(sequence_keys: Int64) -> tuple[Int64, Int64]:
    """First row and number of rows of every sequence of a sorted id column, both `[n_sequences]`."""
    first_rows = np.flatnonzero(np.append(True, sequence_keys[1:] != sequence_keys[:-1]))
    return first_rows, np.diff(first_rows, append=len(sequence_keys))


def within_sequence_bounds(lengths: Int64, ratios: Sequence[float]) -> Int64:
    """Upper bounds int(cumsum(ratios) * n) of every split in every sequence, `[n_sequences, n_splits]`.

    Ratios that sum to 1 may do so but nearly in floating point: no bound is beyond n, and the last one is n.
    """
    bounds = (np.cumsum(ratios)[None, :] * lengths[:, None]).astype(np.int64)
    bounds[:, -1] = lengths
    return np.minimum(bounds, lengths[:, None])


def between_sequence_split(sequence_ids: Sequence[int | str], ratios: Sequence[float], seed: int) -> Int64:
    """Split of every sequence: the first 8 bytes of sha256("<seed>:<sequenceId>") over 2^64, looked up in
    cumsum(ratios)."""
    prefix = hashlib.sha256(f"{seed}:".encode())
    digests = bytearray()
    for sequence_id in sequence_ids:
        digest = prefix.copy()
        digest.update(str(sequence_id).encode())
        digests += digest.digest()[:8]
    fractions = np.frombuffer(bytes(digests), ">u8") / 2.0**64
    splits = np.searchsorted(np.cumsum(ratios), fractions, side="right")
    return np.minimum(splits, len(ratios) - 1)


def boundary_value(value: int | datetime | date | str) -> int:
    """One of `split_values` as an integer: itself, or microseconds since 1970 (no time zone means UTC)."""
    if isinstance(value, int):
        return value
    if isinstance(value, str):
        value = datetime.fromisoformat(value.replace("Z", "+00:00"))
    if not isinstance(value, datetime):
        value = datetime(value.year, value.month, value.day)
    moment = value if value.tzinfo is not None else value.replace(tzinfo=timezone.utc)
    return (moment - datetime(1970, 1, 1, tzinfo=timezone.utc)) // timedelta(microseconds=1)


def value_cutoff_bounds(values: Int64, first_rows: Int64, boundaries: Int64) -> Int64:
    """Upper bounds of every split in every sequence, `[n_sequences, n_splits]`; a value equal to a
    boundary lies in the later split. `values` never decrease within a sequence."""
    counts = [np.add.reduceat((values < b).astype(np.int64), first_rows) for b in boundaries]
    lengths = np.diff(first_rows, append=len(values))
    return np.stack([*counts, lengths], axis=1)


def decreasing_flaws(
    table: EventTable, column: str, name_of: Callable[[int], object], partition: int
) -> list[Flaw]:
    """Where the split column of a sorted table decreases within a sequence."""
    keys, values = table.sequence_keys, table.extra[SPLIT]
    falls = np.flatnonzero((keys[1:] == keys[:-1]) & (values[1:] < values[:-1]))
    if not len(falls):
        return []
    row = int(falls[0]) + 1
    first = f"in sequenceId {name_of(int(keys[row]))} at itemPosition {table.item_positions[row]}"
    subject = f"split_column {quoted(column)} decreases {{n}} time{{s}} within a sequence"
    remedy = "value_cutoff needs a column that never decreases within a sequence"
    return [Flaw(subject, len(falls), (partition, row), first, remedy)]


def cut_splits(table: EventTable, config: PreprocessConfig, ids: pl.Series) -> tuple[Segments, ...]:
    """The segments of every split of a sorted table; segments without events do not exist.

    `ids` are the ids of its sequences, in order.
    """
    first_rows, lengths = sequence_lengths(table.sequence_keys)
    if config.split_method == "value_cutoff":
        assert config.split_values is not None
        boundaries = np.array([boundary_value(value) for value in config.split_values], np.int64)
        upper = value_cutoff_bounds(table.extra[SPLIT], first_rows, boundaries)
    elif config.split_method == "within_sequence":
        upper = within_sequence_bounds(lengths, _ratios(config))
    else:
        split = between_sequence_split(ids.to_list(), _ratios(config), config.seed)
        is_past = split[:, None] <= np.arange(len(_ratios(config)))[None, :]
        upper = np.where(is_past, lengths[:, None], 0)
    lower = np.concatenate([np.zeros((len(upper), 1), np.int64), upper[:, :-1]], axis=1)
    splits = []
    for i in range(upper.shape[1]):
        has_events = upper[:, i] > lower[:, i]
        starts = first_rows[has_events] + lower[has_events, i]
        splits.append(Segments(starts, (upper - lower)[has_events, i]))
    return tuple(splits)


def refuse_empty_splits(
    events: Sequence[int], config: PreprocessConfig, n_sequences: int, longest: int
) -> None:
    """Raise DataError where a split of `events` events has none."""
    for i, count in enumerate(events):
        if not count:
            raise DataError(
                f"split {i} of {len(events)} has no events: the {config.split_method} split of "
                f"{n_sequences:,} sequences (longest: {longest:,} events) leaves nothing for it; "
                f"change {'split_values' if config.split_values else 'split_ratios'}, or give more data"
            )


def _ratios(config: PreprocessConfig) -> Sequence[float]:
    assert config.split_ratios is not None
    return config.split_ratios
