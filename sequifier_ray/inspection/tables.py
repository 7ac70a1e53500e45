"""Facts about raw tables, before anything is preprocessed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import polars as pl

from sequifier_ray.config.preprocess import PreprocessConfig
from sequifier_ray.data.shards import smallest_id_dtype
from sequifier_ray.inspection.facts import ColumnFacts, Facts, Lengths, SplitFacts, histogram_of, split_facts
from sequifier_ray.preprocess.engine import LocalEngine
from sequifier_ray.preprocess.files import find_input_files
from sequifier_ray.preprocess.kinds import (
    BOOLEAN,
    INTEGER,
    KINDS,
    REAL,
    TEXT,
    as_integers,
    as_numbers,
    as_text,
)
from sequifier_ray.preprocess.partitions import cut_partitions
from sequifier_ray.preprocess.progress import Progress
from sequifier_ray.preprocess.scan import Scan, scan_all
from sequifier_ray.preprocess.schema import columns_to_read, common_columns, common_kinds
from sequifier_ray.preprocess.sequences import SequenceIndex
from sequifier_ray.preprocess.source import SourceFile, Task, describe_file, read_blocks
from sequifier_ray.preprocess.splits import between_sequence_split, within_sequence_bounds
from sequifier_ray.preprocess.values import is_number_null

# More distinct values than these are not told apart.
MOST_DISTINCT = 1_000_000
FIRST_IDS = 3
REAL_BYTES = 4
# What a row takes while it is worked on, about: 8 a column.
ROW_BYTES_PER_COLUMN = 8


@dataclass(frozen=True)
class Profile:
    """What profiling needs: the files, and the kinds of the columns to look at."""

    files: tuple[SourceFile, ...]
    kinds: dict[str, str]
    decimal: str


@dataclass(frozen=True)
class ColumnProfile:
    """Some rows of a column: `distinct` values, sorted, at most `MOST_DISTINCT` of them."""

    missing: int
    distinct: pl.Series
    is_cut: bool
    minimum: object
    maximum: object
    is_counted: bool = True

    def merge(self, other: ColumnProfile) -> ColumnProfile:
        """The profile of both parts."""
        values = pl.concat([self.distinct, other.distinct]).unique()
        lows = [v for v in (self.minimum, other.minimum) if v is not None]
        highs = [v for v in (self.maximum, other.maximum) if v is not None]
        return ColumnProfile(
            self.missing + other.missing,
            values.head(MOST_DISTINCT),
            self.is_cut or other.is_cut or len(values) > MOST_DISTINCT,
            min(lows, default=None),  # type: ignore[type-var]
            max(highs, default=None),  # type: ignore[type-var]
            self.is_counted,
        )


def profile_task(profile: Profile, task: Task) -> tuple[int, dict[str, ColumnProfile]]:
    """Rows of a task, and the profile of every column in them."""
    rows = 0
    found: dict[str, ColumnProfile] = {}
    for block in read_blocks(profile.files[task.file], task, tuple(profile.kinds)):
        rows += len(block.frame)
        for name, kind in profile.kinds.items():
            part = profile_column(block.column(name), kind, profile.decimal)
            found[name] = part if name not in found else found[name].merge(part)
    return rows, found


def profile_column(column: pl.Series, kind: str, decimal: str) -> ColumnProfile:
    """Look at some values of a column of a kind; of lists and records only whether there are some."""
    if kind not in KINDS:
        return ColumnProfile(column.null_count(), pl.Series([], dtype=pl.Null), False, None, None, False)
    values = _typed(column, kind, decimal)
    present = values.drop_nulls()
    distinct = present.unique()
    return ColumnProfile(
        missing=len(values) - len(present),
        distinct=distinct.head(MOST_DISTINCT),
        is_cut=len(distinct) > MOST_DISTINCT,
        minimum=distinct.min(),
        maximum=distinct.max(),
    )


def _typed(column: pl.Series, kind: str, decimal: str) -> pl.Series:
    """The column's values as what its kind says; null where they are missing."""
    is_text = column.dtype == pl.String
    if is_text and kind in (INTEGER, REAL, BOOLEAN):
        missing = pl.Series([None], dtype=pl.String).new_from_index(0, len(column))
        column = column.zip_with(~is_number_null(column).fill_null(value=False), missing)
    if kind == INTEGER:
        return as_integers(column) if is_text else column
    if kind == REAL:
        numbers = as_numbers(column, decimal) if is_text else column.cast(pl.Float64, strict=False)
        return numbers.fill_nan(None)
    if kind == BOOLEAN and is_text:
        return column.str.strip_chars().str.to_lowercase()
    if kind == TEXT:
        return as_text(column)
    return column


