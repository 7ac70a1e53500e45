"""`inspect` says of a table what `preprocess` then does with it, and finds damage in what it has written."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
import torch
import yaml

from sequifier_ray.cli import main
from sequifier_ray.config.load import load_preprocess
from sequifier_ray.data.metadata import read_split
from sequifier_ray.errors import ConfigError, DataError
from sequifier_ray.inspection.facts import Lengths
from sequifier_ray.inspection.report import lines_of
from sequifier_ray.inspection.run import inspect
from sequifier_ray.preprocess.pipeline import preprocess


def look(
    path: Path | str, verify: bool = False, world_size: int | None = None, **overrides: Any
) -> list[Any]:
    return inspect(str(path), None, overrides, world_size, verify, lambda line: None)


@pytest.fixture
def table(tmp_path: Path) -> pl.DataFrame:
    rng = np.random.default_rng(1)
    lengths = rng.integers(1, 90, 60)
    n = int(lengths.sum())
    frame = pl.DataFrame(
        {
            "sequenceId": np.repeat(np.arange(60), lengths),
            "itemPosition": np.concatenate([np.arange(k) for k in lengths]),
            "word": pl.Series([None if i % 7 == 0 else f"w{i % 5}" for i in range(n)]),
            "level": rng.integers(-4, 500, n),
            "size": rng.normal(size=n),
            "flag": rng.integers(0, 2, n) == 1,
        }
    )
    frame.write_parquet(tmp_path / "t.parquet")
    return frame


def run(root: Path, **changes: Any) -> None:
    settings = {
        "project_root": str(root),
        "preprocessing_data_path": "t.parquet",
        "read_format": "parquet",
        "write_format": "pt",
        "merge_output": False,
        "split_ratios": [0.8, 0.1, 0.1],
        "window_length": 33,
        "window_stride": 8,
    }
    (root / "p.yaml").write_text(yaml.safe_dump(settings | changes))
    preprocess(load_preprocess(str(root / "p.yaml")), lambda line: None)


@pytest.mark.parametrize("method", ["within_sequence", "between_sequence"])
def test_a_table_is_foretold(tmp_path: Path, table: pl.DataFrame, method: str) -> None:
    window = {"window_length": 33, "window_stride": 8, "split_method": method}
    (facts,) = look(tmp_path / "t.parquet", world_size=3, **window)
    run(tmp_path, split_method=method)
    assert (facts.rows, facts.sequences) == (table.height, 60)
    lengths = np.sort(table.group_by("sequenceId").len()["len"].to_numpy())
    assert (facts.lengths.minimum, facts.lengths.maximum) == (lengths[0], lengths[-1])
    assert facts.lengths.median in (lengths[29], lengths[30])
    assert dict(facts.length_histogram) == {int(k): int((lengths == k).sum()) for k in np.unique(lengths)}
    for i, foretold in enumerate(facts.splits):
        (real,) = look(tmp_path / "data" / f"t-split{i}", verify=True, world_size=3)
        (found,) = real.splits
        for name in (
            "segments",
            "events",
            "windows",
            "padding_share",
            "shards",
            "windows_per_rank",
            "lengths",
        ):
            assert getattr(foretold, name) == getattr(found, name), name
        # what torch.save adds to every shard is not foretold
        assert 0 < found.bytes - foretold.bytes < 6000 * found.shards
        assert real.verified


def test_columns_of_a_table(tmp_path: Path, table: pl.DataFrame) -> None:
    table.write_csv(tmp_path / "t.csv")
    for name in ("t.parquet", "t.csv"):
        (facts,) = look(tmp_path / name)
        word, level, size, flag = facts.columns[2:]
        assert (word.role, word.kind, word.distinct, word.missing) == (
            "categorical",
            "text",
            5,
            table["word"].null_count(),
        )
        assert (word.minimum, word.maximum) == ("w0", "w4")
        assert (level.role, level.kind, level.distinct) == (
            "categorical",
            "integer",
            table["level"].n_unique(),
        )
        assert (level.minimum, level.maximum) == (str(table["level"].min()), str(table["level"].max()))
        assert (size.role, size.kind, size.distinct) == ("real", "real", table["size"].n_unique())
        assert float(size.minimum or 0) == table["size"].min()
        assert (flag.role, flag.kind, flag.distinct) == ("categorical", "boolean", 2)
        assert facts.columns[0].role == "id"


def test_other_windows_of_a_preprocessed_split(tmp_path: Path, table: pl.DataFrame) -> None:
    run(tmp_path)
    (facts,) = look(tmp_path / "data" / "t-split0", window_length=10)
    lengths = [int(0.8 * n) for n in table.group_by("sequenceId").len()["len"]]
    expected = sum(-(-max(n - 10, 0) // 10) + 1 for n in lengths if n)
    assert facts.window == (10, 10)
    assert facts.splits[0].windows == expected


def test_all_splits_of_a_description(tmp_path: Path, table: pl.DataFrame) -> None:
    run(tmp_path, write_format="csv", merge_output=True)
    found = look(tmp_path / "configs" / "metadata_configs" / "t.json", verify=True)
    assert [Path(facts.path).name for facts in found] == [f"t-split{i}.csv" for i in range(3)]


def test_damage_is_found(tmp_path: Path, table: pl.DataFrame) -> None:
    run(tmp_path)
    folder = tmp_path / "data" / "t-split0"
    shards = sorted(folder.glob("*.pt"))
    contents = torch.load(shards[1], weights_only=True)
    contents["columns"]["word"][3] = 200
    contents["columns"]["size"][4] = float("nan")
    with shards[1].open("wb") as file:
        torch.save(contents, file)
    shards[2].write_bytes(shards[2].read_bytes()[:-100])
    shards[3].unlink()
    with pytest.raises(DataError) as caught:
        look(folder, verify=True)
    text = str(caught.value)
    assert f'shard {shards[1]} holds ids from 0 to 200 in column "word", which has 8 classes; run' in text
    assert f'shard {shards[1]} holds values in column "size" that are not finite' in text
    n_bytes = next(e.bytes for e in read_split(str(folder)).shards if e.name == shards[2].name)
    assert f"shard {shards[2]} has {n_bytes - 100} bytes instead of {n_bytes}" in text
    assert f"shard {shards[3]} is missing" in text
    assert len(text.splitlines()) == 4
    look(folder)  # without --verify the shards are not read


def test_what_cannot_be_verified_or_counted(tmp_path: Path, table: pl.DataFrame) -> None:
    with pytest.raises(ConfigError, match=r"--verify: .*t\.parquet is no preprocessed split"):
        look(tmp_path / "t.parquet", verify=True)
    with pytest.raises(ConfigError, match="--world-size: found 0; allowed: at least 1"):
        look(tmp_path / "t.parquet", world_size=0)
    with pytest.raises(ConfigError, match="command line: window_length: found 0; allowed: at least 1"):
        look(tmp_path / "t.parquet", window_length=0)
    with pytest.raises(ConfigError, match=r"nothing\.csv does not exist"):
        look(tmp_path / "nothing.csv")


def test_the_command(tmp_path: Path, table: pl.DataFrame, capsys: pytest.CaptureFixture[str]) -> None:
    path = str(tmp_path / "t.parquet")
    assert main(["inspect", path, "--world-size", "2", "--window-length", "33", "--window-stride", "8"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith(f"{path}: parquet table, 1 file, ")
    assert lines[1] == f"{table.height:,} rows in 60 sequences"
    assert lines[2].startswith("sequence lengths: min ")
    assert any(line.split()[:4] == ["word", "categorical", "text", "5"] for line in lines)
    assert "windows of 33 events, one every 8:" in lines
    assert main(["inspect", path, "--json"]) == 0
    (facts,) = json.loads(capsys.readouterr().out)
    assert facts["rows"] == table.height
    assert facts["splits"][0]["windows"] > 0


def test_a_folder_that_sequifier_wrote() -> None:
    folder = Path(__file__).parents[1] / "data" / "sequifier_folder" / "data" / "events-split0"
    (facts,) = look(folder, verify=True)
    assert facts.bytes == sum(path.stat().st_size for path in folder.glob("*.pt"))
    assert facts.splits[0].windows == facts.splits[0].segments == 94


def test_quartiles() -> None:
    assert Lengths.of({1: 1, 2: 1, 3: 1, 4: 1}) == Lengths(1, 1, 2, 3, 4)
    assert Lengths.of({7: 100}) == Lengths(7, 7, 7, 7, 7)


def test_windows_of_a_split_are_checked(tmp_path: Path, table: pl.DataFrame) -> None:
    run(tmp_path)
    split = tmp_path / "data" / "t-split0"
    (stored,) = look(split)
    assert stored.window == (33, 8)
    assert look(split, window_stride=1)[0].window == (33, 1)
    assert look(split, window_length=9)[0].window == (9, 9)
    assert look(split, window_length=1, window_stride=2)[0].window == (1, 2)
    assert look(split, window_stride=1)[0].splits[0].windows > stored.splits[0].windows
    for field in ("window_length", "window_stride"):
        for value in (0, -3, "abc", 2.5, 2**63):
            with pytest.raises(ConfigError, match=f"{field}: found"):
                look(split, **{field: value})
    with pytest.raises(ConfigError, match=r"--config-path: .*t-split0 is preprocessed already; only its win"):
        inspect(str(split), str(tmp_path / "p.yaml"), {}, None, False, lambda line: None)


@pytest.mark.parametrize("ending", ["parquet", "csv"])
def test_the_first_rows_of_a_table(tmp_path: Path, table: pl.DataFrame, ending: str) -> None:
    table.write_csv(tmp_path / "t.csv")
    (facts,) = look(tmp_path / f"t.{ending}", max_rows=10)
    assert facts.rows == 10
    assert facts.sequences == table.head(10)["sequenceId"].n_unique()
    flags = next(column for column in facts.columns if column.name == "flag")
    assert flags.distinct == table.head(10)["flag"].n_unique()


def test_columns_of_any_type_and_name(tmp_path: Path) -> None:
    table = pl.DataFrame(
        {
            "sequenceId": [0, 0],
            "itemPosition": [0, 1],
            "lists": [[1], None],
            "records": [{"a": 1}, {"a": 2}],
            "span": pl.Series([1, 2], dtype=pl.Duration("us")),
            "time": pl.Series([1, 2], dtype=pl.Time),
            "bytes": [b"a", b"\xff"],
            "^x.*$": ["a", "b"],
            "*": [1.5, 2.5],
            "rows": [True, False],
        }
    )
    table.write_parquet(tmp_path / "t.parquet")
    (facts,) = look(tmp_path / "t.parquet")
    assert [column.name for column in facts.columns] == table.columns
    found = {column.name: (column.missing, column.distinct) for column in facts.columns}
    assert [found[name] for name in ("lists", "records", "span", "time")] == [
        *((1, None), (0, None), (0, None), (0, None))
    ]
    assert found["bytes"] == (1, 1)
    assert [found[name] for name in ("^x.*$", "*", "rows")] == [(0, 2)] * 3
    assert any("lists" in line for line in lines_of(facts))


@pytest.mark.parametrize("name", ["rows", "*", "^x.*$"])
def test_names_of_csv_columns(tmp_path: Path, name: str) -> None:
    pl.DataFrame({"sequenceId": [0, 0], "itemPosition": [0, 1], name: ["1", "NA"]}).write_csv(
        tmp_path / "t.csv"
    )
    (facts,) = look(tmp_path / "t.csv")
    assert [(c.name, c.kind, c.missing, c.distinct) for c in facts.columns][2] == (name, "integer", 1, 1)


def test_ids_that_are_no_text_are_refused(tmp_path: Path) -> None:
    table = {"sequenceId": [b"a", b"\xff\xfe"], "itemPosition": [0, 1], "x": ["a", "b"]}
    pl.DataFrame(table).write_parquet(tmp_path / "t.parquet")
    with pytest.raises(DataError, match='column "sequenceId" holds 1 value of bytes that are not UTF-8 text'):
        look(tmp_path / "t.parquet")
