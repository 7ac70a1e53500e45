"""Folders written by Sequifier 3.1: stored windows, read as segments of one window each.

Sequifier stores every window whole, as row of an [N, W] tensor, padded on the left. Its metadata are
translated into the form that this package writes, and row n of a file is segment n: its last
W - left_pad events. A segment of at most W events has one window, so that views, samples and the loader
are those of any other data set.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from sequifier_ray.errors import DataError

if TYPE_CHECKING:
    from sequifier_ray.data.metadata import DatasetDescription, ShardEntry

FILE_FORMAT = "sequifier_tensor_batch"
FILE_VERSION = 5
SIZE_UNKNOWN = -1
LAYOUT_VERSIONS = {"stored_window_layout_version": 2, "tensor_payload_version": 1}
_FROM_TABLE = "preprocess the table with `sequifier-ray preprocess`"
_REMEDY = f"write it with write_format: pt, merge_output: false, or {_FROM_TABLE}"


def dataset_values(path: str, values: Mapping[str, Any]) -> dict[str, Any] | None:
    """Sequifier's description of a data set in the form of DatasetDescription.to_json; else None.

    Raises:
        DataError: it is Sequifier's and describes data that cannot be read, or lacks a key.
    """
    if "format" in values or not {"n_classes", "split_paths"} <= set(values):
        return None
    for split in values["split_paths"]:
        if split.endswith((".parquet", ".csv")):
            raise DataError(f"{path}: {split} is a merged file of Sequifier's windows; {_REMEDY}")
    return _translated(path, values)


def split_values(path: str, values: Mapping[str, Any]) -> dict[str, Any] | None:
    """Sequifier's metadata of a split in the form that write_split writes; else None.

    The table of shards has no file sizes (``bytes`` SIZE_UNKNOWN). Of the description, what the metadata of a
    split leave out is empty.

    Raises:
        DataError: it is Sequifier's and describes data that cannot be read, or lacks a key.
    """
    if "format" in values or not {"n_classes", "batch_files"} <= set(values):
        return None
    description = _translated(path, values)
    width = description["window_length"]
    shards = [_shard_values(path, file, width) for file in values["batch_files"]]
    return {"split": _field(path, values, "split_index"), "dataset": description, "shards": shards}


def segments(
    path: str, contents: Mapping[str, Any], entry: ShardEntry, description: DatasetDescription
) -> dict[str, Any]:
    """The fields of ShardData for one file's contents; its columns stay memory-mapped.

    N stored windows of W events are N segments: columns name → (N · W,), ``offsets`` (N + 1,) a multiple of
    W, ``left_pads``, ``start_positions`` and ``sequence_ids`` (N,).

    Raises:
        DataError: another version, more than one value an event, or not what the table of shards says.
    """
    if contents["version"] != FILE_VERSION:
        raise DataError(
            f"shard {path} has {FILE_FORMAT} version {contents['version']}, and this release reads version "
            f"{FILE_VERSION}; write it again with Sequifier 3.1, or {_FROM_TABLE}"
        )
    try:
        if contents["metadata"]["depth_valid_masks"]:
            raise DataError(f"shard {path} has several values an event (depth_valid_masks); {_FROM_TABLE}")
        ids, positions, pads = (
            contents[key].numpy() for key in ("sequence_ids", "start_item_positions", "left_pad_lengths")
        )
        columns = {name: contents["sequences"][name] for name in description.columns}
    except (KeyError, TypeError, AttributeError) as error:
        raise DataError(
            f"shard {path} lacks {error}, so it is no file of Sequifier 3.1; run `sequifier preprocess` again"
        ) from error
    width = description.window_length
    for name, column in columns.items():
        if tuple(column.shape) != (len(ids), width):
            raise DataError(
                f'shard {path}: column "{name}" has the shape {tuple(column.shape)} instead of '
                f"{(len(ids), width)}; run `sequifier preprocess` again"
            )
    lengths, counts = np.unique(width - pads, return_counts=True)
    if tuple(zip(lengths.tolist(), counts.tolist(), strict=True)) != entry.segment_lengths:
        raise DataError(
            f"shard {path} holds {len(ids)} windows that are not the {entry.segments} of metadata.json "
            "(left_pad_length_histogram); run `sequifier preprocess` again"
        )
    return {
        "columns": {name: column.numpy().reshape(-1) for name, column in columns.items()},
        "sequence_ids": ids,
        "start_positions": positions + pads,  # theirs count from the window's start, padding included
        "item_positions": None,
        "offsets": np.arange(len(ids) + 1, dtype=np.int64) * width,
        "left_pads": pads,
    }


def _translated(path: str, values: Mapping[str, Any]) -> dict[str, Any]:
    _check_readable(path, values)
    width = _field(path, values, "window_length")
    types = _field(path, values, "column_data_types")
    return {
        "columns": list(types),
        "n_classes": values["n_classes"],
        "id_maps": _field(path, values, "id_maps"),
        "split_paths": values.get("split_paths", ()),
        "column_data_types": types,
        "selected_columns_statistics": _field(path, values, "selected_columns_statistics"),
        "normalize_real_columns": _field(path, values, "normalize_real_columns"),
        "normalize_on_all_data": values.get("normalize_on_all_data", False),
        "split_ratios": values.get("split_ratios"),
        "split_method": values.get("split_method", ""),
        "window_length": width,
        "window_stride": values.get("window_stride") or width,
        "max_target_offset": _field(path, values, "max_target_offset"),
        "special_token_ids": values.get("special_token_ids", {}),
        "write_format": "pt",
        "merge_output": False,
    }


def _check_readable(path: str, values: Mapping[str, Any]) -> None:
    for key, version in LAYOUT_VERSIONS.items():
        if values.get(key) != version:
            raise DataError(
                f"{path}: Sequifier wrote {key} {values.get(key)}, and this release reads {version}; "
                f"write it again with Sequifier 3.1, or {_FROM_TABLE}"
            )
    for key in ("depth_layouts", "prediction_aligned_splits"):
        if values.get(key):
            raise DataError(
                f"{path}: {key} {values[key]} is not supported; preprocess without {key}, with Sequifier or "
                "with `sequifier-ray preprocess`"
            )
    widths = sorted(set(values.get("window_lengths") or ()))
    if len(widths) > 1:
        raise DataError(
            f"{path}: the splits have several window_lengths ({', '.join(map(str, widths))}), and one is "
            "read; preprocess all splits with one window_length"
        )


def _shard_values(path: str, file: Mapping[str, Any], width: int) -> dict[str, Any]:
    name, samples = _field(path, file, "path"), _field(path, file, "samples")
    if not name.endswith(".pt"):
        raise DataError(f"{path}: {name} is a table of Sequifier's windows; {_REMEDY}")
    histogram = _field(path, file, "left_pad_length_histogram")
    lengths = sorted((width - int(pad), int(count)) for pad, count in histogram.items())
    if sum(count for _, count in lengths) != samples or any(not 0 <= n <= width for n, _ in lengths):
        raise DataError(
            f"{path}: the left_pad_length_histogram of {name} does not fit its {samples} samples of "
            f"{width} events; run `sequifier preprocess` again"
        )
    events = sum(length * count for length, count in lengths)
    return {
        "name": name,
        "bytes": SIZE_UNKNOWN,
        "events": events,
        "segments": samples,
        "segment_lengths": lengths,
    }


def _field(path: str, values: Mapping[str, Any], key: str) -> Any:
    if key not in values:
        raise DataError(f'{path} lacks "{key}"; run `sequifier preprocess` again, or {_FROM_TABLE}')
    return values[key]
