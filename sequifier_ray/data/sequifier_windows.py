"""Folders of stored windows that Sequifier 3.1 wrote: each window is read as one segment.

Such a folder holds ``[N, W]`` tensors a column in pt files, padded on the left, and says what it holds in a
``metadata.json`` of its own kind.
"""

from __future__ import annotations

import os
import pickle
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from sequifier_ray import storage
from sequifier_ray.errors import DataError

if TYPE_CHECKING:
    from sequifier_ray.data.metadata import ShardEntry

WINDOWS_FORMAT = "sequifier_tensor_batch"
WINDOWS_VERSION = 5
REMEDY = (
    "write it with write_format: pt and merge_output: false, or preprocess the table with "
    "`sequifier-ray preprocess`"
)
# Settings that change what a stored window means.
UNREADABLE = ("depth_layouts", "prediction_aligned_splits", "prediction_length", "target_offset")


def is_of_sequifier(values: Mapping[str, Any]) -> bool:
    """Whether the content of a metadata file is in Sequifier's form: known by its keys, for it names none."""
    return "format" not in values and "n_classes" in values and "column_data_types" in values


def description_values(values: Mapping[str, Any], path: str) -> dict[str, Any]:
    """Sequifier's description, or what a folder's metadata says of the data set, in this project's keys.

    Raises DataError, by name, for what cannot be read.
    """
    for name in UNREADABLE:
        if values.get(name):
            raise DataError(f"{path}: data that Sequifier wrote with {name} cannot be read; {REMEDY}")
    widths = set(values.get("window_lengths") or [values["window_length"]])
    if widths != {values["window_length"]}:
        raise DataError(f"{path}: windows of several lengths {sorted(widths)} cannot be read; {REMEDY}")
    types = values["column_data_types"]
    return {
        "columns": list(types),
        "column_data_types": types,
        "n_classes": values["n_classes"],
        "id_maps": values["id_maps"],
        "selected_columns_statistics": values.get("selected_columns_statistics", {}),
        "split_paths": [split.removeprefix("./") for split in values.get("split_paths", ())],
        "normalize_real_columns": values.get("normalize_real_columns", True),
        "normalize_on_all_data": values.get("normalize_on_all_data", False),
        "split_ratios": values.get("split_ratios"),
        "split_method": values.get("split_method", "within_sequence"),
        "window_length": values["window_length"],
        "window_stride": values.get("window_stride") or values["window_length"],
        "max_target_offset": values["max_target_offset"],
        "special_token_ids": values.get("special_token_ids", {"[unknown]": 0, "[other]": 1, "[mask]": 2}),
        "write_format": "pt",
        "merge_output": False,
        "holds_windows": True,
    }


def shard_values(values: Mapping[str, Any], path: str) -> list[dict[str, Any]]:
    """The rows of a shard table, one for each file of windows; their sizes are not known.

    Raises DataError where the folder's metadata lists no files of windows.
    """
    if "batch_files" not in values:
        raise DataError(f"{path} lists no files of stored windows; {REMEDY}")
    width = values["window_length"]
    rows = []
    for file in values["batch_files"]:
        pads = {int(pad): int(count) for pad, count in file["left_pad_length_histogram"].items()}
        lengths = sorted((width - pad, count) for pad, count in pads.items())
        rows.append(
            {
                "name": file["path"],
                "bytes": None,
                "events": sum(length * count for length, count in lengths),
                "segments": file["samples"],
                "segment_lengths": lengths,
            }
        )
    return rows


def open_windows(path: str, entry: ShardEntry, width: int) -> dict[str, Any]:
    """What a file of windows holds, its columns memory-mapped: the arguments of ``ShardData``.

    Raises DataError where it is missing, damaged, of another version, or holds other windows than its table
    says.
    """
    import torch

    if not storage.exists(path):
        raise DataError(f"shard {path} is missing; restore it or run preprocess again")
    try:
        contents = torch.load(path, weights_only=True, mmap=True)
        found = (contents["format"], contents["version"])
        sequences, pads = contents["sequences"], contents["left_pad_lengths"].numpy()
        ids, starts = contents["sequence_ids"].numpy(), contents["start_item_positions"].numpy()
        depth_masks = contents["metadata"]["depth_valid_masks"]
    except (RuntimeError, KeyError, TypeError, OSError, EOFError, pickle.UnpicklingError) as error:
        raise DataError(f"shard {path} cannot be read; write it again ({error})") from error
    if found != (WINDOWS_FORMAT, WINDOWS_VERSION) or depth_masks:
        what = "depth masks" if depth_masks else f"format {found[0]} version {found[1]}"
        raise DataError(
            f"shard {path} has {what}, and {WINDOWS_FORMAT} version 5 is what can be read; {REMEDY}"
        )
    lengths, counts = np.unique(width - pads, return_counts=True)
    if tuple(zip(lengths.tolist(), counts.tolist(), strict=True)) != entry.segment_lengths:
        raise DataError(
            f"shard {path} holds other windows than {os.path.dirname(path)}/metadata.json says; {REMEDY}"
        )
    columns: dict[str, npt.NDArray[Any]] = {
        name: column.view(-1).numpy() for name, column in sequences.items()
    }
    return {
        "columns": columns,
        "sequence_ids": ids,
        "start_positions": starts + pads,
        "item_positions": None,
        "offsets": np.arange(len(pads) + 1) * width,
        "pads": pads,
    }
