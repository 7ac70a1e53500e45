"""What one partition says about the whole: counts, moments, values of its events, and what is wrong."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import numpy as np

from sequifier_ray import storage
from sequifier_ray.preprocess.columns import EventTable, Int32, Int64
from sequifier_ray.preprocess.flaws import Flaw
from sequifier_ray.preprocess.job import Job
from sequifier_ray.preprocess.ordering import position_flaws
from sequifier_ray.preprocess.splits import Segments, cut_splits, decreasing_flaws
from sequifier_ray.preprocess.vocabulary import Moments, fit_moments


@dataclass(frozen=True)
class SplitPart:
    """A partition's share of one split: `windows` at the stored width and stride, `padding` the places in
    them that no event fills."""

    segments: int
    events: int
    windows: int
    padding: int


@dataclass(frozen=True)
class PartitionFit:
    """Of all rows: their number and the missing values of each real column. Of the rows that are fitted on:
    moments of real columns, and how often each value of a category occurs (codes and counts)."""

    rows: int
    splits: tuple[SplitPart, ...]
    missing: dict[str, int]
    moments: dict[str, Moments]
    counts: dict[str, tuple[Int64, Int64]]
    flaws: list[Flaw]

    def save(self, path: Path) -> None:
        """Write to a file that is seen whole or not at all: a line of JSON, then the codes and the counts.

        No .npz: NumPy parses its headers with `ast`, which CPython 3.11 cannot do in two threads at once.
        """
        sizes = {name: len(codes) for name, (codes, _) in self.counts.items()}
        head = json.dumps(asdict(replace(self, counts=sizes)))  # type: ignore[arg-type]
        arrays = [array.astype(np.int64).tobytes() for pair in self.counts.values() for array in pair]
        storage.write_atomic(str(path), b"".join([head.encode(), b"\n", *arrays]))

    @staticmethod
    def load(path: Path) -> PartitionFit:
        """Read what `save` wrote."""
        head, body = path.read_bytes().split(b"\n", 1)
        values, arrays, counts, start = json.loads(head), np.frombuffer(body, np.int64), {}, 0
        for name, size in values["counts"].items():
            counts[name] = (arrays[start : start + size], arrays[start + size : start + 2 * size])
            start += 2 * size
        return PartitionFit(
            values["rows"],
            tuple(SplitPart(**part) for part in values["splits"]),
            values["missing"],
            {name: Moments(**moments) for name, moments in values["moments"].items()},
            counts,
            [Flaw.from_json(flaw) for flaw in values["flaws"]],
        )


def fit_partition(job: Job, partition: int) -> PartitionFit:
    """Measure one partition; what an interrupted run has measured is taken as it is."""
    path = job.work / f"fit-{partition:05d}"
    if path.exists():
        return PartitionFit.load(path)
    fit = measure(job, job.read(partition), partition)
    fit.save(path)
    return fit


def measure(job: Job, table: EventTable, partition: int) -> PartitionFit:
    """Measure the sorted rows of one partition."""
    config = job.config
    flaws = position_flaws(
        table, consecutive=config.item_position == "consecutive", name_of=job.name_of, partition=partition
    )
    if config.split_method == "value_cutoff":
        assert config.split_column is not None
        flaws += decreasing_flaws(table, config.split_column, job.name_of, partition)
    splits = cut_splits(table, config, job.ids(partition))
    n_rows = len(table.sequence_keys)
    rows = np.arange(n_rows) if config.normalize_on_all_data else splits[0].rows()
    stride = config.window_stride or config.window_length
    return PartitionFit(
        rows=n_rows,
        splits=tuple(_part(segments, config.window_length, stride) for segments in splits),
        missing={name: int(np.isnan(column).sum()) for name, column in table.real.items()},
        moments={name: fit_moments(column, rows) for name, column in table.real.items()},
        counts={name: _count(codes[rows]) for name, codes in table.codes.items()},
        flaws=flaws,
    )


def _part(segments: Segments, window_length: int, window_stride: int) -> SplitPart:
    short = np.maximum(window_length - segments.lengths, 0)
    windows = count_windows(segments.lengths, window_length, window_stride)
    return SplitPart(len(segments.lengths), segments.n_events, windows, int(short.sum()))


def _count(codes: Int32) -> tuple[Int64, Int64]:
    counts = np.bincount(codes[codes >= 0])
    occurring = np.flatnonzero(counts)
    return occurring, counts[occurring]


def count_windows(lengths: Int64, window_length: int, window_stride: int) -> int:
    """Stored windows of segments: ceil((L - W) / S) + 1, or one where L < W."""
    return int((-(-np.maximum(lengths - window_length, 0) // window_stride) + 1).sum())


def merge_moments(fits: Sequence[PartitionFit], name: str) -> Moments:
    """The moments of a real column over all partitions, merged in their order."""
    moments = Moments()
    for fit in fits:
        moments = moments.merge(fit.moments[name])
    return moments


class ValueCounts:
    """How often each value of each category occurs, over all partitions that were added."""

    def __init__(self, n_values: Mapping[str, int]) -> None:
        self.totals: dict[str, Int64] = {name: np.zeros(n, np.int64) for name, n in n_values.items()}

    def take(self, fit: PartitionFit) -> PartitionFit:
        """Add the counts of a partition; its fit without them, for those of all would not fit into memory."""
        for name, (codes, counts) in fit.counts.items():
            self.totals[name][codes] += counts
        return replace(fit, counts={})
