"""Nothing but the table decides the bytes: not engine, cores, files, formats, nor the order of rows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sequifier_ray.config.load import load_preprocess
from sequifier_ray.errors import DataError
from sequifier_ray.launch.ray_preprocess import RayEngine
from sequifier_ray.preprocess import partitions
from sequifier_ray.preprocess.pipeline import preprocess


def run(project: Any, engine: Any = None, **changes: Any) -> dict[str, bytes]:
    """Run on an engine and return what was published."""
    project.run_config(**changes)
    preprocess(load_preprocess(str(project.root / "preprocess.yaml")), project.lines.append, engine)
    return project.snapshot()


def rich_table() -> pl.DataFrame:
    rng = np.random.default_rng(0)
    lengths = rng.integers(1, 80, 40)
    sequence = np.repeat(np.arange(40), lengths)
    n = len(sequence)
    names = pl.Series([f"user-{i * 37 % 40:03}" for i in range(40)])
    word = pl.Series(rng.choice(["a", "b", "Zürich", "", "NA"], n))
    return pl.DataFrame(
        {
            "who": names.gather(sequence),
            "at": np.concatenate([np.arange(k) ** 2 for k in lengths]),
            "word": pl.Series([None if i % 11 == 0 else w for i, w in enumerate(word)]),
            "level": rng.integers(-3, 300, n),
            "size": pl.Series([None if i % 13 == 0 else v for i, v in enumerate(rng.normal(5, 2, n))]),
            "hard": rng.integers(0, 9, n),
        }
    ).sample(fraction=1.0, shuffle=True, seed=1)


RICH = {
    "preprocessing_data_path": "in",
    "sequence_id_column": "who",
    "item_position_column": "at",
    "item_position": "order",
    "missing_real": "mean",
    "missing_indicator": True,
    "curriculum_column": "hard",
    "cardinality_config": {"level": {"top_k": 20, "hashing": {"num_buckets": 5}}},
    "split_ratios": [0.7, 0.3],
}


@pytest.mark.parametrize(("write_format", "merge_output"), [("pt", False), ("csv", True)])
def test_both_engines_write_the_same_bytes(
    project: Any, ray_instance: object, write_format: str, merge_output: bool
) -> None:
    table = rich_table()
    for i in range(3):
        project.write(table[i * 500 : (i + 1) * 500], f"in/{i}.parquet")
    changes = RICH | {"write_format": write_format, "merge_output": merge_output}
    local = run(project, **changes)
    assert run(project, RayEngine(), **changes) == local
    assert any(line.startswith("partition: ") for line in project.lines)


def test_the_ray_engine_tells_flaws_and_errors_like_the_local_one(project: Any, ray_instance: object) -> None:
    table = rich_table()
    project.write(table[:300], "in/0.csv")
    project.write(table[300:], "in/1.csv")
    changes = RICH | {"read_format": "csv", "missing_real": "error", "missing_indicator": False}
    texts = []
    for engine in (None, RayEngine()):
        with pytest.raises(DataError) as caught:
            run(project, engine, **changes)
        assert type(caught.value) is DataError
        texts.append(str(caught.value))
    assert texts[0] == texts[1]
    assert texts[0].startswith('real column "size" holds ')
    project.write("who,at,word,level,size,hard\nx,1,a,2\n", "in/1.csv")
    for engine in (None, RayEngine()):
        with pytest.raises(DataError, match=r"in/1\.csv cannot be read as CSV: .*Expected 6 columns, got 4"):
            run(project, engine, **changes)
    assert not (project.root / "data" / ".in-preprocess").exists()


@pytest.mark.parametrize("n_cores", [1, 2, 1000])
def test_cores_change_nothing(project: Any, n_cores: int) -> None:
    table = rich_table()
    project.write(table, "in/0.parquet")
    assert run(project, n_cores=n_cores, **RICH) == run(project, **RICH)


def test_csv_gives_what_parquet_gives(project: Any) -> None:
    table = rich_table().with_columns(pl.col("word").fill_null("none"))
    project.write(table, "in/0.parquet")
    from_parquet = run(project, **RICH)
    (project.root / "in" / "0.parquet").unlink()
    project.write(table[:700].write_csv(quote_style="non_numeric"), "in/a.csv")
    project.write(table[700:].write_csv(separator=";", quote_style="non_numeric"), "in/b.csv")
    assert run(project, read_format="csv", **RICH) == from_parquet


@pytest.fixture
def small_partitions(monkeypatch: pytest.MonkeyPatch) -> None:
    """Partitions of a few rows, as a table of many gigabytes has them."""
    monkeypatch.setattr(partitions.cut_partitions, "__defaults__", (600,))
    monkeypatch.setattr("sequifier_ray.preprocess.source.TASK_ROWS", 50)


def test_many_partitions_and_tasks(project: Any, events: Any, small_partitions: None) -> None:
    table = events([40, 3, 1, 90, 22, 17, 8, 60, 31, 2, 2, 5]).sample(fraction=1.0, shuffle=True, seed=4)
    project.write(table, "in/0.parquet")
    first = run(project, preprocessing_data_path="in")
    n_shards = sum(name.endswith(".pt") and "split0" in name for name in first)
    assert n_shards == 11  # one sequence has no event in split 0
    (project.root / "in" / "0.parquet").unlink()
    table.write_parquet(project.root / "in" / "0.parquet", row_group_size=33)
    assert run(project, preprocessing_data_path="in") == first
    stored = pl.concat([project.events(0, "in"), project.events(1, "in")])
    assert stored.height == table.height


lengths_strategy = st.lists(st.integers(1, 25), min_size=2, max_size=12)


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(lengths=lengths_strategy, seed=st.integers(0, 999), n_files=st.integers(1, 4), csv=st.booleans())
def test_any_files_in_any_order_give_the_same_shards(
    project: Any, events: Any, lengths: list[int], seed: int, n_files: int, csv: bool
) -> None:
    table = events([*lengths, 10])
    for path in (project.root / "in").glob("*"):
        path.unlink()
    project.write(table, "in/0.parquet")
    form = {"preprocessing_data_path": "in", "write_format": "parquet"}
    first = run(project, **form)
    (project.root / "in" / "0.parquet").unlink()
    rng = np.random.default_rng(seed)
    shuffled = table[rng.permutation(table.height)]
    bounds = np.sort(rng.integers(0, table.height + 1, n_files - 1)).tolist()
    for i, (start, stop) in enumerate(zip([0, *bounds], [*bounds, table.height], strict=True)):
        if csv and start == stop:
            continue
        project.write(shuffled[start:stop], f"in/{rng.integers(0, 9)}{i}.{'csv' if csv else 'parquet'}")
    assert run(project, read_format="csv" if csv else "parquet", **form) == first


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(lengths=lengths_strategy, data=st.data())
def test_a_table_comes_back_from_its_shards_exactly(project: Any, lengths: list[int], data: Any) -> None:
    n = sum(lengths)
    text = st.text(st.characters(codec="utf-8", exclude_characters="\x00\r"), max_size=5)
    words = data.draw(st.lists(text | st.none(), min_size=n, max_size=n).filter(lambda v: any(v)))
    whole = data.draw(st.lists(st.integers(-(2**63), 2**63 - 1), min_size=n, max_size=n))
    real = data.draw(st.lists(st.floats(-(2.0**100), 2.0**100, width=32), min_size=n, max_size=n))
    table = pl.DataFrame(
        {
            "sequenceId": np.repeat(np.arange(len(lengths)) * 10**15 - 5, lengths),
            "itemPosition": np.concatenate([np.arange(k) for k in lengths]),
            "word": pl.Series(words, dtype=pl.String),
            "whole": pl.Series(whole, dtype=pl.Int64),
            "real": pl.Series(real, dtype=pl.Float64),
        }
    )
    project.write(table.sample(fraction=1.0, shuffle=True, seed=1))
    project.run(split_ratios=[1.0], write_format="parquet", normalize_real_columns=False)
    description, stored = project.description(), project.events(0)
    assert stored["sequenceId"].to_list() == table["sequenceId"].to_list()
    assert stored["itemPosition"].to_list() == table["itemPosition"].to_list()
    assert stored["real"].to_list() == table["real"].to_list()
    for name in ("word", "whole"):
        value_of = {identity: value for value, identity in description.id_maps[name].items()}
        special = {"[unknown]", "[other]", "[mask]"}
        shown = [None if v is None else str(v) for v in table[name]]
        decoded = [value_of.get(i) if i else None for i in stored[name]]
        assert [v for v in decoded if v not in special] == [v for v in shown if v not in special]


PEAK = """
import resource, sys
from sequifier_ray.cli import main
code = main(["preprocess", "--config-path", sys.argv[1]])
print("peak", resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024)
sys.exit(code)
"""
GIB = 2**30


def peak_bytes(project: Any, **changes: Any) -> int:
    import subprocess
    import sys

    project.run_config(**changes)
    command = [sys.executable, "-c", PEAK, str(project.root / "preprocess.yaml")]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    return int(done.stdout.rsplit("peak ", 1)[1])


def test_33_million_rows_in_less_than_2_gib(project: Any) -> None:
    import pyarrow.parquet

    flights = pl.read_parquet(Path(__file__).parents[1] / "data" / "flights.parquet")
    offset = int(flights["sequenceId"].max()) + 1  # type: ignore[arg-type]
    with pyarrow.parquet.ParquetWriter(project.root / "flights.parquet", flights.to_arrow().schema) as writer:
        for copy in range(100):
            writer.write_table(flights.with_columns(pl.col("sequenceId") + copy * offset).to_arrow())
    changes = {"preprocessing_data_path": "flights.parquet", "window_length": 33, "window_stride": 8}
    assert peak_bytes(project, **changes) < 2 * GIB
    metadata = [project.root / "data" / f"flights-split{i}" / "metadata.json" for i in (0, 1)]
    assert all(path.exists() for path in metadata)


def test_one_sequence_of_5_million_rows(project: Any) -> None:
    n = 5_000_000
    rng = np.random.default_rng(0)
    table = pl.DataFrame(
        {
            "sequenceId": np.full(n, 7),
            "itemPosition": rng.permutation(n),
            "kind": rng.integers(0, 50, n),
            "size": rng.normal(size=n),
        }
    )
    project.write(table)
    assert peak_bytes(project) < 2 * GIB
    stored = project.events(0)
    assert stored["itemPosition"].to_list() == list(range(4_000_000))
