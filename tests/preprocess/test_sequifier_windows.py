"""The same samples as Sequifier 3.1.1.0: its stored windows of 61 flight sequences, for all split methods.

`sequifier_windows.parquet` holds what `sequifier preprocess` stored for `sequifier_input.parquet` (window 33,
stride 8, ratios 0.8/0.1/0.1, cut-off values 150 and 220 of `day`, seed 1010); `sequifier_metadata.json` its
vocabularies and statistics.
"""

from __future__ import annotations

import json
import shutil
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

from sequifier_ray.data.metadata import read_split
from sequifier_ray.data.shards import open_shard
from sequifier_ray.data.windows import window_starts

HERE = Path(__file__).parent
COLUMNS = ["carrier", "origin", "dest", "dep_delay", "arr_delay", "distance", "air_time"]
WIDTH, STRIDE = 33, 8
METHODS: dict[str, dict[str, Any]] = {
    "within_sequence": {"split_ratios": [0.8, 0.1, 0.1]},
    "between_sequence": {"split_ratios": [0.8, 0.1, 0.1]},
    "value_cutoff": {"split_ratios": None, "split_column": "day", "split_values": [150, 220]},
}


def stored_windows(folder: Path) -> pl.DataFrame:
    """Every window of a split, left-padded with zeros, gathered from our shards."""
    rows: list[dict[str, Any]] = []
    metadata = read_split(str(folder))
    for entry in metadata.shards:
        shard = open_shard(str(folder), entry, metadata.description)
        offsets = np.asarray(shard.offsets)
        for s, (start, stop) in enumerate(pairwise(offsets)):
            for first in window_starts(int(stop - start), WIDTH, STRIDE):
                pad = max(WIDTH - int(stop - start), 0)
                row = {
                    "sequenceId": int(shard.sequence_ids[s]),
                    "start": int(shard.start_positions[s]) + int(first) - pad,
                    "left_pad": pad,
                }
                for name in COLUMNS:
                    values = np.asarray(shard.columns[name])[start + first : min(start + first + WIDTH, stop)]
                    row[name] = np.pad(values, (pad, 0)).tolist()
                rows.append(row)
    return pl.DataFrame(rows).sort("sequenceId", "start")


@pytest.mark.parametrize("write_format", ["pt", "parquet"])
@pytest.mark.parametrize("method", METHODS)
def test_windows_vocabularies_and_statistics_are_those_of_sequifier(
    project: Any, method: str, write_format: str
) -> None:
    shutil.copy(HERE / "sequifier_input.parquet", project.root / "events.parquet")
    settings = METHODS[method] | {"split_method": method, "selected_columns": COLUMNS}
    project.run(window_length=WIDTH, window_stride=STRIDE, seed=1010, write_format=write_format, **settings)
    expected = pl.read_parquet(HERE / "sequifier_windows.parquet").filter(pl.col("split_method") == method)
    for split in range(3):
        theirs = expected.filter(pl.col("split") == split).sort("sequenceId", "start")
        ours = stored_windows(project.root / "data" / f"events-split{split}")
        exact = ["sequenceId", "start", "left_pad", "carrier", "origin", "dest"]
        assert ours.select(exact).to_dicts() == theirs.select(exact).to_dicts()
        for name in COLUMNS[3:]:
            np.testing.assert_allclose(
                np.array(ours[name].to_list()), np.array(theirs[name].to_list()), rtol=1e-6, atol=1e-7
            )
    metadata = json.loads((HERE / "sequifier_metadata.json").read_text())[method]
    description = project.description()
    assert description.n_classes == metadata["n_classes"]
    assert description.id_maps == metadata["id_maps"]
    for name, statistics in metadata["selected_columns_statistics"].items():
        ours_statistics = description.selected_columns_statistics[name]
        assert ours_statistics.mean == pytest.approx(statistics["mean"], rel=1e-12)
        assert ours_statistics.std == pytest.approx(statistics["std"], rel=1e-12)
