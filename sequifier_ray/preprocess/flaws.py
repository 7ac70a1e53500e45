"""What is wrong with the rows of the input, gathered over all of them before it is told."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import polars as pl

from sequifier_ray.errors import DataError
from sequifier_ray.preprocess.source import Block


@dataclass(frozen=True)
class Flaw:
    """`count` cases of one kind: `subject` with {n} and {s} for number and plural, the first of them at
    `place` (a file and a row, or any numbers that rise with the order of the rows), and what to do."""

    subject: str
    count: int
    place: tuple[int, int]
    first: str
    remedy: str

    @staticmethod
    def from_json(values: Mapping[str, Any]) -> Flaw:
        """The flaw whose fields a JSON object holds."""
        return Flaw(**{**values, "place": tuple(values["place"])})

    def text(self) -> str:
        """The whole sentence."""
        subject = self.subject.format(n=f"{self.count:,}", s="s" * (self.count > 1))
        return f"{subject}, first {self.first}; {self.remedy}"


def merge_flaws(flaws: Iterable[Flaw]) -> list[Flaw]:
    """One flaw a subject: counts added up, the first case of all; in the order of their first cases."""
    merged: dict[str, Flaw] = {}
    for flaw in flaws:
        known = merged.get(flaw.subject, flaw)
        first = min(known, flaw, key=lambda f: f.place)
        count = flaw.count + (known.count if flaw.subject in merged else 0)
        merged[flaw.subject] = replace(first, count=count)
    return sorted(merged.values(), key=lambda f: f.place)


def refuse_flaws(flaws: Iterable[Flaw]) -> None:
    """Raise DataError where there is a flaw; all of them, one a line."""
    if merged := merge_flaws(flaws):
        raise DataError("\n".join(flaw.text() for flaw in merged))


def flaw_at(block: Block, mask: pl.Series, subject: str, remedy: str, value: object = None) -> Flaw:
    """The flaw of the rows of a block where `mask` is true; `value` shows the first one's value."""
    row = int(mask.arg_max() or 0)
    shown = f"{value!r} " if value is not None else ""
    place = f"{shown}in row {block.first_row + row:,} of {block.path}"
    if block.keys:
        place += f" ({', '.join(f'{key} {block.frame[key][row]}' for key in block.keys)})"
    count = int(mask.sum())
    return Flaw(subject, count, (block.file, block.first_row + row), place, remedy)


def quoted(name: str) -> str:
    """A column's name in double quotes, fit for a subject."""
    return '"' + name.replace("{", "{{").replace("}", "}}") + '"'
