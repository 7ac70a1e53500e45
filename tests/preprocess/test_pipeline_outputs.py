"""What a run publishes: shards, metadata, description, and that nothing but the data decides their bytes."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import numpy as np
import polars as pl
import pytest

from sequifier_ray.data.metadata import read_split
from sequifier_ray.errors import DataError

FORMATS = [("pt", False), ("parquet", False), ("parquet", True), ("csv", True)]


@pytest.mark.parametrize(("write_format", "merge_output"), FORMATS)
def test_every_event_is_stored_once_in_order(
    project: Any, events: Any, write_format: str, merge_output: bool
) -> None:
    table = events([1, 4, 30, 5, 6, 12, 9, 8, 2, 50])
    project.write(table)
    summary = project.run(write_format=write_format, merge_output=merge_output, normalize_real_columns=False)
    stored = pl.concat([project.events(split) for split in (0, 1)])
    assert stored.height == table.height == summary.rows
    assert summary.sequences == 10
    id_maps = project.description().id_maps
    for split, ratio in ((0, (0.0, 0.8)), (1, (0.8, 1.0))):
        n = pl.len().over("sequenceId")
        lower, upper = ((np.cumsum([0.8, 0.2])[i] * n).cast(pl.Int64) for i in (0, 1))
        if split == 0:
            lower, upper = pl.lit(0), lower
        expected = table.filter((pl.col("itemPosition") >= lower) & (pl.col("itemPosition") < upper))
        ours = project.events(split)
        assert ours["sequenceId"].to_list() == expected["sequenceId"].to_list(), ratio
        assert ours["itemPosition"].to_list() == expected["itemPosition"].to_list()
        kinds = [id_maps["kind"].get(value, 1) for value in expected["kind"]]
        assert ours["kind"].to_list() == kinds
        assert ours["level"].to_list() == [id_maps["level"][str(v)] for v in expected["level"]]
        np.testing.assert_array_equal(ours["size"].to_numpy(), expected["size"].to_numpy().astype(np.float32))
        assert ours["kind"].dtype == pl.UInt8
        assert ours["size"].dtype == pl.Float32
        assert ours["shard"].n_unique() == (1 if merge_output else min(8, ours["sequenceId"].n_unique()))


@pytest.mark.parametrize(("write_format", "merge_output"), FORMATS)
def test_bytes_do_not_depend_on_the_order_of_rows_and_files(
    project: Any, events: Any, write_format: str, merge_output: bool
) -> None:
    table = events([30, 5, 6, 12, 9, 8, 2, 50, 7, 7])
    settings = {"write_format": write_format, "merge_output": merge_output}
    project.write(table)
    project.run(**settings)
    first = project.snapshot()
    project.write(table.sample(fraction=1.0, shuffle=True, seed=3))
    project.run(**settings)
    assert project.snapshot() == first
    (project.root / "events.parquet").unlink()
    shuffled = table.sample(fraction=1.0, shuffle=True, seed=4)
    project.write(shuffled[:40], "events/b.parquet")
    project.write(shuffled[40:90], "events/a.parquet")
    project.write(shuffled[:0], "events/c.parquet")
    project.write(shuffled[90:], "events/d.parquet")
    project.run(preprocessing_data_path="events", **settings)
    assert project.snapshot() == first


def test_csv_and_parquet_input_give_the_same_shards(project: Any, events: Any) -> None:
    table = events([30, 5, 6, 12, 9, 8])
    project.write(table)
    project.run()
    first = project.snapshot()
    project.write(b"\xef\xbb\xbf" + table.write_csv(line_terminator="\r\n").encode(), "events.csv")
    project.run(preprocessing_data_path="events.csv", read_format="csv")
    assert project.snapshot() == first


def test_types_that_show_late_in_a_csv(project: Any, events: Any) -> None:
    table = events([12_000, 30]).with_columns(size=pl.int_range(pl.len()) * 1.0)
    lines = table.with_columns(pl.col("size").cast(pl.Int64)).write_csv().splitlines()
    lines[11_000] = lines[11_000].rsplit(",", 1)[0] + ",0.5"
    project.write("\n".join(lines), "events.csv")
    project.run(preprocessing_data_path="events.csv", read_format="csv")
    assert project.description().real_columns == ("size",)


def test_statistics_and_vocabularies_come_from_split_0(project: Any, events: Any) -> None:
    table = events([20, 20])
    project.write(table)
    project.run()
    before = project.description()
    last = pl.col("itemPosition") >= 16
    project.write(
        table.with_columns(
            size=pl.when(last).then(1e6).otherwise("size"),
            kind=pl.when(last).then(pl.lit("new")).otherwise("kind"),
        )
    )
    project.run()
    after = project.description()
    assert after.selected_columns_statistics == before.selected_columns_statistics
    assert after.id_maps["kind"] == before.id_maps["kind"]
    assert set(project.events(1)["kind"]) == {1}
    project.run(normalize_on_all_data=True)
    fitted_on_all = project.description()
    assert fitted_on_all.id_maps["kind"]["new"] == 10
    assert fitted_on_all.selected_columns_statistics["size"].mean > 1e5


def test_normalised_values(project: Any, events: Any) -> None:
    table = events([20, 20]).with_columns(constant=pl.lit(0.1))
    project.write(table)
    project.run(
        column_data_types={"kind": "Int64", "level": "Int64", "size": "Float64", "constant": "Float32"}
    )
    train = table.filter(pl.col("itemPosition") < 16)["size"]
    expected = (train.to_numpy() - train.mean()) / (train.std() + 1e-9)
    ours = project.events(0)
    assert ours["size"].dtype == pl.Float64
    np.testing.assert_allclose(ours["size"].to_numpy(), expected, rtol=1e-12, atol=1e-14)
    assert np.abs(ours["constant"].to_numpy()).max() < 1e-6


def test_null_categories_are_unknown(project: Any, events: Any) -> None:
    table = events([10, 10]).with_columns(kind=pl.when(pl.col("itemPosition") % 2 == 0).then("kind"))
    project.write(table)
    project.run()
    assert [identity == 0 for identity in project.events(0)["kind"]] == [False, True] * 8


def test_roles_by_type_and_by_name(project: Any, events: Any) -> None:
    table = events([20]).with_columns(
        flag=pl.col("level") == 1, whole=pl.col("level") * 1.0, price=pl.col("level")
    )
    project.write(table)
    project.run(categorical_columns=["whole"], real_columns=["price"])
    description = project.description()
    assert description.columns == ("kind", "level", "size", "flag", "whole", "price")
    assert description.categorical_columns == ("kind", "level", "flag", "whole")
    assert description.real_columns == ("size", "price")
    assert description.id_maps["flag"] == {"0": 3, "1": 4}
    assert description.id_maps["whole"] == {"0": 3, "1": 4, "2": 5, "3": 6}
    project.run(selected_columns=["size", "kind"])
    assert project.description().columns == ("size", "kind")


def test_max_rows_are_the_first_ones(project: Any, events: Any) -> None:
    table = events([20, 20, 20])
    project.write(table[:30], "events/a.parquet")
    project.write(table[30:], "events/b.parquet")
    assert project.run(preprocessing_data_path="events", max_rows=35).rows == 35
    ids = {*project.events(0)["sequenceId"], *project.events(1)["sequenceId"]}
    assert ids == {0, 1}


def test_earlier_maps_and_statistics_are_used_again(project: Any, events: Any) -> None:
    table = events([20, 20])
    project.write(table, "old.parquet")
    project.run(preprocessing_data_path="old.parquet")
    old = project.description("old")
    is_known = pl.col("kind") == "k1"
    new_kinds = pl.when(is_known).then("kind").otherwise("new " + pl.col("kind"))
    project.write(table.with_columns(kind=new_kinds, size=pl.col("size") * 50))
    project.run(metadata_config_path="configs/metadata_configs/old.json")
    new = project.description()
    assert (new.id_maps, new.selected_columns_statistics) == (old.id_maps, old.selected_columns_statistics)
    assert set(project.events(0)["kind"]) == {1, old.id_maps["kind"]["k1"]}
    warning = (
        'warning: column "kind": 85.0% of the events are [other], not in configs/metadata_configs/old.json'
    )
    assert warning in project.lines
    project.write(table.with_columns(kind=pl.lit("new")))
    with pytest.raises(DataError, match=r'column "kind": .*old\.json knows none of its values'):
        project.run(metadata_config_path="configs/metadata_configs/old.json")


def test_precomputed_maps(project: Any, events: Any) -> None:
    project.write(events([20]))
    project.write(json.dumps({"k6": 3, "k5": 4, "k0": 9}), "configs/id_maps/kind.json")
    project.run(use_precomputed_maps=["kind"])
    description = project.description()
    assert description.n_classes["kind"] == 10
    assert project.events(0)["kind"].to_list()[:7] == [9, 1, 1, 1, 1, 4, 3]


def test_timestamps_as_split_column(project: Any, events: Any) -> None:
    table = events([20, 20]).with_columns(
        at=pl.datetime(2024, 1, 1) + pl.duration(days=pl.col("itemPosition"))
    )
    cutoff = {"split_method": "value_cutoff", "split_ratios": None, "split_column": "at"}
    project.write(table)
    project.run(split_values=["2024-01-11", "2024-01-16T00:00:00"], **cutoff)
    assert [project.events(i)["itemPosition"].unique().to_list() for i in range(3)] == [
        list(range(10)),
        list(range(10, 15)),
        list(range(15, 20)),
    ]
    assert "at" not in project.description().columns
    first = project.snapshot()
    project.write(table.with_columns(pl.col("at").dt.strftime("%Y-%m-%dT%H:%M:%SZ")), "events.csv")
    settings = {"preprocessing_data_path": "events.csv", "read_format": "csv"}
    project.run(split_values=["2024-01-11", "2024-01-16T00:00:00"], **cutoff, **settings)
    assert project.snapshot() == first


def test_summary_and_report(project: Any, events: Any) -> None:
    project.write(events([1, 10, 33]))
    summary = project.run(split_ratios=[0.7, 0.2, 0.1])
    # ratios that sum to 0.9999999999999999: Sequifier drops the last event of each sequence
    assert sum(split.events for split in summary.splits) == 44
    first = summary.splits[0]
    assert first.windows == sum(-(-max(n - 5, 0) // 2) + 1 for n in (7, 23))
    folder = project.root / "data" / "events-split0"
    assert first.bytes == sum(p.stat().st_size for p in folder.glob("*.pt"))
    assert first.shards == len(read_split(str(folder)).shards) == 2
    assert set(summary.seconds) == {"scan", "partition", "fit", "encode"}


def test_settings_without_effect_are_named(project: Any, events: Any) -> None:
    project.write(events([10]))
    project.run()
    assert not any("no effect" in line for line in project.lines)
    project.run(batches_per_file=16, process_by_file=False)
    for name in ("batches_per_file", "process_by_file"):
        assert any(line.startswith(f"warning: {name}") for line in project.lines)


def test_switching_the_output_form_leaves_one_form(project: Any, events: Any) -> None:
    project.write(events([10, 10]))
    for settings in (
        {"write_format": "pt", "split_ratios": [0.5, 0.3, 0.2]},
        {"write_format": "parquet", "merge_output": True},
        {"write_format": "csv", "merge_output": True},
        {"write_format": "parquet"},
    ):
        project.run(**settings)
        names = {p.name for p in (project.root / "data").iterdir()}
        stems = {path.rsplit("/", 1)[-1] for path in project.description().split_paths}
        merged = {f"events-split{i}.metadata.json" for i in (0, 1)} if settings.get("merge_output") else set()
        assert names == stems | merged


KILLED = """
import os, sys
from sequifier_ray.config.load import load_preprocess
import sequifier_ray.preprocess.encode as encode
original = encode._write
def die_at_split_1(job, data, split, number):
    if split == 1:
        os._exit(9)
    return original(job, data, split, number)
