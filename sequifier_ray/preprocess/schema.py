"""One kind for every column over all files, and the role that each column gets."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from sequifier_ray.data.shards import KEY_COLUMNS
from sequifier_ray.errors import ConfigError, DataError, nearest
from sequifier_ray.preprocess.kinds import BOOLEAN, EMPTY, INTEGER, REAL, TEXT, TIME
from sequifier_ray.preprocess.source import SourceFile

if TYPE_CHECKING:
    from sequifier_ray.config.preprocess import PreprocessConfig
    from sequifier_ray.data.metadata import DatasetDescription

USABLE = (INTEGER, REAL, BOOLEAN, TEXT, EMPTY)


@dataclass(frozen=True)
class Roles:
    """What is made of every column: features in their order, each categorical or real; the columns that are
    no features; the kind of each of them; and whether a value_cutoff split has timestamps as boundaries."""

    columns: tuple[str, ...]
    categorical: tuple[str, ...]
    real: tuple[str, ...]
    sequence_id: str
    item_position: str
    split: str | None
    mask: str | None
    curriculum: str | None
    kinds: dict[str, str]
    cuts_at_times: bool

    @property
    def read(self) -> tuple[str, ...]:
        """All columns that are read from the files."""
        extra = [name for name in (self.split, self.mask, self.curriculum) if name is not None]
        return tuple(dict.fromkeys([self.sequence_id, self.item_position, *self.columns, *extra]))


def common_columns(files: Sequence[SourceFile]) -> tuple[str, ...]:
    """The columns of the first file, which all files must have. Raises DataError naming two that differ."""
    first = files[0]
    for file in files[1:]:
        if set(file.columns) != set(first.columns):
            missing = sorted(set(first.columns) - set(file.columns))
            extra = sorted(set(file.columns) - set(first.columns))
            parts = [f"lacks {missing}"] * bool(missing) + [f"has {extra} besides"] * bool(extra)
            raise DataError(
                f"{file.path} and {first.path} have different columns: {file.path} {' and '.join(parts)}; "
                "all files need the same columns"
            )
    return first.columns


def common_kinds(files: Sequence[SourceFile]) -> dict[str, str]:
    """The kind of every column of Parquet files; files without rows have no say.

    Integers and reals together are real. Raises DataError naming the two files that differ.
    """
    kinds = dict.fromkeys(files[0].columns, EMPTY)
    origin: dict[str, str] = {}
    for file in files:
        for name, kind in file.kinds.items() if sum(file.group_rows) else ():
            known = kinds[name]
            if EMPTY in (known, kind):
                kinds[name] = kind if known == EMPTY else known
            elif {known, kind} == {INTEGER, REAL}:
                kinds[name] = REAL
            elif known != kind:
                raise DataError(
                    f'column "{name}" is {known} in {origin[name]} and {kind} in {file.path}; '
                    "all files need the same column types"
                )
            if kind != EMPTY:
                origin.setdefault(name, file.path)
    return kinds


def columns_to_read(config: PreprocessConfig, names: Sequence[str]) -> tuple[str, ...]:
    """Key, feature and other columns that the configuration asks for, in the order of the files.

    Raises DataError without key columns, ConfigError for names that are no columns.
    """
    keys = (config.sequence_id_column, config.item_position_column)
    for field, name in zip(("sequence_id_column", "item_position_column"), keys, strict=True):
        if name not in names:
            raise DataError(
                f'the input has no column "{name}"{nearest(name, names)}; its columns are {list(names)}. '
                f"Every row needs its sequence and its position; {field} names them, "
                f"in preprocess.yaml or with --set {field}=NAME"
            )
    features = [name for name in names if name not in keys]
    others = (config.split_column, config.mask_column, config.curriculum_column)
    fields: dict[str, Sequence[str]] = {
        "selected_columns": config.feature_names(),
        "categorical_columns": config.categorical_columns or (),
        "real_columns": config.real_columns or (),
        "column_data_types": tuple(config.column_data_types or ()),
        "cardinality_config": tuple(config.cardinality_config),
        "use_precomputed_maps": config.use_precomputed_maps or (),
        "split_column": [config.split_column] if config.split_column else (),
        "mask_column": [config.mask_column] if config.mask_column else (),
        "curriculum_column": [config.curriculum_column] if config.curriculum_column else (),
    }
    for field, wanted in fields.items():
        for name in wanted:
            if name not in names:
                raise ConfigError(
                    f'{field}: "{name}" is not a column of the input{nearest(name, features)}; '
                    f"its columns are {features}"
                )
    if config.selected_columns is None:
        return tuple(names)
    selected = {*keys, *config.feature_names(), *others}
    return tuple(name for name in names if name in selected)


def choose_roles(
    config: PreprocessConfig,
    names: Sequence[str],
    kinds: Mapping[str, str],
    reused: DatasetDescription | None,
) -> Roles:
    """Which columns are features and of what role: by `categorical_columns`, `real_columns` and
    `column_data_types`, else as in an earlier run that is reused, else text, booleans and integers are
    categorical and other numbers real.

    Raises ConfigError or DataError for columns that cannot be what they are to be.
    """
    keys = (config.sequence_id_column, config.item_position_column)
    others = (config.mask_column, config.curriculum_column)
    cuts_at_times = not all(isinstance(value, int) for value in config.split_values or ())
    if config.selected_columns is not None:
        columns = config.feature_names()
    else:
        features = [name for name in names if name not in (*keys, *others) and not _is_trailing(name, kinds)]
        columns = [n for n in features if n != config.split_column or not (cuts_at_times or kinds[n] == TIME)]
    if not columns:
        raise ConfigError(f"no columns to process: the input holds only {' and '.join(keys)}")
    lacking = [name for name in columns if name not in (config.column_data_types or columns)]
    if lacking:
        raise ConfigError(f"column_data_types: lacks {lacking}; if set, it names every processed column")
    categorical = tuple(name for name in columns if _is_categorical(config, kinds[name], name, reused))
    real = tuple(name for name in columns if name not in categorical)
    _check_named(config, categorical, real)
    _check_stored(config, columns)
    read = {*keys, *columns, *(n for n in (*others, config.split_column) if n is not None)}
    return Roles(
        columns=tuple(columns),
        categorical=categorical,
        real=real,
        sequence_id=config.sequence_id_column,
        item_position=config.item_position_column,
        split=config.split_column,
        mask=config.mask_column,
        curriculum=config.curriculum_column,
        kinds={name: kind for name, kind in kinds.items() if name in read},
        cuts_at_times=cuts_at_times,
    )


def _is_trailing(name: str, kinds: Mapping[str, str]) -> bool:
    """Whether a column without a name is only what a separator at the end of every line makes.

    Raises DataError where it holds values: an index that some tool wrote is no feature.
    """
    if name:
        return False
    if kinds[name] != EMPTY:
        raise DataError(
            "the input has a column without a name that holds values, such as a row index; give it a name, "
            "or list "
            "the columns to process in selected_columns"
        )
    return True


def _is_categorical(
    config: PreprocessConfig, kind: str, name: str, reused: DatasetDescription | None
) -> bool:
    if kind == EMPTY:
        raise DataError(f'column "{name}" is all null; take it out of selected_columns or give it values')
    if kind not in USABLE:
        raise DataError(
            f'column "{name}" is of type {kind}, which can be neither categorical nor real; '
            "cast it, or leave it out of selected_columns"
        )
    if name in (config.categorical_columns or ()):
        return True
    if name in (config.real_columns or ()):
        return False
    if config.column_data_types is not None:
        return not config.column_data_types[name].startswith("Float")
    if reused is not None and name in reused.columns:
        return name in reused.id_maps
    return kind != REAL


def _check_named(config: PreprocessConfig, categorical: Sequence[str], real: Sequence[str]) -> None:
    for field in ("cardinality_config", "use_precomputed_maps"):
        for name in getattr(config, field) or ():
            if name in real:
                raise ConfigError(f'{field}: "{name}" is a real column, and only categories have ids')
            if name not in categorical:
                raise ConfigError(f'{field}: "{name}" is not processed; add it to selected_columns')


def _check_stored(config: PreprocessConfig, columns: Sequence[str]) -> None:
    """Files of tables keep sequence and position beside the features, under names of their own."""
    if config.write_format == "pt":
        return
    for name in (*columns, config.curriculum_column):
        if name in KEY_COLUMNS:
            raise ConfigError(
                f'selected_columns: the column "{name}" cannot be stored as {config.write_format}, where '
                "this is the name of the sequence's id or position itself; rename it, leave it out, or set "
                "write_format: pt"
            )


def role_lines(roles: Roles) -> list[str]:
    """One line a role: the columns, categories with the kind of their values."""
    categories = [f"{name} ({roles.kinds[name]})" for name in roles.categorical]
    lines = [f"categorical: {', '.join(categories)}"] * bool(categories)
    return lines + [f"real: {', '.join(roles.real)}"] * bool(roles.real)
