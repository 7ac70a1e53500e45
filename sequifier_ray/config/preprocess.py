"""preprocess.yaml: from tables to shards."""

from __future__ import annotations

from datetime import date, datetime
from itertools import pairwise
from typing import Any, Literal

from pydantic import Field, field_validator, model_validator
from typing_extensions import Self

from sequifier_ray.config.base import (
    Count,
    Flag,
    Integer,
    Names,
    NaturalNumber,
    Number,
    Problem,
    Project,
    Text,
    require,
)
from sequifier_ray.config.tables import Cardinality, CsvDialect

SUM_TOLERANCE = 1e-6
STORED_TYPES = (
    *("Int8", "Int16", "Int32", "Int64", "UInt8", "UInt16", "UInt32", "UInt64"),
    *("Float32", "Float64"),
)
Boundary = int | datetime


class PreprocessConfig(Project):
    """All settings of a preprocess run."""

    preprocessing_data_path: Text = Field(
        description="Input: a file, a folder (folders in it included), a pattern such as `in/2024-*.csv`, "
        "or a URI (`s3://…`, `file://…`). CSV may be compressed (gz, zst, bz2)."
    )
    read_format: Literal["csv", "parquet"] = Field(default="csv", description="Format of the input files.")
    csv: CsvDialect = Field(default=CsvDialect(), description="How CSV files are written.")
    sequence_id_column: Text = Field(
        default="sequenceId",
        description="Column that says which sequence a row belongs to: integers or text.",
    )
    item_position_column: Text = Field(
        default="itemPosition", description="Column that orders the rows of a sequence."
    )
    item_position: Literal["consecutive", "order"] = Field(
        default="consecutive",
        description="`consecutive`: integers that rise by exactly one within a sequence. `order`: any "
        "distinct integers, dates or timestamps; they order the events and are kept.",
    )
    write_format: Literal["csv", "parquet", "pt"] = Field(
        default="parquet", description="Format of the output; `pt` is memory-mapped in training."
    )
    merge_output: Flag = Field(
        default=True,
        description="One file per split (csv or parquet; one process only) instead of a folder of shards "
        "(pt or parquet). Distributed training needs false.",
    )
    selected_columns: Names | None = Field(default=None, description="Columns to process; null: all.")
    categorical_columns: Names | None = Field(
        default=None,
        description="Columns to encode as ids, where the type does not say so (text, booleans, integers do).",
    )
    real_columns: Names | None = Field(
        default=None, description="Columns to keep as numbers, where the type does not say so (floats do)."
    )
    column_data_types: dict[Text, Text] | None = Field(
        default=None,
        description="Type of every processed column, such as `Float32` or `Int64`; null: from the data. "
        "Integers make a column categorical (its ids are stored in the smallest integers that fit), floats "
        "make it real.",
    )
    missing_real: Literal["error", "mean", "zero"] = Field(
        default="error",
        description="Missing values (null, NaN) of real columns: refuse them, or put in the column's mean "
        "or 0. Statistics are those of the values that are there.",
    )
    missing_indicator: Flag = Field(
        default=False,
        description="With missing_real: mean or zero, add a column `<name>_is_missing` of 0 and 1 for every "
        "real column.",
    )
    cardinality_config: dict[Text, Cardinality] = Field(
        default={},
        description="By column: `{top_k: n}` or `{min_freq: n}`, and `hashing` for the other values.",
    )
    mask_column: Text | None = Field(
        default=None,
        description="Column of true/false or 1/0: where true, the event's categories become `[mask]` and "
        "its reals 0. Needs metadata_config_path.",
    )
    curriculum_column: Text | None = Field(
        default=None, description="Column of integers that is stored beside the features, as it is."
    )
    normalize_real_columns: Flag = Field(
        default=True, description="Store (x − mean) / (std + 1e-9) of real columns."
    )
    normalize_on_all_data: Flag = Field(
        default=False, description="Fit statistics and vocabularies on all rows instead of split 0 only."
    )
    split_ratios: tuple[Number, ...] | None = Field(
        default=None, description="Share of each split: positive, sum 1. Required, but null for value_cutoff."
    )
    split_method: Literal["within_sequence", "between_sequence", "value_cutoff"] = Field(
        default="within_sequence",
        description="Cut every sequence, deal out whole sequences, or cut at values of a column.",
    )
    split_column: Text | None = Field(
        default=None, description="value_cutoff: column that never decreases within a sequence."
    )
    split_values: tuple[Boundary, ...] | None = Field(
        default=None,
        description="value_cutoff: increasing boundaries (integers or timestamps); a value equal "
        "to one is in the later split.",
    )
    window_length: Count = Field(
        description="Width of a window in events: context plus `max_target_offset`, or more."
    )
    window_stride: Count | None = Field(
        default=None, description="Events between window starts; null: `window_length`."
    )
    max_target_offset: NaturalNumber = Field(
        default=1, description="Events that a window keeps for targets ahead of the context."
    )
    max_rows: Count | None = Field(default=None, description="First rows of the input to use; null: all.")
    seed: Integer = Field(default=1010, description="Seed of the between_sequence split.")
    n_cores: Count | None = Field(default=None, description="Threads of the local engine; null: all cores.")
    batches_per_file: Count = Field(
        default=1024,
        description="Accepted without effect: shards are cut by their bytes, about 8 or more a split.",
    )
    process_by_file: Flag = Field(default=True, description="Read one input file at a time; always so.")
    continue_preprocessing: Flag = Field(
        default=False,
        description="Go on from where a killed run of the same configuration and input was; false: start "
        "anew.",
    )
    metadata_config_path: Text | None = Field(
        default=None, description="Take vocabularies and statistics from the description of an earlier run."
    )
    use_precomputed_maps: tuple[Text, ...] | None = Field(
        default=None,
        description="Columns whose ids come from `configs/id_maps/<column>.json` (value → id, from 3).",
    )

    @field_validator("split_values", mode="before")
    @classmethod
    def _boundaries(cls, value: Any) -> Any:
        if value is None:
            return None
        text = f"found {value!r}; allowed: a list of integers, or of timestamps such as 2024-01-31"
        if not isinstance(value, (list, tuple)):
            raise ValueError(text)
        try:
            return tuple(map(_boundary, value))
        except (TypeError, ValueError) as error:
            raise ValueError(text) from error

    @model_validator(mode="after")
    def _check(self) -> Self:
        require(self._format_problems() + self._split_problems() + self._column_problems())
        return self

    def _format_problems(self) -> list[Problem]:
        if self.max_target_offset >= self.window_length:
            text = f"found {self.max_target_offset}; allowed: less than window_length {self.window_length}"
            return [Problem("max_target_offset", text)]
        if self.write_format == "pt" and self.merge_output:
            text = "found true; write_format: pt is written as a folder of shards; set merge_output: false"
            return [Problem("merge_output", text)]
        if self.write_format == "csv" and not self.merge_output:
            text = (
                "found false; write_format: csv is written as one file; set merge_output: "
                "true, or write parquet or pt"
            )
            return [Problem("merge_output", text)]
        return []

    def _split_problems(self) -> list[Problem]:
        problems: list[Problem] = []
        if self.split_method == "value_cutoff":
            if self.split_ratios is not None:
                text = (
                    "value_cutoff takes its splits from split_values; remove split_ratios or set it to null"
                )
                problems.append(Problem("split_ratios", text))
            for field in ("split_column", "split_values"):
                if not getattr(self, field):
                    problems.append(Problem(field, "split_method: value_cutoff needs it"))
            return problems + _order_problems(self.split_values or ())
        for field in ("split_column", "split_values"):
            if getattr(self, field) is not None:
                text = f"{self.split_method} does not use it; remove it or set split_method: value_cutoff"
                problems.append(Problem(field, text))
        if self.split_ratios is None:
            return [
                *problems,
                Problem("split_ratios", f"{self.split_method} needs it, such as [0.8, 0.1, 0.1]"),
            ]
        total = sum(self.split_ratios)
        if min(self.split_ratios, default=0) <= 0 or abs(total - 1) > SUM_TOLERANCE:
            text = (
                f"found {list(self.split_ratios)} with sum {total:.6g}; allowed: positive "
                "numbers that sum to 1"
            )
            problems.append(Problem("split_ratios", text))
        return problems

    def _column_problems(self) -> list[Problem]:
        problems = []
        for field in ("selected_columns", "categorical_columns", "real_columns", "use_precomputed_maps"):
            columns = getattr(self, field) or ()
            repeated = sorted({c for c in columns if columns.count(c) > 1})
            if repeated:
                problems.append(Problem(field, f"found {repeated} more than once; allowed: each column once"))
        both = [c for c in self.categorical_columns or () if c in (self.real_columns or ())]
        if both:
            text = f"found {both}, also in categorical_columns; allowed: each column in one of the two"
            problems.append(Problem("real_columns", text))
        return problems + self._type_problems() + self._option_problems()

    def _type_problems(self) -> list[Problem]:
        problems = []
        for column, name in (self.column_data_types or {}).items():
            if name not in STORED_TYPES:
                text = f"found {name}; allowed: {', '.join(STORED_TYPES)}"
                problems.append(Problem(f"column_data_types.{column}", text))
            elif name.startswith("Float") == (column in (self.categorical_columns or ())) and (
                column in (*(self.categorical_columns or ()), *(self.real_columns or ()))
            ):
                role, wanted = (
                    ("categorical", "an integer type")
                    if name.startswith("Float")
                    else ("real", "Float32 or Float64")
                )
                text = f"found {name} for a column that {role}_columns names; allowed: {wanted}"
                problems.append(Problem(f"column_data_types.{column}", text))
        if self.column_data_types is not None and self.selected_columns is not None:
            lacking = [c for c in self.feature_names() if c not in self.column_data_types]
            if lacking:
                text = f"lacks {lacking}; if set, it names every processed column"
                problems.append(Problem("column_data_types", text))
        return problems

    def _option_problems(self) -> list[Problem]:
        problems = []
        if self.missing_indicator and self.missing_real == "error":
            text = (
                "found true, but missing_real: error refuses missing values; set missing_real: mean or zero"
            )
            problems.append(Problem("missing_indicator", text))
        if self.mask_column is not None and self.metadata_config_path is None:
            text = f"found {self.mask_column}; masking needs maps and statistics of an unmasked run: set "
            problems.append(Problem("mask_column", text + "metadata_config_path"))
        if self.sequence_id_column == self.item_position_column:
            text = f"found {self.item_position_column}, which is sequence_id_column too; name two columns"
            problems.append(Problem("item_position_column", text))
        for column in self.cardinality_config:
            for field in ("real_columns", "use_precomputed_maps"):
                if column in (getattr(self, field) or ()):
                    text = f"{column} is also in {field}; keep one of the two"
                    problems.append(Problem(f"cardinality_config.{column}", text))
        if self.cardinality_config and self.metadata_config_path is not None:
            text = "the vocabularies come from metadata_config_path; remove one of the two"
            problems.append(Problem("cardinality_config", text))
        for column in self.use_precomputed_maps or ():
            if "/" in column:
                text = f"found {column!r}; a column with a / in its name cannot have a file of its own"
                problems.append(Problem("use_precomputed_maps", text))
        if self.read_format != "csv" and "csv" in self.model_fields_set:
            problems.append(Problem("csv", "describes CSV files, but read_format is parquet; remove it"))
        return problems

    def feature_names(self) -> list[str]:
        """`selected_columns` without the id and position columns, which may be listed among them."""
        keys = (self.sequence_id_column, self.item_position_column)
        return [name for name in self.selected_columns or () if name not in keys]


