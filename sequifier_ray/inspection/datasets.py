"""Facts about preprocessed data sets, from their metadata; and the check of every shard against them."""

from __future__ import annotations

import posixpath
from collections import Counter
from collections.abc import Callable

import numpy as np

from sequifier_ray import storage
from sequifier_ray.data.metadata import (
    DatasetDescription,
    ShardEntry,
    SplitMetadata,
    metadata_path,
    read_split,
)
from sequifier_ray.data.shards import ShardData, open_shard
from sequifier_ray.errors import DataError
from sequifier_ray.inspection.facts import ColumnFacts, Facts, Lengths, split_facts

AGAIN = "run `sequifier-ray preprocess` again"


def is_split(path: str) -> bool:
    """Whether a path is a split that was preprocessed: its metadata is there."""
    return storage.exists(metadata_path(path)) and metadata_path(path) != path


def inspect_dataset(
    path: str,
    window: tuple[int, int] | None,
    world_size: int | None,
    verify: bool,
    report: Callable[[str], None],
) -> Facts:
    """Facts about one split, from its metadata alone; with `verify` every shard is read and compared with it.

    `window` is a width and stride to look through instead of the stored ones. Raises DataError for a split
    that is damaged.
    """
    metadata = read_split(path)
    description = metadata.description
    if verify:
        verify_split(path, metadata, report)
    histogram: Counter[int] = Counter()
    for entry in metadata.shards:
        histogram.update(dict(entry.segment_lengths))
    window = window or (description.window_length, description.window_stride)
    n_bytes = sum(_bytes(path, entry) for entry in metadata.shards)
    split = split_facts(
        posixpath.basename(path.rstrip("/")),
        histogram,
        window,
        len(metadata.shards),
        n_bytes,
        is_estimate=False,
        world_size=world_size,
    )
    return Facts(
        path=path,
        kind=f"split {metadata.split} of a preprocessed data set ({description.write_format})",
        files=len(metadata.shards),
        bytes=n_bytes,
        rows=sum(entry.events for entry in metadata.shards),
        sequences=None,
        lengths=Lengths.of(histogram),
        length_histogram=tuple(sorted(histogram.items())),
        columns=tuple(_column(description, name) for name in description.columns),
        window=window,
        splits=(split,),
        world_size=world_size,
        verified=verify,
    )


def _bytes(path: str, entry: ShardEntry) -> int:
    """The size of a shard: that of its table, or of the file where the table has none."""
    if entry.is_of_sequifier:
        return storage.file_bytes(storage.join(path, entry.name)) or 0
    return entry.bytes


def _column(description: DatasetDescription, name: str) -> ColumnFacts:
    kind = description.column_data_types[name]
    if name in description.id_maps:
        classes = description.n_classes[name]
        return ColumnFacts(name, "categorical", kind, None, classes, distinct_is_least=False)
    statistics = description.selected_columns_statistics[name]
    mean, std = statistics.mean, statistics.std
    return ColumnFacts(name, "real", kind, None, None, distinct_is_least=False, mean=mean, std=std)


def verify_split(path: str, metadata: SplitMetadata, report: Callable[[str], None]) -> None:
    """Read every shard: sizes, counts and lengths as in the table, ids that exist, finite reals.

    Raises DataError with all shards that are not as they should be, one a line.
    """
    folder = posixpath.dirname(path) if metadata.description.merge_output else path
    problems = []
    for entry in metadata.shards:
        try:
            shard = open_shard(folder, entry, metadata.description)
            problems += [
                f"shard {storage.join(folder, entry.name)} {p}; {AGAIN}"
                for p in _problems(shard, entry, metadata)
            ]
        except DataError as error:
            problems.append(str(error))
    if problems:
        raise DataError("\n".join(problems))
    report(f"verified: {len(metadata.shards):,} shards are as their table says")


def _problems(shard: ShardData, entry: ShardEntry, metadata: SplitMetadata) -> list[str]:
    description = metadata.description
    lengths, counts = np.unique(shard.lengths, return_counts=True)
    found = tuple(zip(lengths.tolist(), counts.tolist(), strict=True))
    problems = []
    if found != tuple(sorted(entry.segment_lengths)):
        problems.append("has segments of other lengths than its table says")
    for name in description.columns:
        values = shard.columns[name]
        if name in description.id_maps:
            if len(values) and (int(values.min()) < 0 or int(values.max()) >= description.n_classes[name]):
                problems.append(
                    f'holds ids from {int(values.min())} to {int(values.max())} in column "{name}", which '
                    f"has "
                    f"{description.n_classes[name]} classes"
                )
        elif not np.isfinite(values).all():
            problems.append(f'holds values in column "{name}" that are not finite')
    return problems
