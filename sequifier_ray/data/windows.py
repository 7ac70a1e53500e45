"""Segment lengths → windows → samples: pure arithmetic, nothing is stored.

A stored window is W events wide; a segment shorter than W is padded on the left. A sample is a view of C
inputs (and the C events ``target_offset`` later) inside a window. All positions below are relative to
the segment's first event, so that negative ones are padding.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from sequifier_ray.errors import ConfigError

Int64 = npt.NDArray[np.int64]


@dataclass(frozen=True)
class ViewSpec:
    """Which samples a window holds.

    Lengths and offsets are in events: ``window_length`` W, ``window_stride`` S, ``max_target_offset`` M,
    ``context_length`` C, ``target_offset`` t. ``view_stride`` None: one view per window, at its right end.

    Raises:
        ConfigError: C + M > W, or t > M.
    """

    window_length: int
    window_stride: int
    max_target_offset: int
    context_length: int
    target_offset: int
    view_stride: int | None = None

    def __post_init__(self) -> None:
        if self.context_length + self.max_target_offset > self.window_length:
            raise ConfigError(
                f"global_training.context_length: {self.context_length} + max_target_offset "
                f"{self.max_target_offset} > "
                f"window_length {self.window_length}; use a context_length of at most "
                f"{self.window_length - self.max_target_offset}, or preprocess with window_length "
                f"{self.context_length + self.max_target_offset} or more"
            )
        if self.target_offset > self.max_target_offset:
            raise ConfigError(
                f"global_training.target_offset: {self.target_offset} is larger than the data set's "
                "max_target_offset "
                f"{self.max_target_offset}; lower it, or preprocess with a larger max_target_offset"
            )

    @property
    def width(self) -> int:
        """Events that a sample gathers: its inputs are the first C of them, its targets the last C."""
        return self.context_length + self.target_offset

    @property
    def views_per_window(self) -> int:
        if self.view_stride is None:
            return 1
        return (self.window_length - self.max_target_offset - self.context_length) // self.view_stride + 1

    def view_starts(self, views: Int64) -> Int64:
        """Window positions of views' first events, (n,) → (n,); view 0 is the rightmost."""
        rightmost = self.window_length - self.max_target_offset - self.context_length
        starts: Int64 = rightmost - views * (self.view_stride or 0)
        return starts


def window_counts(lengths: Int64, window_length: int, window_stride: int) -> Int64:
    """Windows per segment: ceil((L − W) / S) + 1, or one where L < W; (n,) → (n,)."""
    beyond = np.maximum(lengths - window_length, 0)
    return -(-beyond // window_stride) + 1


def window_starts(length: int, window_length: int, window_stride: int) -> Int64:
    """Starts of one segment's windows: the distinct floor(linspace(0, L − W, ceil((L − W) / S) + 1))."""
    n = int(window_counts(np.array([length]), window_length, window_stride)[0])
    return _start_of(np.arange(n), np.full(n, length), np.full(n, n), window_length)


def _start_of(window: Int64, lengths: Int64, counts: Int64, window_length: int) -> Int64:
    """Start of window k of segments of given lengths and window counts; all (n,)."""
    last = np.maximum(lengths - window_length, 0)
    # The arithmetic of numpy's linspace: k times a float64 step, and the exact end for the last one.
    step = last / np.maximum(counts - 1, 1)
    starts = np.floor(window * step).astype(np.int64)
    return np.where(window == counts - 1, last, starts)


def samples_per_segment(lengths: Int64, spec: ViewSpec) -> Int64:
    """Samples of each segment, (n,) → (n,).

    All views of all windows where L ≥ W. Of a shorter segment those whose last target is an event: view v
    ends at event L − M + t − 1 − v · view_stride.
    """
    n_views = spec.views_per_window
    full = window_counts(lengths, spec.window_length, spec.window_stride) * n_views
    last_target = lengths - spec.max_target_offset + spec.target_offset - 1
    short = np.where(last_target < 0, 0, np.minimum(n_views, last_target // (spec.view_stride or 1) + 1))
    return np.where(lengths >= spec.window_length, full, short).astype(np.int64)


def locate_samples(samples: Int64, ends: Int64, lengths: Int64, spec: ViewSpec) -> tuple[Int64, Int64]:
    """Sample numbers within a shard → (segment, first event of the view); all (n,).

    ``ends`` are the cumulative samples per segment. A first event below 0 means that many padded events.
    """
    segments = np.searchsorted(ends, samples, side="right")
    within = samples - np.where(segments > 0, ends[segments - 1], 0)
    length = lengths[segments]
    is_full = length >= spec.window_length
    view = np.where(is_full, within % spec.views_per_window, within)
    window = np.where(is_full, within // spec.views_per_window, 0)
    counts = window_counts(length, spec.window_length, spec.window_stride)
    full_starts = _start_of(window, length, counts, spec.window_length)
    starts = np.where(is_full, full_starts, length - spec.window_length)
    return segments.astype(np.int64), starts + spec.view_starts(view)
