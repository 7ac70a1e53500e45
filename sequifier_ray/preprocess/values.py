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
from sequifier_ray.preprocess.kinds import BOOLEAN, INTEGER, REAL, TEXT, as_integers, as_numbers, as_text
from sequifier_ray.preprocess.schema import Roles
from sequifier_ray.preprocess.sequences import SequenceIndex
from sequifier_ray.preprocess.source import Block

if TYPE_CHECKING:
    from sequifier_ray.config.preprocess import PreprocessConfig

MISSING_REMEDY = "set missing_real: mean or zero, or fill or drop these rows"
# A date, and after it perhaps hours and minutes, seconds, a fraction of them, and a time zone.
ISO_PATTERN = (
    r"^(\d{4}-\d{2}-\d{2})(?:[Tt ](\d{2}:\d{2})(?::(\d{2})(?:[.,](\d+))?)?([Zz]|[+-]\d{2}(?::?\d{2})?)?)?$"
)
# From here on float64 does not tell neighbouring integers apart.
LARGEST_EXACT = 2.0**53


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
    roles = rules.roles
    block = replace(block, keys=(roles.sequence_id, roles.item_position))
    ids = index.keys_of(block.column(roles.sequence_id))
    if rules.positions_are_times:
        positions = _moments(block, roles.item_position, "item_position_column", flaws)
    else:
        positions = _integers(
            block,
            roles.item_position,
            flaws,
            "positions are integers, or with item_position: order any numbers or timestamps",
        )
    categorical = {}
    for name in roles.categorical:
        categorical[name] = _categories(block, name, roles.kinds[name], rules.decimal, flaws)
    real = {name: _reals(block, name, rules, flaws) for name in roles.real}
    codes = {name: column.codes for name, column in categorical.items()}
    table = EventTable(ids, positions, codes, real, _extra(block, rules, flaws))
    return CodedTable(table, {name: column.values for name, column in categorical.items()}), flaws


def _extra(block: Block, rules: ReadingRules, flaws: list[Flaw]) -> dict[str, Int64]:
    roles = rules.roles
    extra: dict[str, Int64] = {}
    if roles.split is not None:
        if rules.roles.cuts_at_times:
            extra[SPLIT] = _moments(block, roles.split, "split_column", flaws)
        else:
            extra[SPLIT] = _integers(block, roles.split, flaws, "split_values are integers")
    if roles.mask is not None:
        extra[MASK] = _flags(block, roles.mask, rules.decimal, flaws)
    if roles.curriculum is not None:
        extra[CURRICULUM] = _integers(block, roles.curriculum, flaws, "curriculum values are integers")
    return extra


def is_number_null(column: pl.Series) -> pl.Series:
    """Where a text means a missing number, such as `NA`; null stays null."""
    return column.str.strip_chars().is_in(NUMBER_NULLS)


def _integers(block: Block, name: str, flaws: list[Flaw], why: str) -> Int64:
    """A column that must hold 64-bit integers throughout."""
    column = block.column(name)
    if column.dtype == pl.String:
        numbers = as_integers(column)
    elif column.dtype.is_integer() or column.dtype == pl.Null:
        numbers = column.cast(pl.Int64, strict=False)
    else:
        numbers = pl.Series([None] * len(column), dtype=pl.Int64)
    _add_nulls(block, name, flaws)
    wrong = numbers.is_null() & column.is_not_null()
    if wrong.any():
        subject = f"column {quoted(name)} holds {{n}} value{{s}} other than 64-bit integers"
        if column.dtype != pl.String:
            subject += f" (it is of type {column.dtype})"
        first = column.filter(wrong)[0]
        flaws.append(flaw_at(block, wrong, subject, f"{why}: mend them, or name another column", first))
    return numbers.fill_null(0).to_numpy()


def _add_nulls(block: Block, name: str, flaws: list[Flaw]) -> None:
    column = block.column(name)
    if column.null_count():
        subject = f"column {quoted(name)} holds {{n}} null value{{s}}"
        flaws.append(flaw_at(block, column.is_null(), subject, "every row needs a value there"))


def _moments(block: Block, name: str, field: str, flaws: list[Flaw]) -> Int64:
    """Dates or timestamps as microseconds since 1970 in UTC; no time zone means UTC."""
    column = block.column(name)
    _add_nulls(block, name, flaws)
    times, finer = column, pl.Series([False]).new_from_index(0, len(column))
    if column.dtype == pl.String:
        times, finer = _iso_times(column)
    if times.dtype not in (pl.Date, pl.Datetime):
        times = pl.Series([None] * len(column), dtype=pl.Datetime("us"))
    wrong = times.is_null() & column.is_not_null()
    if wrong.any():
        subject = f"{field} {quoted(name)} holds {{n}} value{{s}} other than ISO dates or timestamps"
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
    finer |= (whole.dt.cast_time_unit("ns") != times.dt.cast_time_unit("ns")).fill_null(value=False)
    if finer.any():
        subject = f"{field} {quoted(name)} holds {{n}} timestamp{{s}} finer than microseconds"
        flaws.append(flaw_at(block, finer, subject, "round them, or use integers"))
    return whole.to_physical().fill_null(0).to_numpy()


