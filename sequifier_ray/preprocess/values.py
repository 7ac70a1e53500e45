"""Raw blocks → arrays: every value in the type that all later passes work with, or a flaw."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
import polars as pl

from sequifier_ray.preprocess.columns import (
    CURRICULUM,
    MASK,
    SPLIT,
    CodedColumn,
    EventTable,
    Float64,
    Int64,
    code_column,
)
from sequifier_ray.preprocess.dialect import NUMBER_NULLS
from sequifier_ray.preprocess.flaws import Flaw, flaw_at, quoted
from sequifier_ray.preprocess.kinds import BOOLEAN, INTEGER, REAL, TEXT, as_integers, as_numbers
from sequifier_ray.preprocess.schema import Roles
from sequifier_ray.preprocess.sequences import SequenceIndex
from sequifier_ray.preprocess.source import Block

if TYPE_CHECKING:
    from sequifier_ray.config.preprocess import PreprocessConfig

MISSING_REMEDY = "set missing_real: mean or zero, or fill or drop these rows"


@dataclass(frozen=True)
class ReadingRules:
    """What turning values into arrays depends on."""

    roles: Roles
    decimal: str
    refuses_missing: bool
    positions_are_times: bool

    @staticmethod
    def of(config: PreprocessConfig, roles: Roles) -> ReadingRules:
        """The rules of a run."""
        kind = roles.kinds[roles.item_position]
        return ReadingRules(
            roles=roles,
            decimal=config.csv.decimal,
            refuses_missing=config.missing_real == "error",
            positions_are_times=config.item_position == "order" and kind != INTEGER,
        )


@dataclass(frozen=True)
class CodedTable:
    """A table, and for each categorical column the sorted values that its codes count."""

    table: EventTable
    values: dict[str, pl.Series]


def convert(block: Block, rules: ReadingRules, index: SequenceIndex) -> tuple[CodedTable, list[Flaw]]:
    """A block as arrays, and what is wrong with it; wrong values are then 0."""
    flaws: list[Flaw] = []
    roles, frame = rules.roles, block.frame
    block = replace(block, keys=(roles.sequence_id, roles.item_position))
    ids = index.keys_of(frame[roles.sequence_id])
    if rules.positions_are_times:
        positions = _moments(block, frame[roles.item_position], "item_position_column", flaws)
    else:
        positions = _integers(block, frame[roles.item_position], flaws, "positions are integers")
    categorical = {}
    for name in roles.categorical:
        categorical[name] = _categories(block, frame[name], roles.kinds[name], rules.decimal, flaws)
    real = {name: _reals(block, frame[name], rules, flaws) for name in roles.real}
    codes = {name: column.codes for name, column in categorical.items()}
    table = EventTable(ids, positions, codes, real, _extra(block, rules, flaws))
    return CodedTable(table, {name: column.values for name, column in categorical.items()}), flaws


def _extra(block: Block, rules: ReadingRules, flaws: list[Flaw]) -> dict[str, Int64]:
    roles, frame = rules.roles, block.frame
    extra: dict[str, Int64] = {}
    if roles.split is not None:
        if rules.roles.cuts_at_times:
            extra[SPLIT] = _moments(block, frame[roles.split], "split_column", flaws)
        else:
            extra[SPLIT] = _integers(block, frame[roles.split], flaws, "split_values are integers")
    if roles.mask is not None:
        extra[MASK] = _flags(block, frame[roles.mask], flaws)
    if roles.curriculum is not None:
        extra[CURRICULUM] = _integers(block, frame[roles.curriculum], flaws, "curriculum values are integers")
    return extra


def is_number_null(column: pl.Series) -> pl.Series:
    """Where a text means a missing number, such as `NA`; null stays null."""
    return column.str.strip_chars().is_in(NUMBER_NULLS)


def _integers(block: Block, column: pl.Series, flaws: list[Flaw], why: str) -> Int64:
    """A column that must hold 64-bit integers throughout."""
    if column.dtype == pl.String:
        numbers = as_integers(column)
    elif column.dtype.is_integer() or column.dtype == pl.Null:
        numbers = column.cast(pl.Int64, strict=False)
    else:
        numbers = pl.Series([None] * len(column), dtype=pl.Int64)
    _add_nulls(block, column, flaws)
    wrong = numbers.is_null() & column.is_not_null()
    if wrong.any():
        subject = f"column {quoted(column.name)} holds {{n}} value{{s}} other than 64-bit integers"
        if column.dtype != pl.String:
            subject += f" (it is of type {column.dtype})"
        first = column.filter(wrong)[0]
        flaws.append(flaw_at(block, wrong, subject, f"{why}: mend them, or name another column", first))
    return numbers.fill_null(0).to_numpy()


def _add_nulls(block: Block, column: pl.Series, flaws: list[Flaw]) -> None:
    if column.null_count():
        subject = f"column {quoted(column.name)} holds {{n}} null value{{s}}"
        flaws.append(flaw_at(block, column.is_null(), subject, "every row needs a value there"))


def _moments(block: Block, column: pl.Series, field: str, flaws: list[Flaw]) -> Int64:
    """Dates or timestamps as microseconds since 1970 in UTC; no time zone means UTC."""
    _add_nulls(block, column, flaws)
    times = column
    if column.dtype == pl.String:
        times = column.str.strip_chars().str.to_datetime(time_unit="us", time_zone="UTC", strict=False)
    if times.dtype not in (pl.Date, pl.Datetime):
        times = pl.Series([None] * len(column), dtype=pl.Datetime("us"))
    wrong = times.is_null() & column.is_not_null()
    if wrong.any():
        subject = f"{field} {quoted(column.name)} holds {{n}} value{{s}} other than ISO dates or timestamps"
        if column.dtype != pl.String:
            subject += f" (it is of type {column.dtype})"
        remedy = "write them like 2024-01-31 or 2024-01-31T12:30:00Z"
        if field == "split_column":
            remedy += ", or give split_values as integers"
        flaws.append(flaw_at(block, wrong, subject, remedy, column.filter(wrong)[0]))
    if times.dtype == pl.Date:
        times = times.cast(pl.Datetime("us"))
    # the physical value of a time with a zone is UTC already
    whole = times.dt.cast_time_unit("us")
    finer = (whole.dt.cast_time_unit("ns") != times.dt.cast_time_unit("ns")).fill_null(value=False)
    if finer.any():
        subject = f"{field} {quoted(column.name)} holds {{n}} timestamp{{s}} finer than microseconds"
        flaws.append(flaw_at(block, finer, subject, "round them, or use integers"))
    return whole.to_physical().fill_null(0).to_numpy()


def _flags(block: Block, column: pl.Series, flaws: list[Flaw]) -> Int64:
    """Booleans or 0 and 1 as 0 and 1; null is 0."""
    if column.dtype == pl.String:
        column = column.str.to_lowercase().replace({"true": "1", "false": "0"})
    numbers = column.cast(pl.Int64, strict=False).fill_null(0).alias(column.name)
    wrong = ~numbers.is_in([0, 1])
    if wrong.any():
        subject = f"mask_column {quoted(column.name)} holds {{n}} value{{s}} other than true, false, 0 and 1"
        flaws.append(flaw_at(block, wrong, subject, "mend them", column.filter(wrong)[0]))
    return numbers.to_numpy()


def _numbers(column: pl.Series, decimal: str) -> tuple[pl.Series, pl.Series]:
    """A column as float64 with null for what is missing, and where it holds something else than numbers."""
    if column.dtype != pl.String:
        numbers = column.cast(pl.Float64, strict=False)
        return numbers, numbers.is_null() & column.is_not_null()
    numbers = as_numbers(column, decimal)
    if numbers.null_count() == column.null_count():
        return numbers, pl.Series([False]).new_from_index(0, len(column))
    wrong = numbers.is_null() & column.is_not_null() & ~is_number_null(column).fill_null(value=True)
    return numbers, wrong


def _reals(block: Block, column: pl.Series, rules: ReadingRules, flaws: list[Flaw]) -> Float64:
    """A real column as float64, NaN where it is missing."""
    name = quoted(column.name)
    numbers, wrong = _numbers(column, rules.decimal)
    if wrong.any():
        subject = f"real column {name} holds {{n}} value{{s}} other than numbers"
        remedy = "mend them, list them in csv.null_values, or name the column in categorical_columns"
        flaws.append(flaw_at(block, wrong, subject, remedy, column.filter(wrong)[0]))
        numbers = (
            numbers.to_frame().select(pl.when(~wrong).then(pl.col(numbers.name)).otherwise(0.0)).to_series()
        )
    values = numbers.fill_null(np.nan).to_numpy()
    if np.isfinite(values).all():
        return values
    infinite = np.isinf(values)
    if infinite.any():
        subject = f"real column {name} holds {{n}} infinite value{{s}}"
        first = float(values[int(np.argmax(infinite))])
        flaws.append(flaw_at(block, pl.Series(infinite), subject, "mend or drop these rows", first))
    missing = np.isnan(values)
    if rules.refuses_missing and missing.any():
        subject = f"real column {name} holds {{n}} missing value{{s}} (null or NaN)"
        flaws.append(flaw_at(block, pl.Series(missing), subject, MISSING_REMEDY))
    return values


def _categories(block: Block, column: pl.Series, kind: str, decimal: str, flaws: list[Flaw]) -> CodedColumn:
    """A categorical column over its strings, or over 64-bit integers (booleans as 0 and 1)."""
    if kind == TEXT:
        text = column if column.dtype in (pl.String, pl.Binary) else column.cast(pl.String)
        coded = text.cast(pl.String, strict=False)
        wrong = coded.is_null() & column.is_not_null()
        integers = coded
    elif kind == BOOLEAN and column.dtype == pl.String:
        low = column.str.strip_chars().str.to_lowercase()
        integers = low.replace_strict({"true": 1, "false": 0}, default=None, return_dtype=pl.Int64)
        wrong = pl.Series([False]).new_from_index(0, len(column))
    elif kind == REAL or column.dtype.is_float():
        numbers, wrong = _numbers(column, decimal)
        integers = numbers.cast(pl.Int64, strict=False)
        wrong |= (
            (integers.cast(pl.Float64) != numbers) | (integers.is_null() & numbers.is_not_null())
        ).fill_null(value=False)
    else:
        integers = as_integers(column) if column.dtype == pl.String else column.cast(pl.Int64, strict=False)
        is_missing = column.is_null()
        if column.dtype == pl.String and integers.null_count() > column.null_count():
            is_missing |= is_number_null(column).fill_null(value=False)
        wrong = integers.is_null() & ~is_missing
    if wrong.any():
        subject = f"categorical column {quoted(column.name)} holds {{n}} value{{s}} unfit as categories"
        remedy = (
            "categories are text, booleans or 64-bit integers: cast them, or name the column in real_columns"
        )
        flaws.append(flaw_at(block, wrong, subject, remedy, column.filter(wrong)[0]))
    return code_column(integers)


def extra_names(roles: Roles) -> Mapping[str, str]:
    """The extra columns of a run's tables by their names in the input."""
    named = {SPLIT: roles.split, MASK: roles.mask, CURRICULUM: roles.curriculum}
    return {key: name for key, name in named.items() if name is not None}
