"""All sequences of a table: their ids in order and their numbers of rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import polars as pl

from sequifier_ray.preprocess.columns import Int64, code_column, read_frame
from sequifier_ray.preprocess.kinds import are_canonical, as_integers

IDS, ROWS = "id", "rows"


@dataclass(frozen=True)
class SequenceIndex:
    """Ids in rising order, integers or text (by code point), and rows of each: both `[n_sequences]`.

    Text ids are numbered: sequence s is known as s in the shards, which keep the text beside it.
    """

    ids: pl.Series
    n_rows: Int64

    @property
    def is_text(self) -> bool:
        """Whether ids are text."""
        return self.ids.dtype == pl.String

    @property
    def keys(self) -> Int64:
        """The integers that stand for the sequences, rising."""
        return np.arange(len(self.ids)) if self.is_text else self.ids.to_numpy()

    def keys_of(self, column: pl.Series) -> Int64:
        """The integers that stand for the ids of some rows, all of which are in the index."""
        if not self.is_text:
            return (column if column.dtype == pl.Int64 else as_integers(column)).to_numpy()
        coded = code_column(column if column.dtype == pl.String else column.cast(pl.String))
        return self.ids.search_sorted(coded.values).cast(pl.Int64).to_numpy()[coded.codes]

    def save(self, path: Path) -> None:
        """Write to a file that `load` reads."""
        pl.DataFrame({IDS: self.ids, ROWS: self.n_rows}).write_ipc(path)

    @staticmethod
    def load(path: Path) -> SequenceIndex:
        """Read what `save` wrote."""
        frame = read_frame(path)
        return SequenceIndex(frame[IDS], frame[ROWS].to_numpy())


def count_ids(column: pl.Series) -> pl.DataFrame:
    """Distinct ids (integers or text) of some rows, with their numbers of rows."""
    return column.alias(IDS).to_frame().group_by(IDS).agg(pl.len().cast(pl.Int64).alias(ROWS))


def merge_counts(parts: Sequence[pl.DataFrame]) -> pl.DataFrame:
    """Counts of several parts together; integers become text where any part holds text."""
    if len({part.schema[IDS] for part in parts}) > 1:
        parts = [part.with_columns(pl.col(IDS).cast(pl.String)) for part in parts]
    return pl.concat(parts).group_by(IDS).agg(pl.col(ROWS).sum())


def index_of(counts: pl.DataFrame, *, typed: bool) -> SequenceIndex:
    """The index of all rows. Without types of their own (CSV), ids are integers where every id is one as it
    is usually written."""
    if not typed and are_canonical(counts[IDS]).all():
        counts = merge_counts([counts.with_columns(as_integers(counts[IDS]).alias(IDS))])
    counts = counts.sort(IDS)
    return SequenceIndex(counts[IDS], counts[ROWS].to_numpy())
