"""`inspect`: whatever a path is, say what it holds."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

from sequifier_ray import storage
from sequifier_ray.config.load import load_preprocess, make_preprocess
from sequifier_ray.config.preprocess import PreprocessConfig
from sequifier_ray.data.metadata import DatasetDescription, read_description, read_split
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
        root = storage.join(os.getcwd(), path, "..", "..", "..")
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
    others = [f"--set {name}" for name in overrides if name not in ("window_length", "window_stride")]
    if config_path is not None:
        others.insert(0, "--config-path")
    if others:
        raise ConfigError(
            f"{others[0]}: {path} is preprocessed already; only its windows can be looked at anew, with "
            "--window-length and --window-stride"
        )
    found = []
    for split in splits:
        window = _window(read_split(split).description, overrides) if overrides else None
        found.append(inspect_dataset(split, window, world_size, verify, report))
    return found


def _window(description: DatasetDescription, overrides: dict[str, Any]) -> tuple[int, int]:
    """Width and stride to look through: those given, checked as those of preprocess.yaml; else the stored
    ones. Raises ConfigError for numbers that are no window."""
    values = {
        "project_root": ".",
        "preprocessing_data_path": ".",
        "split_ratios": [1.0],
        "window_length": description.window_length,
        "window_stride": None if "window_length" in overrides else description.window_stride,
        "max_target_offset": 0,
    }
    config = make_preprocess(values, overrides)
    return config.window_length, config.window_stride or config.window_length


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