encode._write = die_at_split_1
from sequifier_ray.preprocess.pipeline import preprocess
preprocess(load_preprocess(sys.argv[1]), print)
"""


def test_a_killed_run_leaves_the_earlier_results_and_the_next_run_clears_up(
    project: Any, events: Any
) -> None:
    project.write(events([10, 10]))
    project.run()
    before = project.snapshot()
    project.write(events([10, 12]))
    command = [sys.executable, "-c", KILLED, str(project.root / "preprocess.yaml")]
    assert subprocess.run(command, check=False).returncode == 9
    assert (project.root / "data" / ".events-preprocess").exists()
    assert {k: v for k, v in project.snapshot().items() if ".events-preprocess" not in k} == before
    project.run()
    assert "cleared what an interrupted run had left" in project.lines
    assert not (project.root / "data" / ".events-preprocess").exists()


THREADS = """
import sys
from sequifier_ray.config.load import load_preprocess
from sequifier_ray.preprocess.pipeline import preprocess
preprocess(load_preprocess(sys.argv[1]), print)
import polars
print("threads:", polars.thread_pool_size())
"""


def test_n_cores_are_the_threads_of_polars(project: Any, events: Any) -> None:
    project.write(events([10]))
    project.run(n_cores=1)
    command = [sys.executable, "-c", THREADS, str(project.root / "preprocess.yaml")]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert "threads: 1" in done.stdout
