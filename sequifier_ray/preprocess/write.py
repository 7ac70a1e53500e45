"""The passes' results as files: shards or one merged file per split, metadata, description."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from sequifier_ray.data.metadata import DatasetDescription, SplitMetadata, write_description, write_split
from sequifier_ray.data.shards import write_shard
from sequifier_ray.preprocess.columns import EventTable, Int64
from sequifier_ray.preprocess.encode import Encoder, plan_shards
from sequifier_ray.preprocess.fit import dataset_name
from sequifier_ray.preprocess.publish import DESCRIPTION, Outputs
from sequifier_ray.preprocess.splits import Segments

if TYPE_CHECKING:
    from sequifier_ray.config.preprocess import PreprocessConfig


@dataclass(frozen=True)
class SplitSummary:
    """What one split holds: `windows` at the stored width and stride, `bytes` of its shards."""

    path: str
    segments: int
    events: int
    windows: int
    shards: int
    bytes: int


def outputs_of(config: PreprocessConfig) -> Outputs:
    """Where this configuration's results lie."""
    name = dataset_name(config)
    description = config.resolve(f"configs/metadata_configs/{name}.json")
    return Outputs(name, Path(config.resolve("data")), Path(description))


def write_results(
    folder: Path,
    table: EventTable,
    splits: tuple[Segments, ...],
    description: DatasetDescription,
    report: Callable[[str], None],
) -> tuple[SplitSummary, ...]:
    """Write all splits and the description into a folder that is published later."""
    encoder = Encoder.build(table, description)
    summaries = []
    for i, segments in enumerate(splits):
        path = description.split_paths[i]
        name = path.rsplit("/", 1)[-1]
        if description.merge_output:
            metadata = _write_merged(folder, name, encoder, segments, i)
        else:
            metadata = _write_sharded(folder / name, encoder, segments, i)
        summary = SplitSummary(
            path=path,
            segments=len(segments.lengths),
            events=segments.n_events,
            windows=count_windows(segments.lengths, description.window_length, description.window_stride),
            shards=len(metadata.shards),
            bytes=sum(shard.bytes for shard in metadata.shards),
        )
        report(
            f"{path}: {summary.segments:,} segments, {summary.events:,} events, {summary.windows:,} windows, "
            f"{summary.shards} file{'s' * (summary.shards > 1)}, {summary.bytes / 1e6:.1f} MB"
        )
        summaries.append(summary)
    write_description(str(folder / DESCRIPTION), description)
    return tuple(summaries)


def count_windows(lengths: Int64, window_length: int, window_stride: int) -> int:
    """Stored windows of segments: ceil((L - W) / S) + 1, or one where L < W."""
    return int((-(-np.maximum(lengths - window_length, 0) // window_stride) + 1).sum())


def _write_sharded(folder: Path, encoder: Encoder, segments: Segments, split: int) -> SplitMetadata:
    folder.mkdir()
    extension = encoder.description.write_format
    cuts = plan_shards(segments.lengths, encoder.bytes_per_event).tolist()
    shards = []
    for k, (start, stop) in enumerate(pairwise(cuts)):
        path = folder / f"{folder.name}-{k:05d}.{extension}"
        shards.append(write_shard(str(path), encoder.encode(segments.slice(start, stop)), extension))
    metadata = SplitMetadata(encoder.description, split, tuple(shards))
    write_split(str(folder), metadata)
    return metadata


def _write_merged(folder: Path, name: str, encoder: Encoder, segments: Segments, split: int) -> SplitMetadata:
    path = str(folder / name)
    entry = write_shard(path, encoder.encode(segments), encoder.description.write_format)
    metadata = SplitMetadata(encoder.description, split, (entry,))
    write_split(path, metadata)
    return metadata
