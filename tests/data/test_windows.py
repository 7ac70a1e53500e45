"""Windows and samples against plain Python."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sequifier_ray.data.windows import ViewSpec, locate_samples, samples_per_segment, window_starts
from sequifier_ray.errors import ConfigError

common = settings(max_examples=150, deadline=None)


def naive_starts(length: int, width: int, stride: int) -> list[int]:
    if length <= width:
        return [0]
    n = math.ceil((length - width) / stride) + 1
    return sorted({int(x) for x in np.floor(np.linspace(0, length - width, n))})


def naive_samples(length: int, spec: ViewSpec) -> list[int]:
    """First event of every sample of a segment, in order."""
    w, m, c, t = spec.window_length, spec.max_target_offset, spec.context_length, spec.target_offset
    starts = naive_starts(length, w, spec.window_stride) if length >= w else [length - w]
    firsts = []
    for start in starts:
        position = w - m - c
        while position >= 0:
            if start + position + c + t - 1 >= 0:  # the last target is an event
                firsts.append(start + position)
            if spec.view_stride is None:
                break
            position -= spec.view_stride
    return firsts


@pytest.mark.parametrize("length", [1, 2, 32, 33, 34, 65, 66, 100_000])
@pytest.mark.parametrize("stride", [1, 8, 33, 40])
def test_window_starts(length: int, stride: int) -> None:
    assert window_starts(length, 33, stride).tolist() == naive_starts(length, 33, stride)


@st.composite
def specs(draw: st.DrawFn) -> ViewSpec:
    context = draw(st.integers(1, 8))
    offset = draw(st.integers(1, 3))
    most = draw(st.integers(offset, 4))
    return ViewSpec(
        window_length=context + most + draw(st.integers(0, 9)),
        window_stride=draw(st.integers(1, 12)),
        max_target_offset=most,
        context_length=context,
        target_offset=offset,
        view_stride=draw(st.none() | st.integers(1, 6)),
    )


@common
@given(specs(), st.lists(st.integers(1, 60), min_size=1, max_size=8))
def test_samples_equal_plain_python(spec: ViewSpec, lengths: list[int]) -> None:
    array = np.array(lengths, dtype=np.int64)
    wanted = [(s, first) for s, length in enumerate(lengths) for first in naive_samples(length, spec)]
    counts = samples_per_segment(array, spec)
    assert counts.tolist() == [len(naive_samples(length, spec)) for length in lengths]
    numbers = np.random.default_rng(0).permutation(len(wanted))
    segments, firsts = locate_samples(numbers, np.cumsum(counts), array, spec)
    assert list(zip(segments.tolist(), firsts.tolist(), strict=True)) == [wanted[i] for i in numbers]
    for segment, first in wanted:
        assert first + spec.width <= lengths[segment]


def test_views_that_do_not_fit() -> None:
    text = r"context_length: 33 \+ max_target_offset 1 > window_length 33; use a context_length of at most 32"
    with pytest.raises(ConfigError, match=text):
        ViewSpec(33, 8, 1, 33, 1)
    with pytest.raises(
        ConfigError, match=r"target_offset: 2 is larger than the data set's max_target_offset 1"
    ):
        ViewSpec(33, 8, 1, 20, 2)