def inspect_table(
    config: PreprocessConfig,
    warn: Callable[[str], None],
    world_size: int | None,
    engine: LocalEngine,
    progress: Progress,
) -> Facts:
    """Read a table twice: its sequences and kinds, then its columns' values.

    Raises ConfigError or DataError as `preprocess` does for the same input.
    """
    path = config.resolve(config.preprocessing_data_path)
    entries = find_input_files(path, config.read_format, warn)
    files = list(engine.map(describe_file, config, entries))
    names = common_columns(files)
    wanted = columns_to_read(config, names)
    scan = Scan(tuple(files), wanted, config.sequence_id_column, config.csv.decimal)
    index, evidence, tasks = scan_all(scan, config.max_rows, engine, progress)
    kinds = {n: e.kind for n, e in evidence.items()} if config.read_format == "csv" else common_kinds(files)
    profile = Profile(tuple(files), {name: kinds[name] for name in wanted}, config.csv.decimal)
    columns = _profile(profile, tasks, engine, progress)
    histogram = histogram_of(index.n_rows)
    facts = Facts(
        path=path,
        kind=f"{config.read_format} table",
        files=len(entries),
        bytes=sum(entry.bytes for entry in entries),
        rows=int(index.n_rows.sum()),
        sequences=len(index.n_rows),
        lengths=Lengths.of(histogram),
        length_histogram=tuple(sorted(histogram.items())),
        columns=tuple(_facts(config, name, kinds[name], column) for name, column in columns.items()),
        window=(config.window_length, config.window_stride or config.window_length),
        splits=(),
        world_size=world_size,
        verified=False,
    )
    return replace(facts, splits=_splits(config, index, facts, world_size))


def _profile(
    profile: Profile, tasks: Sequence[Task], engine: LocalEngine, progress: Progress
) -> dict[str, ColumnProfile]:
    results = progress.follow(
        "columns", engine.map(profile_task, profile, tasks), len(tasks), lambda result: result[0]
    )
    merged: dict[str, ColumnProfile] = {}
    for _, found in results:
        for name, part in found.items():
            merged[name] = part if name not in merged else merged[name].merge(part)
    return merged


def _facts(config: PreprocessConfig, name: str, kind: str, column: ColumnProfile) -> ColumnFacts:
    if name == config.sequence_id_column:
        role = "id"
    elif name == config.item_position_column:
        role = "position"
    elif name in (config.real_columns or ()) or (
        kind == REAL and name not in (config.categorical_columns or ())
    ):
        role = "real"
    else:
        role = "categorical" if kind in (INTEGER, REAL, BOOLEAN, TEXT) else "-"
    low, high = column.minimum, column.maximum
    return ColumnFacts(
        name=name,
        role=role,
        kind=kind,
        missing=column.missing,
        distinct=len(column.distinct) if column.is_counted else None,
        distinct_is_least=column.is_cut,
        minimum=None if low is None else str(low),
        maximum=None if high is None else str(high),
    )


def _splits(
    config: PreprocessConfig, index: SequenceIndex, facts: Facts, world_size: int | None
) -> tuple[SplitFacts, ...]:
    """What each split would hold. A value_cutoff split depends on every row, and is not worked out."""
    if config.split_ratios is None:
        return ()
    n_rows, ratios = index.n_rows, config.split_ratios
    if config.split_method == "within_sequence":
        upper = within_sequence_bounds(n_rows, ratios)
        parts = np.diff(upper, axis=1, prepend=0)
    else:
        split = between_sequence_split(index.ids.to_list(), ratios, config.seed)
        parts = np.where(split[:, None] == np.arange(len(ratios))[None, :], n_rows[:, None], 0)
    event_bytes = sum(_column_bytes(column) for column in facts.columns)
    bounds = cut_partitions(n_rows, ROW_BYTES_PER_COLUMN * len(facts.columns))
    found = []
    for i in range(len(ratios)):
        lengths = parts[:, i]
        if not lengths.any():
            continue
        shards = int((np.add.reduceat(lengths, bounds[:-1]) > 0).sum())
        histogram = histogram_of(lengths[lengths > 0])
        size = int(lengths.sum()) * event_bytes + 24 * int((lengths > 0).sum())
        found.append(
            split_facts(
                f"split {i}",
                histogram,
                facts.window or (1, 1),
                shards,
                size,
                is_estimate=True,
                world_size=world_size,
            )
        )
    return tuple(found)


def _column_bytes(column: ColumnFacts) -> int:
    if column.role == "real":
        return REAL_BYTES
    if column.role == "categorical" and column.distinct is not None:
        return int(smallest_id_dtype(column.distinct + FIRST_IDS).itemsize)
    return 0
