"""Rows on their way to their partitions: files of one block each, its rows grouped by partition.

A piece is an Arrow file with a record batch for every partition, beside it the values that its codes count,
and, once the values of all pieces are known, where each of them stands among those.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np
import polars as pl
import pyarrow as pa

from sequifier_ray.preprocess.columns import (
    EventTable,
    Int64,
    places_in,
    read_frame,
    union_of_values,
)
from sequifier_ray.preprocess.values import CodedTable

KEY, POSITION = "key", "position"


@dataclass(frozen=True)
class PieceLayout:
    """The columns of every piece, in order, and the number of partitions."""

    categorical: tuple[str, ...]
    real: tuple[str, ...]
    extra: tuple[str, ...]
    n_partitions: int

    def arrays(self, table: EventTable) -> list[np.ndarray]:
        """The columns of a table in the order of a piece."""
        codes = [table.codes[name] for name in self.categorical]
        real = [table.real[name] for name in self.real]
        extra = [table.extra[name] for name in self.extra]
        return [table.sequence_keys, table.item_positions, *codes, *real, *extra]

    def table(self, arrays: Sequence[np.ndarray]) -> EventTable:
        """The table of such columns."""
        n, m = 2 + len(self.categorical), 2 + len(self.categorical) + len(self.real)
        return EventTable(
            arrays[0],
            arrays[1],
            dict(zip(self.categorical, arrays[2:n], strict=True)),
            dict(zip(self.real, arrays[n:m], strict=True)),
            dict(zip(self.extra, arrays[m:], strict=True)),
        )


def write_piece(path: Path, layout: PieceLayout, coded: CodedTable, partitions: Int64) -> None:
    """Write the rows of a block to `path`, each with its partition in `partitions`."""
    arrays = layout.arrays(coded.table)
    if (partitions[1:] < partitions[:-1]).any():
        rows = np.argsort(partitions, kind="stable")
        arrays = [array[rows] for array in arrays]
        partitions = partitions[rows]
    bounds = np.searchsorted(partitions, np.arange(layout.n_partitions + 1)).tolist()
    # Arrays become arrow's by way of polars, for pyarrow imports pandas to look at them.
    (whole,) = pl.DataFrame({str(i): array for i, array in enumerate(arrays)}).to_arrow().to_batches()
    with pa.OSFile(str(path), "wb") as file, pa.ipc.new_file(file, whole.schema) as writer:
        for start, stop in pairwise(bounds):
            writer.write_batch(whole.slice(start, stop - start))
    for i, name in enumerate(layout.categorical):
        coded.values[name].alias("value").to_frame().write_ipc(_values_path(path, i))


def _values_path(piece: Path, column: int) -> Path:
    return piece.with_name(f"{piece.name}.values-{column}")


def _places_path(piece: Path, column: int) -> Path:
    return piece.with_name(f"{piece.name}.places-{column}")


def merge_values(pieces: Sequence[Path], layout: PieceLayout) -> dict[str, pl.Series]:
    """The sorted distinct values of every categorical column; each piece learns where its own stand."""
    merged = {}
    for i, name in enumerate(layout.categorical):
        parts = [read_frame(_values_path(piece, i))["value"] for piece in pieces]
        merged[name] = union_of_values(parts)
        for piece, values in zip(pieces, parts, strict=True):
            places_in(values, merged[name]).tofile(_places_path(piece, i))
    return merged


def read_partition(pieces: Sequence[Path], layout: PieceLayout, partition: int) -> EventTable:
    """All rows of one partition, in the order of the pieces; codes count the merged values."""
    columns: list[list[np.ndarray]] = []
    for piece in pieces:
        with pa.OSFile(str(piece), "rb") as file:
            batch = pa.ipc.open_file(file).get_batch(partition)
        if not batch.num_rows:
            continue
        arrays = [pl.Series(pl.from_arrow(column)).to_numpy() for column in batch.columns]
        for i in range(len(layout.categorical)):
            places = np.memmap(_places_path(piece, i), np.int32, mode="r")
            arrays[2 + i] = places[arrays[2 + i]]
        columns.append(arrays)
    return layout.table([np.concatenate(parts) for parts in zip(*columns, strict=True)])
