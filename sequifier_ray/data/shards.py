"""One shard: whole segments of events, as tensors (pt) or as a table in long form (parquet, csv)."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from sequifier_ray import storage
from sequifier_ray.data import sequifier_windows
from sequifier_ray.data.metadata import DatasetDescription, ShardEntry
from sequifier_ray.data.node_cache import DEFAULT_CACHE, NodeCache
from sequifier_ray.errors import DataError

if TYPE_CHECKING:
    import pyarrow as pa

SHARD_FORMAT = "sequifier_ray.events"
SHARD_VERSION = 1
# What a table holds beside the stored columns.
KEY_COLUMNS = ("sequenceId", "itemPosition")

Int64 = npt.NDArray[np.int64]


@dataclass(frozen=True)
class TextArray:
    """Texts as tensors can hold them: ``utf8`` (n_bytes,) uint8, text i is bytes ``offsets[i]:offsets[i +
    1]``."""

    utf8: npt.NDArray[np.uint8]
    offsets: Int64

    @staticmethod
    def of(texts: Sequence[str]) -> TextArray:
        encoded = [text.encode() for text in texts]
        offsets = np.append(0, np.cumsum([len(text) for text in encoded])).astype(np.int64)
        return TextArray(np.frombuffer(b"".join(encoded), np.uint8).copy(), offsets)

    def to_list(self) -> list[str]:
        data, offsets = self.utf8.tobytes(), self.offsets.tolist()
        return [data[start:stop].decode() for start, stop in pairwise(offsets)]


@dataclass(frozen=True)
class ShardData:
    """Segments in memory. Segment s is rows ``offsets[s]:offsets[s + 1]`` of every column.

    ``columns`` name → (n_rows,), ``sequence_ids`` and ``start_positions`` (n_segments,),
    ``item_positions`` (n_rows,) only where positions do not rise by one, ``offsets`` (n_segments + 1,).
    ``sequence_names`` (n_segments,) where ids are text; ``sequence_ids`` are then 0 to n_segments - 1.
    ``left_pads`` (n_segments,) only where the first rows of segments are padding: so many are no events.
    """

    columns: dict[str, npt.NDArray[Any]]
    sequence_ids: Int64
    start_positions: Int64
    item_positions: Int64 | None
    offsets: Int64
    sequence_names: TextArray | None = None
    left_pads: Int64 | None = None

    @property
    def starts(self) -> Int64:
        """Row of every segment's first event, (n_segments,)."""
        starts: Int64 = self.offsets[:-1]
        return starts if self.left_pads is None else starts + self.left_pads

    @property
    def lengths(self) -> Int64:
        """Events of every segment, (n_segments,)."""
        return self.offsets[1:] - self.starts

    def positions(self) -> Int64:
        """itemPosition of every event, (n_events,)."""
        if self.item_positions is not None:
            return self.item_positions
        lengths = self.lengths
        ends = np.cumsum(lengths)
        within = np.arange(lengths.sum()) - np.repeat(ends - lengths, lengths)
        positions: Int64 = np.repeat(self.start_positions, lengths) + within
        return positions


def smallest_id_dtype(n_classes: int) -> np.dtype[Any]:
    """The smallest of uint8, int16, int32, int64 that holds ids up to ``n_classes - 1``."""
    for kind in (np.uint8, np.int16, np.int32):
        if n_classes - 1 <= np.iinfo(kind).max:
            return np.dtype(kind)
    return np.dtype(np.int64)


def column_dtype(description: DatasetDescription, name: str) -> np.dtype[Any]:
    """How a column is stored: ids small, reals float32 unless the description says Float64."""
    if name == description.curriculum_column:
        return np.dtype(np.int64)
    if name in description.id_maps:
        return smallest_id_dtype(description.n_classes[name])
    return np.dtype(np.float64 if description.column_data_types[name] == "Float64" else np.float32)


def write_shard(path: str, data: ShardData, write_format: str) -> ShardEntry:
    """Write one shard to a local path and return its row of the shard table; equal data give equal bytes.

    The data are without left_pads.
    """
    if write_format == "pt":
        _write_pt(path, data)
    else:
        _write_table(path, data, write_format)
    lengths, counts = np.unique(data.lengths, return_counts=True)
    return ShardEntry(
        name=os.path.basename(path),
        bytes=os.path.getsize(path),
        events=int(data.offsets[-1]),
        segments=len(data.sequence_ids),
        segment_lengths=tuple(zip(lengths.tolist(), counts.tolist(), strict=True)),
    )


def open_shard(
    folder: str, entry: ShardEntry, description: DatasetDescription, cache: NodeCache = DEFAULT_CACHE
) -> ShardData:
    """The shard's contents; columns of a pt shard are memory-mapped, not read. One in an object store is
    fetched into ``cache`` first.

    Raises:
        DataError: the file is missing, of another size than the table says, or holds something else.
    """
    path = storage.join(folder, entry.name)
    found = storage.file_bytes(path)
    if found is None or (found != entry.bytes and not entry.is_of_sequifier):
        state = "is missing" if found is None else f"has {found} bytes instead of {entry.bytes}"
        raise DataError(f"shard {path} {state}; restore it or {_again(entry)}")
    with cache.opened(path, found) as local:
        if description.write_format == "pt":
            data = _open_pt(local, path, entry, description)
        else:
            data = _open_table(local, path, entry, description)
    events = int(data.lengths.sum())
    if (events, len(data.sequence_ids)) != (entry.events, entry.segments):
        raise DataError(
            f"shard {path} holds {events} events in {len(data.sequence_ids)} segments "
            f"instead of {entry.events} in {entry.segments}; {_again(entry)}"
        )
    return data


