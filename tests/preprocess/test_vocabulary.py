"""Vocabularies and statistics: pure, sorted, the same from parts as from the whole."""

from __future__ import annotations

import functools
import hashlib

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sequifier_ray.config.tables import Cardinality
from sequifier_ray.data.metadata import HashedRest
from sequifier_ray.preprocess.columns import code_column, places_in, union_of_values
from sequifier_ray.preprocess.vocabulary import (
    Moments,
    build_id_map,
    fit_moments,
    ids_of_values,
    listed_values,
    n_classes,
    normalize,
)

finite = st.floats(-1e6, 1e6)
texts = st.lists(st.none() | st.text(max_size=4), max_size=30)
numbers = st.lists(st.none() | st.integers(-(2**63), 2**63 - 1), max_size=30)


@given(st.lists(finite, max_size=40), st.lists(finite, max_size=40))
def test_moments_of_parts_give_those_of_the_whole(left: list[float], right: list[float]) -> None:
    merged = Moments.of(np.array(left)).merge(Moments.of(np.array(right)))
    both = np.array(left + right)
    assert merged.count == len(both)
    if len(both) > 1:
        assert merged.mean == pytest.approx(both.mean(), rel=1e-9, abs=1e-6)
        assert merged.std == pytest.approx(both.std(ddof=1), rel=1e-6, abs=1e-6)


def test_moments_are_of_the_given_rows_only() -> None:
    moments = fit_moments(np.array([1.0, 2.0, 3.0, 1e6]), np.array([0, 1, 2]))
    assert (moments.mean, moments.std) == (2.0, 1.0)


def test_a_constant_column_becomes_zeros() -> None:
    column = np.full(1000, 0.1)
    moments = Moments.of(column)
    assert not normalize(column, moments.mean, 0.0).any()
    assert np.abs(normalize(column, moments.mean, moments.std)).max() < 1e-6


@given(texts | numbers, st.integers(0, 30))
def test_coding_in_parts_equals_coding_at_once(values: list[str | int | None], cut: int) -> None:
    dtype = pl.String if any(isinstance(v, str) for v in values) else pl.Int64
    parts = [pl.Series(part, dtype=dtype) for part in (values[:cut], values[cut:])]
    coded = [code_column(part) for part in parts]
    joined = union_of_values([part.values for part in coded])
    known = joined.to_list()
    assert known == sorted({v for v in values if v is not None})
    codes = [int(code) for part in coded for code in places_in(part.values, joined)[part.codes]]
    assert [None if code < 0 else known[code] for code in codes] == values


@given(st.sets(st.text(max_size=3) | st.sampled_from(["[unknown]", "[other]", "[mask]"]), min_size=1))
def test_string_ids_rise_from_3_by_code_point(values: set[str]) -> None:
    id_map = build_id_map(values)
    data = sorted(values - {"[unknown]", "[other]", "[mask]"})
    assert [id_map[value] for value in data] == list(range(3, 3 + len(data)))
    assert n_classes(id_map) == 3 + len(data)
    assert (id_map["[unknown]"], id_map["[other]"]) == (0, 1)
    assert "[mask]" not in id_map


@given(st.sets(st.integers(-1000, 1000), min_size=1))
def test_integer_ids_rise_from_3_by_value(values: set[int]) -> None:
    id_map = build_id_map(values)
    assert [id_map[str(value)] for value in sorted(values)] == list(range(3, 3 + len(values)))


def test_null_other_and_special_names() -> None:
    values = pl.Series(["", " a", "[mask]", "[other]", "[unknown]", "new"])
    ids = ids_of_values(values, build_id_map(["", " a"]))
    assert ids.tolist() == [3, 4, 2, 1, 0, 1, 0]


def test_values_that_have_an_id_of_their_own() -> None:
    values, counts = pl.Series(["a", "b", "c", "d"]), np.array([2, 5, 0, 2])
    assert listed_values(values, counts, None).to_list() == ["a", "b", "d"]
    assert listed_values(values, counts, Cardinality(top_k=2)).to_list() == ["a", "b"]
    assert listed_values(values, counts, Cardinality(min_freq=3)).to_list() == ["b"]
    assert listed_values(values, counts, Cardinality(top_k=9)).to_list() == ["a", "b", "d"]


def test_other_values_go_into_buckets_by_their_hash() -> None:
    hashing = HashedRest(num_buckets=4, seed=7, first_id=5)
    ids = ids_of_values(pl.Series(["a", "new", "b", "[mask]"]), build_id_map(["a", "b"]), hashing)
    digest = hashlib.sha256(b"7:new").digest()
    assert ids.tolist() == [3, 5 + int.from_bytes(digest[:8], "big") % 4, 4, 2, 0]


@given(st.lists(st.lists(finite, max_size=30), min_size=1, max_size=6))
def test_merging_moments_is_associative_to_1e_12(parts: list[list[float]]) -> None:
    moments = [Moments.of(np.array(part)) for part in parts]
    from_left, from_right = functools.reduce(Moments.merge, moments), moments[-1]
    for part in reversed(moments[:-1]):
        from_right = part.merge(from_right)
    scale = max((abs(v) for part in parts for v in part), default=1.0)
    assert from_left.count == from_right.count
    assert abs(from_left.mean - from_right.mean) <= 1e-12 * scale
    assert abs(from_left.squared_deviations - from_right.squared_deviations) <= 1e-12 * scale**2 * 180


def test_missing_values_are_not_fitted_on() -> None:
    moments = fit_moments(np.array([1.0, np.nan, 3.0]), np.arange(3))
    assert (moments.count, moments.mean) == (2, 2.0)
