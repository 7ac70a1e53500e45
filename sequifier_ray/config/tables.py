"""Sections of preprocess.yaml: how CSV files are written, and how large a vocabulary may become."""

from __future__ import annotations

import codecs
from typing import Annotated, Literal

from pydantic import Field, field_validator, model_validator
from typing_extensions import Self

from sequifier_ray.config.base import Count, Integer, Problem, Section, Text, require

# An embedding has a row for each class.
MOST_CLASSES = 2_000_000_000


class CsvDialect(Section):
    """How the CSV files are written; whatever is left out is found out by looking at each file."""

    separator: Text | None = Field(
        default=None, description="Between fields: one character; null: `,`, `;`, tab or `|`, by the header."
    )
    quote: Text = Field(default='"', description="Around fields: one character, doubled inside of them.")
    decimal: Literal[".", ","] = Field(default=".", description="Decimal mark of numbers.")
    encoding: Text = Field(default="utf-8", description="Any that Python knows, such as latin-1 or utf-16.")
    null_values: tuple[str, ...] | None = Field(
        default=None,
        description="Texts that mean a missing value, in every column. Null: the empty field everywhere, and "
        "`NA`, `N/A`, `null`, `None`, `-` and the like in columns that otherwise hold numbers or booleans "
        "only.",
    )

    @model_validator(mode="after")
    def _check(self) -> Self:
        problems = []
        for field in ("separator", "quote"):
            value = getattr(self, field)
            if value is not None and (len(value) != 1 or not value.isascii() or value in "\r\n"):
                problems.append(Problem(field, f"found {value!r}; allowed: one ASCII character"))
        if self.separator is not None and self.separator in (
            self.quote,
            self.decimal if self.decimal == "," else "",
        ):
            problems.append(Problem("separator", f"found {self.separator!r}, which is also quote or decimal"))
        require(problems)
        return self

    @field_validator("encoding")
    @classmethod
    def _known(cls, value: str) -> str:
        try:
            "".encode(value)  # refuses also codecs that are none of text, such as base64
            return codecs.lookup(value).name
        except (LookupError, UnicodeError, ValueError) as error:
            raise ValueError(
                f"found {value!r}; allowed: an encoding, such as utf-8, latin-1 or utf-16"
            ) from error


class Hashing(Section):
    """Values beyond the listed ones in buckets of their own, by sha256 of seed and value."""

    num_buckets: Annotated[int, Field(strict=True, ge=1, lt=MOST_CLASSES)] = Field(
        description="Ids for values that are not listed."
    )
    seed: Integer = Field(default=0, description="Another seed gives another distribution over the buckets.")


class Cardinality(Section):
    """Which values of one categorical column have an id of their own; the rest is `[other]` or hashed."""

    top_k: Count | None = Field(
        default=None, description="The k most frequent values; among equally frequent ones the smaller value."
    )
    min_freq: Count | None = Field(default=None, description="Values that occur at least so often.")
    hashing: Hashing | None = Field(default=None, description="Buckets for all other values.")

    @model_validator(mode="after")
    def _check(self) -> Self:
        if (self.top_k is None) == (self.min_freq is None):
            require([Problem("top_k", "set exactly one of top_k and min_freq")])
        return self
