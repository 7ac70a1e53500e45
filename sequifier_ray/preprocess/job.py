"""Everything the passes over tasks and partitions share; it travels to workers as it is."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import polars as pl

from sequifier_ray.config.preprocess import PreprocessConfig
from sequifier_ray.preprocess.columns import EventTable, Int64
from sequifier_ray.preprocess.ordering import order_events
from sequifier_ray.preprocess.pieces import PieceLayout, read_partition
from sequifier_ray.preprocess.sequences import SequenceIndex
from sequifier_ray.preprocess.source import SourceFile, Task
from sequifier_ray.preprocess.values import ReadingRules


@dataclass(frozen=True)
class Job:
    """A run: `tasks` read the files; partition p holds sequences `bounds[p]` to `bounds[p + 1]` of `index`,
    and its rows lie in `pieces` (none before they are written), below the folder `work`."""

    config: PreprocessConfig
    files: tuple[SourceFile, ...]
    rules: ReadingRules
    layout: PieceLayout
    index: SequenceIndex
    bounds: Int64
    work: Path
    pieces: tuple[Path, ...]
    tasks: tuple[Task, ...]

    @cached_property
    def first_keys(self) -> Int64:
        """The key that each partition begins with."""
        return self.index.keys[self.bounds[:-1]]

    def ids(self, partition: int) -> pl.Series:
        """The ids of a partition's sequences, in order."""
        return self.index.ids[int(self.bounds[partition]) : int(self.bounds[partition + 1])]

    def name_of(self, key: int) -> object:
        """The id that a sequence key stands for."""
        return self.index.ids[key] if self.index.is_text else key

    def read(self, partition: int) -> EventTable:
        """The rows of a partition in their order."""
        return order_events(read_partition(self.pieces, self.layout, partition))