def _iso_times(column: pl.Series) -> tuple[pl.Series, pl.Series]:
    """Texts in ISO form as times in UTC, null where they are none, and which of them are finer than
    microseconds."""
    fields = column.str.strip_chars().str.extract_groups(ISO_PATTERN).struct.unnest()
    day, minutes, seconds, fraction, zone = (fields.to_series(i) for i in range(5))
    fraction = fraction.fill_null("")
    zone = zone.str.replace("^[Zz]$", "+00").fill_null("+00").str.replace("^(...)$", "${1}00")
    whole = minutes.fill_null("00:00") + ":" + seconds.fill_null("00")
    text = day + "T" + whole + "." + fraction.str.slice(0, 6).str.pad_end(6, "0") + zone
    times = text.str.to_datetime("%Y-%m-%dT%H:%M:%S%.6f%z", time_unit="us", strict=False)
    return times, fraction.str.slice(6).str.contains("[1-9]")


def _flags(block: Block, name: str, decimal: str, flaws: list[Flaw]) -> Int64:
    """Booleans or 0 and 1 as 0 and 1; what is missing is 0."""
    column = block.column(name)
    flags, is_missing = column, column.is_null()
    if column.dtype == pl.String:
        words = column.str.strip_chars().str.to_lowercase()
        flags = as_numbers(words.replace({"true": "1", "false": "0"}), decimal)
        is_missing |= is_number_null(column).fill_null(value=False)
    elif column.dtype in (pl.Boolean, pl.Null) or column.dtype.is_numeric():
        flags = column.cast(pl.Float64, strict=False)
    else:
        flags = pl.Series([None] * len(column), dtype=pl.Float64)
    wrong = ~flags.is_in([0.0, 1.0]).fill_null(value=False) & ~is_missing
    if wrong.any():
        subject = f"mask_column {quoted(name)} holds {{n}} value{{s}} other than true, false, 0 and 1"
        flaws.append(flaw_at(block, wrong, subject, "mend them", column.filter(wrong)[0]))
    return (flags == 1.0).fill_null(value=False).cast(pl.Int64).to_numpy()


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


def _reals(block: Block, name: str, rules: ReadingRules, flaws: list[Flaw]) -> Float64:
    """A real column as float64, NaN where it is missing."""
    column = block.column(name)
    shown = quoted(name)
    numbers, wrong = _numbers(column, rules.decimal)
    if wrong.any():
        subject = f"real column {shown} holds {{n}} value{{s}} other than numbers"
        remedy = "mend them, list them in csv.null_values, or name the column in categorical_columns"
        flaws.append(flaw_at(block, wrong, subject, remedy, column.filter(wrong)[0]))
        numbers = numbers.zip_with(~wrong, pl.Series([0.0]).new_from_index(0, len(numbers)))
    values = numbers.fill_null(np.nan).to_numpy()
    if np.isfinite(values).all():
        return values
    infinite = np.isinf(values)
    if infinite.any():
        subject = f"real column {shown} holds {{n}} infinite value{{s}}"
        first = float(values[int(np.argmax(infinite))])
        flaws.append(flaw_at(block, pl.Series(infinite), subject, "mend or drop these rows", first))
    missing = np.isnan(values)
    if rules.refuses_missing and missing.any():
        subject = f"real column {shown} holds {{n}} missing value{{s}} (null or NaN)"
        flaws.append(flaw_at(block, pl.Series(missing), subject, MISSING_REMEDY))
    return values


def _categories(block: Block, name: str, kind: str, decimal: str, flaws: list[Flaw]) -> CodedColumn:
    """A categorical column over its strings, or over 64-bit integers (booleans as 0 and 1)."""
    column = block.column(name)
    if kind == TEXT:
        integers = as_text(column)
        wrong = integers.is_null() & column.is_not_null()
    elif kind == BOOLEAN and column.dtype == pl.String:
        low = column.str.strip_chars().str.to_lowercase()
        integers = low.replace_strict({"true": 1, "false": 0}, default=None, return_dtype=pl.Int64)
        wrong = pl.Series([False]).new_from_index(0, len(column))
    elif kind == REAL or column.dtype.is_float():
        numbers, wrong = _numbers(column, decimal)
        numbers = numbers.fill_nan(None)
        integers = numbers.cast(pl.Int64, strict=False)
        is_exact = (integers.cast(pl.Float64) == numbers) & (numbers.abs() < LARGEST_EXACT)
        wrong |= numbers.is_not_null() & ~is_exact.fill_null(value=False)
    else:
        integers = as_integers(column) if column.dtype == pl.String else column.cast(pl.Int64, strict=False)
        is_missing = column.is_null()
        if column.dtype == pl.String and integers.null_count() > column.null_count():
            is_missing |= is_number_null(column).fill_null(value=False)
        wrong = integers.is_null() & ~is_missing
    if wrong.any():
        subject = f"categorical column {quoted(name)} holds {{n}} value{{s}} unfit as categories"
        remedy = (
            "categories are text (UTF-8), booleans or 64-bit integers: cast them, or name the column in "
            "real_columns"
        )
        flaws.append(flaw_at(block, wrong, subject, remedy, column.filter(wrong)[0]))
    return code_column(integers)


def extra_names(roles: Roles) -> Mapping[str, str]:
    """The extra columns of a run's tables by their names in the input."""
    named = {SPLIT: roles.split, MASK: roles.mask, CURRICULUM: roles.curriculum}
    return {key: name for key, name in named.items() if name is not None}