def _again(entry: ShardEntry) -> str:
    command = "sequifier" if entry.is_of_sequifier else "sequifier-ray"
    return f"run `{command} preprocess` again"


def _unreadable(path: str, entry: ShardEntry, error: Exception) -> DataError:
    return DataError(f"shard {path} cannot be read; {_again(entry)} ({error})")


def _write_pt(path: str, data: ShardData) -> None:
    import torch

    contents: dict[str, Any] = {
        "format": SHARD_FORMAT,
        "version": SHARD_VERSION,
        "columns": {name: torch.from_numpy(np.ascontiguousarray(v)) for name, v in data.columns.items()},
        "sequence_ids": torch.from_numpy(data.sequence_ids),
        "start_positions": torch.from_numpy(data.start_positions),
        "offsets": torch.from_numpy(data.offsets),
    }
    if data.item_positions is not None:
        contents["item_positions"] = torch.from_numpy(data.item_positions)
    if data.sequence_names is not None:
        contents["sequence_names"] = torch.from_numpy(data.sequence_names.utf8)
        contents["sequence_name_offsets"] = torch.from_numpy(data.sequence_names.offsets)
    # Through a file object: torch writes the file's name into the archive otherwise.
    with open(path, "wb") as file:
        torch.save(contents, file)


def _open_pt(local: str, path: str, entry: ShardEntry, description: DatasetDescription) -> ShardData:
    import pickle

    import torch

    try:
        contents = torch.load(local, weights_only=True, mmap=True)
        found = (contents["format"], contents["version"])
    except (OSError, RuntimeError, KeyError, TypeError, pickle.UnpicklingError) as error:
        raise _unreadable(path, entry, error) from error
    if found[0] == sequifier_windows.FILE_FORMAT:
        return ShardData(**sequifier_windows.segments(path, contents, entry, description))
    if found != (SHARD_FORMAT, SHARD_VERSION):
        raise DataError(f"shard {path} has format {found[0]} version {found[1]}; {_again(entry)}")
    items = contents.get("item_positions")
    names = None
    if "sequence_names" in contents:
        names = TextArray(contents["sequence_names"].numpy(), contents["sequence_name_offsets"].numpy())
    return ShardData(
        columns={name: column.numpy() for name, column in contents["columns"].items()},
        sequence_ids=contents["sequence_ids"].numpy(),
        start_positions=contents["start_positions"].numpy(),
        item_positions=None if items is None else items.numpy(),
        offsets=contents["offsets"].numpy(),
        sequence_names=names,
    )


def _write_table(path: str, data: ShardData, write_format: str) -> None:
    import pyarrow as pa

    ids = np.repeat(data.sequence_ids, data.lengths)
    if data.sequence_names is not None:
        ids = pa.array(data.sequence_names.to_list(), pa.string()).take(pa.array(ids))
    assert not set(KEY_COLUMNS) & set(data.columns)
    table = pa.table({**dict(zip(KEY_COLUMNS, (ids, data.positions()), strict=True)), **data.columns})
    if write_format == "parquet":
        import pyarrow.parquet

        pyarrow.parquet.write_table(table, path, compression="zstd")
    else:
        import pyarrow.csv

        pyarrow.csv.write_csv(table, path)


def _open_table(local: str, path: str, entry: ShardEntry, description: DatasetDescription) -> ShardData:
    import pyarrow as pa

    try:
        table = _read_table(local, description)
        ids, names = _segment_ids(table["sequenceId"])
        positions = table["itemPosition"].to_numpy()
        columns = {}
        for name in description.stored_columns:
            columns[name] = table[name].to_numpy().astype(column_dtype(description, name), copy=False)
    except (pa.ArrowException, OSError, KeyError) as error:
        raise _unreadable(path, entry, error) from error
    starts = np.flatnonzero(np.append(True, ids[1:] != ids[:-1])) if len(ids) else np.zeros(0, np.int64)
    offsets = np.append(starts, len(ids)).astype(np.int64)
    data = ShardData(columns, ids[starts], positions[starts], None, offsets, names)
    if not np.array_equal(data.positions(), positions):
        data = replace(data, item_positions=positions)
    return data


def _segment_ids(column: pa.ChunkedArray) -> tuple[Int64, TextArray | None]:
    """The id of every event, and the texts of ids that are text: these are numbered as they come."""
    import pyarrow as pa
    import pyarrow.compute

    if not pa.types.is_string(column.type):
        return column.to_numpy(), None
    runs = pyarrow.compute.run_end_encode(column.combine_chunks())
    lengths = np.diff(runs.run_ends.to_numpy(), prepend=0)
    return np.repeat(np.arange(len(lengths)), lengths), TextArray.of(runs.values.to_pylist())


def _read_table(path: str, description: DatasetDescription) -> pa.Table:
    # One thread: a training worker's cores belong to torch.
    if description.write_format == "parquet":
        import pyarrow.parquet

        with open(path, "rb") as file:
            return pyarrow.parquet.ParquetFile(file).read(use_threads=False)
    import pyarrow as pa
    import pyarrow.csv

    types = {"sequenceId": pa.string()} if description.sequence_id_type == "String" else {}
    return pyarrow.csv.read_csv(
        path,
        read_options=pyarrow.csv.ReadOptions(use_threads=False),
        parse_options=pyarrow.csv.ParseOptions(newlines_in_values=True),
        convert_options=pyarrow.csv.ConvertOptions(column_types=types),
    )
