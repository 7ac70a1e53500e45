"""`inspect`: whatever a path is, say what it holds."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

from sequifier_ray import storage
from sequifier_ray.config.load import load_preprocess, make_preprocess
from sequifier_ray.config.preprocess import PreprocessConfig
from sequifier_ray.data.metadata import read_description
from sequifier_ray.errors import ConfigError
from sequifier_ray.inspection.datasets import inspect_dataset, is_split
from sequifier_ray.inspection.facts import Facts
from sequifier_ray.inspection.tables import inspect_table
from sequifier_ray.preprocess.engine import LocalEngine
from sequifier_ray.preprocess.files import ENDINGS, data_ending
from sequifier_ray.preprocess.progress import Progress

DEFAULT_WINDOW = 65
DEFAULT_RATIOS = (0.8, 0.1, 0.1)


def inspect(
    path: str,
    config_path: str | None,
    overrides: dict[str, Any],
    world_size: int | None,
    verify: bool,
    report: Callable[[str], None],
) -> list[Facts]:
    """Facts about a raw table, a preprocessed split, or all splits of a dataset description (a JSON file).

    `overrides` are settings of preprocess.yaml; without `config_path` the others have their defaults.
    `report` gets progress and warnings. Raises ConfigError or DataError for what cannot be read.
    """
    if world_size is not None and world_size < 1:
        raise ConfigError(f"--world-size: found {world_size}; allowed: at least 1")
    if path.endswith(".json"):
        description = read_description(path, "inspect")
        root = storage.join(os.path.abspath(path), "..", "..", "..")
        splits = [storage.join(root, split) for split in description.split_paths]
    elif is_split(path):
        splits = [path]
    else:
        if verify:
            raise ConfigError(
                f"--verify: {path} is no preprocessed split (its metadata.json is not there); name a folder "
                "data/<name>-split<i> or configs/metadata_configs/<name>.json"
            )
        config = _config(path, config_path, overrides)
        progress = Progress.to(report)
        return [
            inspect_table(
                config, lambda line: report(f"warning: {line}"), world_size, LocalEngine(), progress
            )
        ]
    others = [name for name in overrides if name not in ("window_length", "window_stride")]
    if others:
        raise ConfigError(
            f"--set {others[0]}: {path} is preprocessed already; only its windows can be looked at anew"
        )
    width = overrides.get("window_length")
    window = None if width is None else (int(width), int(overrides.get("window_stride") or width))
    return [inspect_dataset(split, window, world_size, verify, report) for split in splits]


def _config(path: str, config_path: str | None, overrides: dict[str, Any]) -> PreprocessConfig:
    """The settings that a table is looked at with: those of a file, or the defaults and its own format."""
    address = path if "://" in path else os.path.abspath(path)
    if config_path is not None:
        return load_preprocess(config_path, {**overrides, "preprocessing_data_path": address})
    found = storage.find_files(address) or []
    endings = {data_ending(entry.path) for entry in found} or {data_ending(path)}
    is_parquet = bool(endings & set(ENDINGS["parquet"])) and not endings & set(ENDINGS["csv"])
    values: dict[str, Any] = {
        "project_root": ".",
        "preprocessing_data_path": address,
        "read_format": "parquet" if is_parquet else "csv",
        "window_length": DEFAULT_WINDOW,
        "split_ratios": list(DEFAULT_RATIOS),
    }
    return make_preprocess(values, overrides)
