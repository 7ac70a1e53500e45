"""The dataset description: vocabularies and statistics, fitted or taken from elsewhere."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from sequifier_ray.data.metadata import (
    SPECIAL_TOKEN_IDS,
    ColumnStatistics,
    DatasetDescription,
    read_description,
)
from sequifier_ray.data.shards import smallest_id_dtype
from sequifier_ray.errors import ConfigError, DataError, nearest
from sequifier_ray.preprocess.columns import EventTable, Int64
from sequifier_ray.preprocess.splits import Segments
from sequifier_ray.preprocess.vocabulary import (
    IdMap,
    build_id_map,
    fit_moments,
    n_classes,
    read_precomputed_map,
    values_in,
)

if TYPE_CHECKING:
    from sequifier_ray.config.preprocess import PreprocessConfig

REAL_TYPES = ("Float32", "Float64")


def fit_description(
    config: PreprocessConfig, table: EventTable, columns: tuple[str, ...], splits: tuple[Segments, ...]
) -> DatasetDescription:
    """What every shard and model of this data set needs to know.

    Vocabularies and statistics come from split 0 alone, or from all rows with `normalize_on_all_data`;
    from `metadata_config_path` or `configs/id_maps/<column>.json` where the configuration says so.
    Raises ConfigError or DataError for columns that an earlier run does not know or that have no value.
    """
    reused = None
    if config.metadata_config_path is not None:
        reused = read_description(config.resolve(config.metadata_config_path))
        _check_reused(reused, table, config.metadata_config_path)
    rows = np.arange(len(table.sequence_ids)) if config.normalize_on_all_data else splits[0].rows()
    id_maps = {name: _id_map(config, table, name, rows, reused) for name in table.categorical}
    classes = {name: n_classes(id_map) for name, id_map in id_maps.items()}
    return DatasetDescription(
        n_classes=classes,
        id_maps=id_maps,
        split_paths=tuple(split_paths(config)),
        column_data_types={name: _stored_type(config, name, classes.get(name)) for name in columns},
        selected_columns_statistics={name: _statistics(table, name, rows, reused) for name in table.real},
        normalize_real_columns=config.normalize_real_columns,
        normalize_on_all_data=config.normalize_on_all_data,
        split_ratios=None if config.split_ratios is None else tuple(config.split_ratios),
        split_method=config.split_method,
        window_length=config.window_length,
        window_stride=config.window_length if config.window_stride is None else config.window_stride,
        max_target_offset=config.max_target_offset,
        special_token_ids=dict(SPECIAL_TOKEN_IDS),
        write_format=config.write_format,
        merge_output=config.merge_output,
    )


def dataset_name(config: PreprocessConfig) -> str:
    """The input's file or folder name without extension: the stem of every output name."""
    base = config.preprocessing_data_path.rstrip("/").rsplit("/", 1)[-1]
    extension = f".{config.read_format}"
    return base[: -len(extension)] if base.lower().endswith(extension) else base


def split_paths(config: PreprocessConfig) -> list[str]:
    """The outputs of all splits, relative to project_root: folders, or files with `merge_output`."""
    if config.split_method == "value_cutoff":
        n_splits = len(config.split_values or ()) + 1
    else:
        n_splits = len(config.split_ratios or ())
    ending = f".{config.write_format}" if config.merge_output else ""
    return [f"data/{dataset_name(config)}-split{i}{ending}" for i in range(n_splits)]


def _check_reused(reused: DatasetDescription, table: EventTable, path: str) -> None:
    for name in (*table.categorical, *table.real):
        known = reused.id_maps if name in table.categorical else reused.selected_columns_statistics
        if name not in known:
            role = "categorical" if name in table.categorical else "real"
            raise ConfigError(
                f'metadata_config_path: {path} does not know the {role} column "{name}"'
                f"{nearest(name, known)}; its {role} columns are {sorted(known)}"
            )


def _id_map(
    config: PreprocessConfig, table: EventTable, name: str, rows: Int64, reused: DatasetDescription | None
) -> IdMap:
    if name in (config.use_precomputed_maps or ()):
        return read_precomputed_map(config.resolve(f"configs/id_maps/{name}.json"), name)
    if reused is not None:
        return dict(reused.id_maps[name])
    values = values_in(table.categorical[name], rows)
    id_map = build_id_map(values.to_list())
    if n_classes(id_map) == n_classes({}):
        raise DataError(
            f'column "{name}" has no value in split 0, which its vocabulary is fitted on; leave it out of '
            "selected_columns, or set normalize_on_all_data: true"
        )
    return id_map


def _statistics(
    table: EventTable, name: str, rows: Int64, reused: DatasetDescription | None
) -> ColumnStatistics:
    if reused is not None:
        return reused.selected_columns_statistics[name]
    moments = fit_moments(table.real[name], rows)
    return ColumnStatistics(mean=moments.mean, std=moments.std)


def _stored_type(config: PreprocessConfig, name: str, classes: int | None) -> str:
    """The polars type name of a column in the shards: ids in the smallest integer type."""
    if classes is not None:
        return {"uint8": "UInt8", "int16": "Int16", "int32": "Int32", "int64": "Int64"}[
            np.dtype(smallest_id_dtype(classes)).name
        ]
    wanted = (config.column_data_types or {}).get(name, "Float32")
    if wanted not in REAL_TYPES:
        raise ConfigError(
            f'column_data_types: real column "{name}" is to be {wanted}; '
            f"allowed are {' and '.join(REAL_TYPES)}"
        )
    return wanted
