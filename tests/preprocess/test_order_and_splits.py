"""The order of events and the cut into splits, against definitions written out plainly."""

from __future__ import annotations

import hashlib
from datetime import date, datetime, timedelta, timezone

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from sequifier_ray.preprocess.columns import SPLIT, EventTable
from sequifier_ray.preprocess.ordering import order_events, position_flaws
from sequifier_ray.preprocess.partitions import cut_partitions
from sequifier_ray.preprocess.splits import (
    Segments,
    between_sequence_split,
    boundary_value,
    sequence_lengths,
    value_cutoff_bounds,
    within_sequence_bounds,
)

lengths_strategy = st.lists(st.integers(1, 60), min_size=1, max_size=30)


def table_of(ids: np.ndarray, positions: np.ndarray, values: np.ndarray | None = None) -> EventTable:
    extra = {} if values is None else {SPLIT: values}
    return EventTable(ids, positions, {}, {"row": positions * 1000.0 + ids}, extra)


@given(lengths_strategy, st.integers(0, 2**32 - 1))
def test_any_row_order_gives_the_same_table(lengths: list[int], seed: int) -> None:
    # ids and positions that differ only beyond the precision of float32 and float64
    ids = np.repeat(np.arange(len(lengths)) + 2**60, lengths)
    positions = np.concatenate([np.arange(n) + 2**60 for n in lengths])
    rows = np.random.default_rng(seed).permutation(len(ids))
    table = order_events(table_of(ids[rows], positions[rows]))
    np.testing.assert_array_equal(table.sequence_keys, ids)
    np.testing.assert_array_equal(table.item_positions, positions)


def test_ids_far_apart_do_not_overflow() -> None:
    ids = np.array([2**63 - 1, -(2**63), -(2**63)])
    table = order_events(table_of(ids, np.array([5, 1, 0])))
    assert table.sequence_keys.tolist() == sorted(ids.tolist())
    assert table.real["row"].tolist() == [0.0 + -(2.0**63), 1000.0 - 2.0**63, 5000.0 + 2.0**63]


def test_a_negative_gap_is_a_duplicate_only_when_equal() -> None:
    table = order_events(table_of(np.array([1, 1, 2]), np.array([4, 4, 0])))
    (flaw,) = position_flaws(table, consecutive=True, name_of=str, partition=0)
    assert flaw.text() == (
        "the (sequenceId, itemPosition) of another row occurs again 1 time, first (1, 4); every pair may "
        "occur once"
    )


@given(lengths_strategy, st.sampled_from([[0.8, 0.1, 0.1], [0.7, 0.2, 0.1], [1.0], [0.6, 0.4]]))
def test_within_sequence_bounds(lengths: list[int], ratios: list[float]) -> None:
    bounds = within_sequence_bounds(np.array(lengths), ratios)
    for n, row in zip(lengths, bounds.tolist(), strict=True):
        assert row == [*(int(upper * n) for upper in np.cumsum(ratios)[:-1]), n]


def test_ratios_that_sum_to_a_little_more_than_1_do_not_reach_into_the_next_sequence() -> None:
    bounds = within_sequence_bounds(np.array([2_000_000, 5]), [0.5, 0.5000009])
    assert bounds.tolist() == [[1_000_000, 2_000_000], [2, 5]]


@given(st.lists(st.integers(-(2**62), 2**62), min_size=1, max_size=20, unique=True), st.integers(0, 9999))
def test_between_sequence_split(ids: list[int], seed: int) -> None:
    ratios = [0.5, 0.25, 0.25]
    for identity, split in zip(ids, between_sequence_split(ids, ratios, seed), strict=True):
        number = int.from_bytes(hashlib.sha256(f"{seed}:{identity}".encode()).digest()[:8], "big")
        assert split == sum(number / 2**64 >= upper for upper in (0.5, 0.75))


@given(lengths_strategy, st.lists(st.integers(0, 100), min_size=1, max_size=3, unique=True), st.data())
def test_value_cutoff_bounds(lengths: list[int], boundaries: list[int], data: st.DataObject) -> None:
    per_sequence = [
        sorted(data.draw(st.lists(st.integers(-5, 105), min_size=n, max_size=n))) for n in lengths
    ]
    ids = np.repeat(np.arange(len(lengths)), lengths)
    positions = np.concatenate([np.arange(n) for n in lengths])
    table = table_of(ids, positions, np.concatenate(per_sequence).astype(np.int64))
    ordered = np.array(sorted(boundaries))
    bounds = value_cutoff_bounds(table.extra[SPLIT], sequence_lengths(ids)[0], ordered)
    for values, row in zip(per_sequence, bounds.tolist(), strict=True):
        assert row == [sum(v < b for v in values) for b in ordered.tolist()] + [len(values)]


def test_boundaries_are_integers_or_moments_in_utc() -> None:
    midnight = datetime(2024, 1, 2, tzinfo=timezone.utc)
    microseconds = int(midnight.timestamp()) * 1_000_000
    east = timezone(timedelta(hours=2))
    moments = (midnight, datetime(2024, 1, 2), datetime(2024, 1, 2, 2, tzinfo=east), date(2024, 1, 2))
    for moment in (*moments, "2024-01-02", "2024-01-02T00:00:00Z"):
        assert boundary_value(moment) == microseconds
    assert boundary_value(datetime(1969, 12, 31, 23, 59, 59, 999_999)) == -1
    assert boundary_value(17) == 17


def test_rows_of_segments() -> None:
    segments = Segments(np.array([10, 20, 30]), np.array([2, 1, 3]))
    assert segments.rows().tolist() == [10, 11, 20, 30, 31, 32]
    assert segments.slice(1, 3).rows().tolist() == [20, 30, 31, 32]


@given(st.lists(st.integers(1, 500), min_size=1, max_size=60), st.integers(1, 20), st.integers(20, 4000))
def test_partitions_hold_whole_sequences_and_about_equal_events(
    lengths: list[int], width: int, target: int
) -> None:
    cuts = cut_partitions(np.array(lengths), width, target)
    n_events = sum(lengths)
    n_partitions = len(cuts) - 1
    assert cuts[0] == 0
    assert cuts[-1] == len(lengths)
    assert (np.diff(cuts) >= 1).all()
    assert n_partitions == min(max(-(-n_events * width // target), 8), len(lengths))
    events = np.add.reduceat(lengths, cuts[:-1])
    if n_partitions * 4 <= len(lengths):
        assert events.max() <= n_events / n_partitions + 2 * max(lengths)
