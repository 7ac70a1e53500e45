"""Shards of all partitions → the splits' folders or merged files, with their metadata and the description."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet

from sequifier_ray.data.metadata import (
    DatasetDescription,
    ShardEntry,
    SplitMetadata,
    write_description,
    write_split,
)
from sequifier_ray.errors import DataError
from sequifier_ray.preprocess.encode import Encoded, EncodeJob
from sequifier_ray.preprocess.files import dataset_name
from sequifier_ray.preprocess.measure import PartitionFit
from sequifier_ray.preprocess.publish import DESCRIPTION, Outputs

if TYPE_CHECKING:
    from sequifier_ray.config.preprocess import PreprocessConfig


@dataclass(frozen=True)
class SplitSummary:
    """What one split holds: `windows` at the stored width and stride, the share of their places that no event
    fills, `bytes` of its shards."""

    path: str
    segments: int
    events: int
    windows: int
    padding_share: float
    shards: int
    bytes: int


def outputs_of(config: PreprocessConfig) -> Outputs:
    """Where this configuration's results lie."""
    name = dataset_name(config)
    description = config.resolve(f"configs/metadata_configs/{name}.json")
    return Outputs(name, Path(config.resolve("data")), Path(description))


def number_shards(fits: Sequence[PartitionFit]) -> tuple[tuple[int, ...], ...]:
    """The number of each partition's shard in each split, `[n_splits][n_partitions]`; -1 where it has
    none."""
    numbers = []
    for split in range(len(fits[0].splits)):
        has_shard = [fit.splits[split].segments > 0 for fit in fits]
        numbers.append(tuple(sum(has_shard[:p]) if has else -1 for p, has in enumerate(has_shard)))
    return tuple(numbers)


def finish(job: EncodeJob, new: Path, encoded: Sequence[Encoded]) -> list[SplitMetadata]:
    """Write the metadata of every split, merged files where they are wanted, and the description, into `new`;
    the shards are there already, or for merging in the work folder. Raises DataError where one is not as it
    was written."""
    description = job.description
    splits = []
    for split, path in enumerate(description.split_paths):
        name = path.rsplit("/", 1)[-1]
        entries = [shard for part in encoded if (shard := part.shards[split]) is not None]
        for entry in entries:
            if job.is_missing(split, entry):
                raise DataError(
                    f"{job.folder(split) / entry.name} is no longer as this run has written it; run again "
                    "when nothing else works in that folder"
                )
        if description.merge_output:
            parts = [job.folder(split) / entry.name for entry in entries]
            entries = [_merge(parts, new / name, description.write_format, entries)]
        metadata = SplitMetadata(description, split, tuple(entries))
        write_split(str(new / name), metadata)
        splits.append(metadata)
    write_description(str(new / DESCRIPTION), description)
    return splits


def _merge(parts: Sequence[Path], path: Path, write_format: str, entries: Sequence[ShardEntry]) -> ShardEntry:
    """One file of all parts, one after the other."""
    schema = pyarrow.parquet.read_schema(parts[0])
    with open(path, "wb") as file, _writer(file, schema, write_format) as writer:
        for part in parts:
            writer.write_table(pyarrow.parquet.read_table(part))
    lengths: Counter[int] = Counter()
    for entry in entries:
        lengths.update(dict(entry.segment_lengths))
    return ShardEntry(
        name=path.name,
        bytes=path.stat().st_size,
        events=sum(entry.events for entry in entries),
        segments=sum(entry.segments for entry in entries),
        segment_lengths=tuple(sorted(lengths.items())),
    )


def _writer(file: Any, schema: pa.Schema, write_format: str) -> Any:
    if write_format == "csv":
        return pyarrow.csv.CSVWriter(file, schema)
    return pyarrow.parquet.ParquetWriter(file, schema, compression="zstd")


def summarize(
    description: DatasetDescription, fits: Sequence[PartitionFit], splits: Sequence[SplitMetadata]
) -> tuple[SplitSummary, ...]:
    """What each split holds."""
    summaries = []
    for i, metadata in enumerate(splits):
        parts = [fit.splits[i] for fit in fits]
        windows = sum(part.windows for part in parts)
        summaries.append(
            SplitSummary(
                path=description.split_paths[i],
                segments=sum(part.segments for part in parts),
                events=sum(part.events for part in parts),
                windows=windows,
                padding_share=sum(part.padding for part in parts) / (windows * description.window_length),
                shards=len(metadata.shards),
                bytes=sum(shard.bytes for shard in metadata.shards),
            )
        )
    return tuple(summaries)
