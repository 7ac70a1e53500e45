"""A project in a temporary folder: write a table and a preprocess.yaml, run, look at the results."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
import yaml

from sequifier_ray.config.load import load_preprocess
from sequifier_ray.data.metadata import DatasetDescription, read_description, read_split
from sequifier_ray.data.shards import open_shard
from sequifier_ray.preprocess.pipeline import PreprocessSummary, preprocess

SETTINGS: dict[str, Any] = {
    "project_root": ".",
    "preprocessing_data_path": "events.parquet",
    "read_format": "parquet",
    "write_format": "pt",
    "merge_output": False,
    "split_method": "within_sequence",
    "split_ratios": [0.8, 0.2],
    "window_length": 5,
    "window_stride": 2,
}


@dataclass
class Project:
    """One project folder and the lines that the last run reported."""

    root: Path
    lines: list[str] = field(default_factory=list)

    def write(self, table: pl.DataFrame | str | bytes, name: str = "events.parquet") -> Path:
        """Write an input file: a table in the format of its name, or text as it stands."""
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if isinstance(table, bytes):
            path.write_bytes(table)
        elif isinstance(table, str):
            path.write_bytes(table.encode())
        elif path.suffix == ".csv":
            table.write_csv(path)
        else:
            table.write_parquet(path)
        return path

    def run(self, **settings: Any) -> PreprocessSummary:
        """Load the configuration from a YAML file and preprocess."""
        return preprocess(load_preprocess(self.run_config(**settings)), self.lines.append)

    def run_config(self, **settings: Any) -> str:
        """Write the configuration of the next run and forget the lines of the last; the path."""
        config_path = self.root / "preprocess.yaml"
        config_path.write_text(yaml.safe_dump(SETTINGS | {"project_root": str(self.root)} | settings))
        self.lines.clear()
        return str(config_path)

    def description(self, name: str = "events") -> DatasetDescription:
        """The published dataset description."""
        return read_description(str(self.root / "configs" / "metadata_configs" / f"{name}.json"))

    def events(self, split: int, name: str = "events") -> pl.DataFrame:
        """All events of a split as the shards hold them, with shard, sequenceId and itemPosition."""
        description = self.description(name)
        path = self.root / description.split_paths[split]
        folder = path.parent if description.merge_output else path
        frames = []
        for k, entry in enumerate(read_split(str(path)).shards):
            shard = open_shard(str(folder), entry, description)
            offsets = np.asarray(shard.offsets)
            lengths = np.diff(offsets)
            within = np.arange(offsets[-1]) - np.repeat(offsets[:-1], lengths)
            frames.append(
                pl.DataFrame(
                    {
                        "shard": np.full(offsets[-1], k),
                        "sequenceId": np.repeat(np.asarray(shard.sequence_ids), lengths),
                        "itemPosition": np.repeat(np.asarray(shard.start_positions), lengths) + within,
                    }
                    | {column: np.asarray(values) for column, values in shard.columns.items()}
                )
            )
        return pl.concat(frames)

    def positions(self, split: int, name: str = "events") -> list[int]:
        """The item position of every event of a split."""
        description = self.description(name)
        path = self.root / description.split_paths[split]
        folder = path.parent if description.merge_output else path
        shards = read_split(str(path)).shards
        found = [open_shard(str(folder), entry, description).positions() for entry in shards]
        return [int(position) for part in found for position in part]

    def snapshot(self) -> dict[str, bytes]:
        """Every file of data/ and configs/ by its relative name."""
        files = [p for folder in ("data", "configs") for p in (self.root / folder).rglob("*")]
        return {str(p.relative_to(self.root)): p.read_bytes() for p in files if p.is_file()}


@pytest.fixture
def project(tmp_path: Path) -> Project:
    """An empty project."""
    return Project(tmp_path)


@pytest.fixture
def events() -> Callable[..., pl.DataFrame]:
    """Make a table of sequences of given lengths with a string, an integer and a real column."""

    def make(lengths: list[int]) -> pl.DataFrame:
        sequence = np.repeat(np.arange(len(lengths)), lengths)
        position = np.concatenate([np.arange(length) for length in lengths])
        row = np.arange(len(sequence))
        return pl.DataFrame(
            {
                "sequenceId": sequence,
                "itemPosition": position,
                "kind": pl.Series([f"k{i % 7}" for i in row]),
                "level": row % 4,
                "size": np.sin(row) * 3 + 1,
            }
        )

    return make