def _boundary(value: Any) -> Boundary:
    """An integer, or a timestamp; a date is its midnight."""
    if isinstance(value, bool) or not isinstance(value, (int, date, str)):
        raise TypeError(value)
    if isinstance(value, (int, datetime)):
        return value
    if isinstance(value, date):
        return datetime(value.year, value.month, value.day)
    return datetime.fromisoformat(value.replace("Z", "+00:00"))


def _order_problems(values: tuple[Boundary, ...]) -> list[Problem]:
    try:
        is_rising = all(a < b for a, b in pairwise(values))  # type: ignore[operator]
    except TypeError:
        return [
            Problem(
                "split_values", "mixes integers and timestamps, or timestamps with and without a time zone"
            )
        ]
    if is_rising:
        return []
    found = [v if isinstance(v, int) else v.isoformat(" ") for v in values]
    return [Problem("split_values", f"found {found}; allowed: strictly increasing boundaries")]


def ignored_settings(config: PreprocessConfig) -> list[str]:
    """Settings of the user that change nothing here, each with what happens instead."""
    lines = []
    if "batches_per_file" in config.model_fields_set:
        lines.append("batches_per_file has no effect: shards are cut by their bytes")
    if not config.process_by_file:
        lines.append("process_by_file: false has no effect: files are always read one at a time")
    return lines
