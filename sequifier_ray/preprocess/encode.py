"""Segments of whole sequences → shards: ids in the smallest integers, reals normalised."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from sequifier_ray.data.metadata import DatasetDescription
from sequifier_ray.data.shards import ShardData, column_dtype
from sequifier_ray.errors import DataError
from sequifier_ray.preprocess.columns import EventTable, Int64
from sequifier_ray.preprocess.splits import Segments
from sequifier_ray.preprocess.vocabulary import ids_of_values, normalize

TARGET_SHARD_BYTES = 64_000_000
LEAST_SHARDS = 8


@dataclass(frozen=True)
class Encoder:
    """Encodes any segments of one sorted table with one dataset description."""

    table: EventTable
    description: DatasetDescription
    ids_of_codes: dict[str, npt.NDArray[np.integer]]

    @staticmethod
    def build(table: EventTable, description: DatasetDescription) -> Encoder:
        """Prepare the code → id tables of all categorical columns."""
        ids = {}
        for name, column in table.categorical.items():
            dtype = column_dtype(description, name)
            ids[name] = ids_of_values(column.values, description.id_maps[name]).astype(dtype)
        return Encoder(table, description, ids)

    @property
    def bytes_per_event(self) -> int:
        """Bytes of one event in the tensors of a shard."""
        names = self.description.columns
        return sum(int(column_dtype(self.description, name).itemsize) for name in names)

    def encode(self, segments: Segments) -> ShardData:
        """The shard of some segments, events in the order of the segments."""
        rows = segments.rows()
        columns: dict[str, npt.NDArray[np.generic]] = {}
        for name in self.description.columns:
            if name in self.ids_of_codes:
                columns[name] = self.ids_of_codes[name][self.table.categorical[name].codes[rows]]
            else:
                columns[name] = self._encode_real(name, rows)
        return ShardData(
            columns=columns,
            sequence_ids=self.table.sequence_ids[segments.start_rows],
            start_positions=self.table.item_positions[segments.start_rows],
            item_positions=None,
            offsets=np.append(0, np.cumsum(segments.lengths)).astype(np.int64),
        )

    def _encode_real(self, name: str, rows: Int64) -> npt.NDArray[np.floating]:
        values = self.table.real[name][rows]
        with np.errstate(over="ignore", invalid="ignore"):
            if self.description.normalize_real_columns:
                statistics = self.description.selected_columns_statistics[name]
                values = normalize(values, statistics.mean, statistics.std)
            encoded = values.astype(column_dtype(self.description, name), copy=False)
        self._check_finite(name, encoded, rows)
        return encoded

    def _check_finite(self, name: str, encoded: npt.NDArray[np.floating], rows: Int64) -> None:
        statistics = self.description.selected_columns_statistics[name]
        overflowed = ~np.isfinite(encoded)
        if not (np.isfinite(statistics.mean) and np.isfinite(statistics.std)):
            overflowed[:] = True
        if overflowed.any():
            row = rows[np.argmax(overflowed)]
            raise DataError(
                f'column "{name}": {int(overflowed.sum())} values are too large to store, '
                f"first {self.table.real[name][row]:g} "
                f"at sequenceId {self.table.sequence_ids[row]}, itemPosition "
                f"{self.table.item_positions[row]}; rescale the "
                "column, or set column_data_types to Float64 for it"
            )


def plan_shards(lengths: Int64, bytes_per_event: int, target_bytes: int = TARGET_SHARD_BYTES) -> Int64:
    """Where to cut segments into shards: int64 `[n_shards + 1]`, from 0 to n_segments, rising.

    As many shards as bring them near `target_bytes`, at least 8 where there are 8 segments, balanced
    by events; every shard holds at least one whole segment.
    """
    n_segments, n_events = len(lengths), int(lengths.sum())
    wanted = -(-n_events * bytes_per_event // target_bytes)
    n_shards = min(max(wanted, LEAST_SHARDS), n_segments)
    ends = np.cumsum(lengths)
    targets = np.arange(1, n_shards) * (n_events / n_shards)
    after = np.searchsorted(ends, targets)  # the segment that a target falls into
    is_nearer_before = (targets - (ends[after] - lengths[after])) < (ends[after] - targets)
    cuts = after + np.where(is_nearer_before, 0, 1)
    order = np.arange(1, n_shards)
    cuts = np.maximum.accumulate(np.maximum(cuts - order, 0)) + order
    cuts = np.minimum(cuts, n_segments - n_shards + order)
    return np.concatenate([[0], cuts, [n_segments]]).astype(np.int64)
