"""Facts about a table or data set: plain values, ready for JSON."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from sequifier_ray.preprocess.measure import count_windows

Int64 = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Lengths:
    """Quartiles of lengths, in events: those of sequences, or of the segments of a split."""

    minimum: int
    quartile_1: int
    median: int
    quartile_3: int
    maximum: int

    @staticmethod
    def of(histogram: Mapping[int, int]) -> Lengths:
        """From length → count; the nearest length that occurs."""
        lengths = np.array(sorted(histogram), np.int64)
        ends = np.cumsum([histogram[length] for length in lengths.tolist()])
        places = np.searchsorted(ends, np.array([0.25, 0.5, 0.75]) * ends[-1])
        first, second, third = lengths[np.minimum(places, len(lengths) - 1)].tolist()
        return Lengths(int(lengths[0]), first, second, third, int(lengths[-1]))


@dataclass(frozen=True)
class ColumnFacts:
    """One column. `distinct` None: not counted; `distinct_is_least`: there are more than could be counted.
    Of a table its range, of a preprocessed data set the mean and deviation that it was normalised with.
    """

    name: str
    role: str
    kind: str
    missing: int | None
    distinct: int | None
    distinct_is_least: bool
    minimum: str | None = None
    maximum: str | None = None
    mean: float | None = None
    std: float | None = None


@dataclass(frozen=True)
class SplitFacts:
    """One split: `windows` are the samples at one view a window; `padding_share` of their places hold no
    event; `windows_per_rank` counts those of the rank with most; `bytes` of its shards, estimated before
    there are any.
    """

    name: str
    segments: int
    events: int
    lengths: Lengths
    windows: int
    padding_share: float
    shards: int
    bytes: int
    bytes_are_estimated: bool
    windows_per_rank: int | None


@dataclass(frozen=True)
class Facts:
    """All there is to say; `length_histogram` is (length, count), `window` the width and stride of the
    windows."""

    path: str
    kind: str
    files: int
    bytes: int
    rows: int
    sequences: int | None
    lengths: Lengths | None
    length_histogram: tuple[tuple[int, int], ...]
    columns: tuple[ColumnFacts, ...]
    window: tuple[int, int] | None
    splits: tuple[SplitFacts, ...]
    world_size: int | None
    verified: bool


def split_facts(
    name: str,
    histogram: Mapping[int, int],
    window: tuple[int, int],
    shards: int,
    n_bytes: int,
    *,
    is_estimate: bool,
    world_size: int | None,
) -> SplitFacts:
    """A split with these segment lengths (length → count), in windows of some (width, stride)."""
    lengths = np.array(sorted(histogram), np.int64)
    counts = np.array([histogram[length] for length in lengths.tolist()], np.int64)
    width, stride = window
    each = np.array([count_windows(lengths[i : i + 1], width, stride) for i in range(len(lengths))], np.int64)
    windows = int((each * counts).sum())
    padding = int((np.maximum(width - lengths, 0) * counts).sum())
    return SplitFacts(
        name=name,
        segments=int(counts.sum()),
        events=int((lengths * counts).sum()),
        lengths=Lengths.of(histogram),
        windows=windows,
        padding_share=padding / (windows * width),
        shards=shards,
        bytes=n_bytes,
        bytes_are_estimated=is_estimate,
        windows_per_rank=None if world_size is None else -(-windows // world_size),
    )


def histogram_of(lengths: Int64) -> dict[int, int]:
    """Length → count."""
    values, counts = np.unique(lengths, return_counts=True)
    return dict(zip(values.tolist(), counts.tolist(), strict=True))
