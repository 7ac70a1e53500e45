"""One partition of whole sequences → its shard of every split: ids in the smallest integers, reals
normalised."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl

from sequifier_ray import storage
from sequifier_ray.data.metadata import DatasetDescription, ShardEntry
from sequifier_ray.data.shards import ShardData, TextArray, column_dtype, write_shard
from sequifier_ray.errors import DataError
from sequifier_ray.preprocess.columns import CURRICULUM, MASK, EventTable, Int64
from sequifier_ray.preprocess.job import Job
from sequifier_ray.preprocess.splits import Segments, cut_splits
from sequifier_ray.preprocess.vocabulary import MASK_ID, OTHER_ID, ids_of_values, normalize


@dataclass(frozen=True)
class EncodeJob:
    """A job whose description is known: `ids` are those of every category's values, and [unknown] at the end;
    shards go below the folder `target`, under the numbers in `shard_numbers[split][partition]` (-1: none)."""

    job: Job
    description: DatasetDescription
    ids: dict[str, npt.NDArray[np.integer]]
    target: Path
    shard_numbers: tuple[tuple[int, ...], ...]

    def folder(self, split: int) -> Path:
        """Where the shards of a split go."""
        name = self.description.split_paths[split].rsplit("/", 1)[-1]
        return self.target / name.removesuffix(f".{self.description.write_format}")

    def is_missing(self, split: int, entry: ShardEntry | None) -> bool:
        """Whether a shard is not there as its entry says."""
        return entry is not None and storage.file_bytes(str(self.folder(split) / entry.name)) != entry.bytes


@dataclass(frozen=True)
class Encoded:
    """A partition's shards by split (None where it has no events), and its events in `[other]` by column."""

    shards: tuple[ShardEntry | None, ...]
    others: dict[str, int]


def id_tables(
    values: Mapping[str, pl.Series], description: DatasetDescription
) -> dict[str, npt.NDArray[np.integer]]:
    """For every categorical column the ids of its values, in the type they are stored in."""
    tables = {}
    for name, known in values.items():
        ids = ids_of_values(known, description.id_maps[name], description.hashed_columns.get(name))
        tables[name] = ids.astype(column_dtype(description, name))
    return tables


def encode_partition(job: EncodeJob, partition: int) -> Encoded:
    """Write one partition's shards; what an interrupted run has written is taken as it is, if it is still
    there."""
    marker = job.job.work / f"encoded-{partition:05d}.json"
    if marker.exists():
        done = _load(marker)
        if not any(job.is_missing(split, entry) for split, entry in enumerate(done.shards)):
            return done
    table = job.job.read(partition)
    ids = job.job.ids(partition)
    entries: list[ShardEntry | None] = []
    others = dict.fromkeys(job.ids, 0)
    for split, segments in enumerate(cut_splits(table, job.job.config, ids)):
        number = job.shard_numbers[split][partition]
        if number < 0:
            entries.append(None)
            continue
        data = encode(job, table, segments)
        for name in others:
            others[name] += int((data.columns[name] == OTHER_ID).sum())
        entries.append(_write(job, data, split, number))
    done = Encoded(tuple(entries), others)
    storage.write_atomic(str(marker), json.dumps(asdict(done)))
    return done


def _load(marker: Path) -> Encoded:
    values = json.loads(marker.read_text())
    entries = []
    for entry in values["shards"]:
        if entry is not None:
            entry["segment_lengths"] = tuple((length, count) for length, count in entry["segment_lengths"])
        entries.append(None if entry is None else ShardEntry(**entry))
    return Encoded(tuple(entries), values["others"])


def _write(job: EncodeJob, data: ShardData, split: int, number: int) -> ShardEntry:
    """Parts of a merged file are parquet, whatever it will be: they are read again."""
    description, folder = job.description, job.folder(split)
    write_format = "parquet" if description.merge_output else description.write_format
    folder.mkdir(parents=True, exist_ok=True)
    return write_shard(str(folder / f"{folder.name}-{number:05d}.{write_format}"), data, write_format)


def encode(job: EncodeJob, table: EventTable, segments: Segments) -> ShardData:
    """The shard of some segments of a sorted table, events in the order of the segments."""
    description, rows = job.description, segments.rows()
    masked = table.extra[MASK][rows] == 1 if MASK in table.extra else None
    columns: dict[str, npt.NDArray[Any]] = {}
    for name in description.columns:
        if name in job.ids:
            columns[name] = job.ids[name][table.codes[name][rows]]
        elif name in description.indicator_columns:
            missing = np.isnan(table.real[description.indicator_columns[name]][rows])
            columns[name] = missing.astype(np.float32)
        else:
            columns[name] = _encode_real(job, table, name, rows)
        if masked is not None:
            columns[name][masked] = MASK_ID if name in job.ids else 0
    if description.curriculum_column is not None:
        columns[description.curriculum_column] = table.extra[CURRICULUM][rows]
    keys = table.sequence_keys[segments.start_rows]
    is_text = job.job.index.is_text
    is_consecutive = job.job.config.item_position == "consecutive"
    return ShardData(
        columns=columns,
        sequence_ids=np.arange(len(keys)) if is_text else keys,
        start_positions=table.item_positions[segments.start_rows],
        item_positions=None if is_consecutive else table.item_positions[rows],
        offsets=np.append(0, np.cumsum(segments.lengths)).astype(np.int64),
        sequence_names=TextArray.of(job.job.index.ids.gather(keys).to_list()) if is_text else None,
    )


def _encode_real(job: EncodeJob, table: EventTable, name: str, rows: Int64) -> npt.NDArray[np.floating]:
    description = job.description
    statistics = description.selected_columns_statistics[name]
    values = table.real[name][rows]
    if job.job.config.missing_real != "error":
        filling = statistics.mean if job.job.config.missing_real == "mean" else 0.0
        values = np.where(np.isnan(values), filling, values)
    with np.errstate(over="ignore", invalid="ignore"):
        scaled = values
        if description.normalize_real_columns:
            scaled = normalize(values, statistics.mean, statistics.std)
        encoded = scaled.astype(column_dtype(description, name), copy=False)
    _check_finite(job, table, name, encoded, rows)
    return encoded


def _check_finite(
    job: EncodeJob, table: EventTable, name: str, encoded: npt.NDArray[np.floating], rows: Int64
) -> None:
    statistics = job.description.selected_columns_statistics[name]
    overflowed = ~np.isfinite(encoded)
    if not (np.isfinite(statistics.mean) and np.isfinite(statistics.std)):
        overflowed[:] = True
    if overflowed.any():
        row, count = int(rows[np.argmax(overflowed)]), int(overflowed.sum())
        is_wide = column_dtype(job.description, name) == np.float64
        remedy = "" if is_wide else ", or set column_data_types to Float64 for it"
        raise DataError(
            f'column "{name}": {count:,} value{"s" * (count > 1)} too large to store as '
            f"{column_dtype(job.description, name)} with this mean and deviation, "
            f"first {table.real[name][row]:g} at sequenceId "
            f"{job.job.name_of(int(table.sequence_keys[row]))}, "
            f"itemPosition {table.item_positions[row]}; rescale the column{remedy}"
        )
