"""The dataset description: vocabularies and statistics, fitted or taken from elsewhere."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import polars as pl

from sequifier_ray import storage
from sequifier_ray.data.metadata import (
    SPECIAL_TOKEN_IDS,
    ColumnStatistics,
    DatasetDescription,
    HashedRest,
    read_description,
)
from sequifier_ray.data.shards import smallest_id_dtype
from sequifier_ray.errors import ConfigError, DataError, nearest
from sequifier_ray.preprocess.columns import Int64
from sequifier_ray.preprocess.files import dataset_name
from sequifier_ray.preprocess.job import Job
from sequifier_ray.preprocess.kinds import BOOLEAN, INTEGER, REAL, TEXT, are_canonical
from sequifier_ray.preprocess.measure import PartitionFit, merge_moments
from sequifier_ray.preprocess.schema import Roles
from sequifier_ray.preprocess.vocabulary import (
    IdMap,
    build_id_map,
    listed_values,
    n_classes,
    read_precomputed_map,
)

if TYPE_CHECKING:
    from sequifier_ray.config.preprocess import PreprocessConfig

INDICATOR = "_is_missing"
ID_TYPES = {"uint8": "UInt8", "int16": "Int16", "int32": "Int32", "int64": "Int64"}


@dataclass(frozen=True)
class Vocabulary:
    """The ids of one categorical column."""

    id_map: IdMap
    n_classes: int
    hashing: HashedRest | None


def read_reused(config: PreprocessConfig) -> DatasetDescription | None:
    """The description of an earlier run that this one takes maps and statistics from."""
    if config.metadata_config_path is None:
        return None
    return read_description(config.resolve(config.metadata_config_path), "metadata_config_path")


def check_reused(reused: DatasetDescription, roles: Roles, path: str) -> None:
    """Raise ConfigError for a column that the earlier run does not know in this role."""
    for name in roles.columns:
        is_categorical = name in roles.categorical
        known = reused.id_maps if is_categorical else reused.selected_columns_statistics
        if name not in known:
            role = "categorical" if is_categorical else "real"
            raise ConfigError(
                f'metadata_config_path: {path} does not know the {role} column "{name}"'
                f"{nearest(name, known)}; its {role} columns are {sorted(known)}"
            )


def kinds_by_maps(
    config: PreprocessConfig, reused: DatasetDescription | None, kinds: Mapping[str, str]
) -> dict[str, str]:
    """Kinds as maps made earlier ask for them: one of texts is looked up by text as it is written, even where
    all values now are numbers or booleans. Raises DataError for a map that cannot be read."""
    maps = dict(reused.id_maps) if reused is not None else {}
    for name in config.use_precomputed_maps or ():
        path = config.resolve(f"configs/id_maps/{name}.json")
        if storage.exists(path):
            maps[name] = read_precomputed_map(path, name)
    changed = dict(kinds)
    for name, id_map in maps.items():
        holds_integers = (
            "[unknown]" not in id_map and are_canonical(pl.Series(list(id_map), dtype=pl.String)).all()
        )
        if not holds_integers and changed.get(name) in (INTEGER, BOOLEAN, REAL):
            changed[name] = TEXT
    return changed


def fit_description(
    job: Job,
    fits: Sequence[PartitionFit],
    values: Mapping[str, pl.Series],
    counts: Mapping[str, Int64],
    reused: DatasetDescription | None,
) -> DatasetDescription:
    """What every shard and model of this data set needs to know; `counts` says how often each of the
    `values` of a category occurs in the rows that were measured.

    Vocabularies and statistics come from the rows that were measured, or from `metadata_config_path` or
    `configs/id_maps/<column>.json` where the configuration says so. Raises DataError for columns without a
    value, ConfigError for types that do not fit and names that are taken.
    """
    config, roles = job.config, job.rules.roles
    vocabularies = {}
    for name in roles.categorical:
        vocabularies[name] = _vocabulary(config, name, values[name], counts[name], reused)
    statistics = {name: _statistics(name, fits, reused) for name in roles.real}
    types = {name: _stored_type(config, name, vocabularies.get(name)) for name in roles.columns}
    indicators = {f"{name}{INDICATOR}": name for name in roles.real if config.missing_indicator}
    for indicator, name in indicators.items():
        if indicator in roles.kinds:
            raise ConfigError(
                f'missing_indicator: "{indicator}", the indicator of "{name}", is a column already'
            )
    types |= dict.fromkeys(indicators, "Float32")
    statistics |= dict.fromkeys(indicators, ColumnStatistics(0.0, 1.0))
    hashed = {name: v.hashing for name, v in vocabularies.items() if v.hashing is not None}
    return DatasetDescription(
        n_classes={name: vocabulary.n_classes for name, vocabulary in vocabularies.items()},
        id_maps={name: vocabulary.id_map for name, vocabulary in vocabularies.items()},
        split_paths=tuple(split_paths(config)),
        column_data_types=types,
        selected_columns_statistics=statistics,
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
        hashed_columns=hashed,
        missing_real=config.missing_real,
        indicator_columns=indicators,
        curriculum_column=config.curriculum_column,
        sequence_id_column=config.sequence_id_column,
        sequence_id_type="String" if job.index.is_text else "Int64",
        item_position_column=config.item_position_column,
        item_position_type="Datetime" if job.rules.positions_are_times else "Int64",
    )


def split_paths(config: PreprocessConfig) -> list[str]:
    """The outputs of all splits, relative to project_root: folders, or files with `merge_output`."""
    if config.split_method == "value_cutoff":
        n_splits = len(config.split_values or ()) + 1
    else:
        n_splits = len(config.split_ratios or ())
    ending = f".{config.write_format}" if config.merge_output else ""
    return [f"data/{dataset_name(config)}-split{i}{ending}" for i in range(n_splits)]


def _vocabulary(
    config: PreprocessConfig,
    name: str,
    values: pl.Series,
    counts: Int64,
    reused: DatasetDescription | None,
) -> Vocabulary:
    if name in (config.use_precomputed_maps or ()):
        id_map = read_precomputed_map(config.resolve(f"configs/id_maps/{name}.json"), name)
        return Vocabulary(id_map, n_classes(id_map), None)
    if reused is not None:
        return Vocabulary(dict(reused.id_maps[name]), reused.n_classes[name], reused.hashed_columns.get(name))
    if not counts.any():
        where = "" if not len(values) or config.normalize_on_all_data else " in split 0"
        remedy = ", which its vocabulary is fitted on" if where else ""
        raise DataError(
            f'column "{name}" has no value{where}{remedy}; leave it out of selected_columns'
            + (", or set normalize_on_all_data: true" if where else ", or give it values")
        )
    limit = config.cardinality_config.get(name)
    id_map = build_id_map(listed_values(values, counts, limit).to_list())
    classes = n_classes(id_map)
    if limit is None or limit.hashing is None:
        return Vocabulary(id_map, classes, None)
    hashing = HashedRest(limit.hashing.num_buckets, limit.hashing.seed, classes)
    return Vocabulary(id_map, classes + hashing.num_buckets, hashing)


def _statistics(
    name: str, fits: Sequence[PartitionFit], reused: DatasetDescription | None
) -> ColumnStatistics:
    if reused is not None:
        return reused.selected_columns_statistics[name]
    moments = merge_moments(fits, name)
    if not moments.count:
        raise DataError(
            f'column "{name}" has no value in the rows that its statistics are fitted on; leave it out of '
            "selected_columns"
        )
    return ColumnStatistics(mean=moments.mean, std=moments.std)


def _stored_type(config: PreprocessConfig, name: str, vocabulary: Vocabulary | None) -> str:
    """The polars type name of a column in the shards: ids in the smallest integer type."""
    if vocabulary is not None:
        return ID_TYPES[np.dtype(smallest_id_dtype(vocabulary.n_classes)).name]
    return (config.column_data_types or {}).get(name, "Float32")


def columns_of_others(description: DatasetDescription) -> list[str]:
    """Categorical columns none of whose values has an id."""
    reserved = set(SPECIAL_TOKEN_IDS)
    return [
        name
        for name, id_map in description.id_maps.items()
        if id_map.keys() <= reserved and name not in description.hashed_columns
    ]


def constant_columns(description: DatasetDescription) -> list[str]:
    """Real columns that do not vary where they are fitted: all their values are stored as 0."""
    reals = [name for name in description.real_columns if name not in description.indicator_columns]
    if not description.normalize_real_columns:
        return []
    return [name for name in reals if description.selected_columns_statistics[name].std == 0.0]
