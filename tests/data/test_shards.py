"""Shards and metadata: what is written is read again, and damage is named."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sequifier_ray.data.metadata import (
    ColumnStatistics,
    DatasetDescription,
    SplitMetadata,
    metadata_path,
    read_description,
    read_split,
    write_description,
    write_split,
)
from sequifier_ray.data.shards import ShardData, column_dtype, open_shard, smallest_id_dtype, write_shard
from sequifier_ray.errors import DataError


def describe(write_format: str) -> DatasetDescription:
    return DatasetDescription(
        n_classes={"zone": 200, "code": 40_000, "z": 70_000},
        id_maps={"zone": {"ä": 3}, "code": {"1": 3}, "z": {"x y": 3}},
        split_paths=("data/x-split0",),
        column_data_types={
            "zone": "String",
            "value": "Float32",
            "code": "Int64",
            "exact": "Float64",
            "z": "String",
        },
        selected_columns_statistics={
            "value": ColumnStatistics(1.5, 2.0),
            "exact": ColumnStatistics(0.0, 1.0),
        },
        normalize_real_columns=True,
        normalize_on_all_data=False,
        split_ratios=(0.5, 0.5),
        split_method="within_sequence",
        window_length=9,
        window_stride=4,
        max_target_offset=1,
        special_token_ids={"[unknown]": 0, "[other]": 1, "[mask]": 2},
        write_format=write_format,
        merge_output=False,
    )


def make_data(
    description: DatasetDescription, lengths: tuple[int, ...] = (4, 1, 7), gap: bool = False
) -> ShardData:
    generator = np.random.default_rng(0)
    offsets = np.append(0, np.cumsum(lengths)).astype(np.int64)
    n = int(offsets[-1])
    columns: dict[str, Any] = {}
    for name in description.columns:
        dtype = column_dtype(description, name)
        is_id = name in description.id_maps
        high = description.n_classes.get(name, 9)
        columns[name] = (generator.integers(0, high, n) if is_id else generator.normal(size=n)).astype(dtype)
    positions = np.concatenate([np.arange(length) + 5 for length in lengths]).astype(np.int64)
    if gap:
        positions[2:4] += 10
    starts = positions[offsets[:-1]]
    ids = np.arange(len(lengths), dtype=np.int64) * 3 - 1
    return ShardData(columns, ids, starts, positions if gap else None, offsets)


@pytest.mark.parametrize("gap", [False, True])
@pytest.mark.parametrize("write_format", ["pt", "parquet", "csv"])
def test_round_trip(tmp_path: Path, write_format: str, gap: bool) -> None:
    description = describe(write_format)
    data = make_data(description, gap=gap)
    entry = write_shard(str(tmp_path / f"a.{write_format}"), data, write_format)
    assert (entry.events, entry.segments, entry.segment_lengths) == (12, 3, ((1, 1), (4, 1), (7, 1)))
    found = open_shard(str(tmp_path), entry, description)
    for name, column in data.columns.items():
        assert found.columns[name].dtype == column.dtype, name
        assert np.array_equal(found.columns[name], column), name
    for name in ("sequence_ids", "start_positions", "offsets"):
        assert np.array_equal(getattr(found, name), getattr(data, name))
    assert np.array_equal(found.positions(), data.positions())
    assert (found.item_positions is not None) == gap


@pytest.mark.parametrize("write_format", ["pt", "parquet", "csv"])
def test_equal_data_give_equal_bytes(tmp_path: Path, write_format: str) -> None:
    data = make_data(describe(write_format))
    for name in ("a", "b"):
        write_shard(str(tmp_path / name), data, write_format)
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()


def test_smallest_type_that_fits() -> None:
    assert [smallest_id_dtype(n).name for n in (256, 257, 32768, 32769, 2**31, 2**31 + 1)] == [
        "uint8",
        "int16",
        "int16",
        "int32",
        "int32",
        "int64",
    ]


@pytest.fixture
def split(tmp_path: Path) -> tuple[Path, SplitMetadata]:
    description = describe("pt")
    folder = tmp_path / "x-split0"
    folder.mkdir()
    entry = write_shard(str(folder / "x-split0-00000.pt"), make_data(description), "pt")
    metadata = SplitMetadata(description, 0, (entry,))
    write_split(str(folder), metadata)
    return folder, metadata


def test_metadata_round_trip(split: tuple[Path, SplitMetadata], tmp_path: Path) -> None:
    folder, metadata = split
    assert read_split(str(folder)) == metadata
    path = str(tmp_path / "x.json")
    write_description(path, metadata.description)
    found = read_description(path)
    assert found == metadata.description
    assert found.columns == ("zone", "value", "code", "exact", "z")
    assert found.categorical_columns == ("zone", "code", "z")
    assert found.real_columns == ("value", "exact")
    assert metadata_path("data/x-split1.parquet") == "data/x-split1.metadata.json"


def test_fingerprint_follows_names_sizes_and_counts(split: tuple[Path, SplitMetadata]) -> None:
    _, metadata = split
    (entry,) = metadata.shards
    others = [
        dataclasses.replace(entry, **change)
        for change in ({"name": "y"}, {"bytes": 1}, {"events": 1}, {"segments": 1})
    ]
    prints = {dataclasses.replace(metadata, shards=(other,)).fingerprint for other in [entry, *others]}
    assert len(prints) == 5


def test_truncated_missing_and_exchanged_shards_are_named(split: tuple[Path, SplitMetadata]) -> None:
    folder, metadata = split
    (entry,) = metadata.shards
    path = folder / entry.name
    whole = path.read_bytes()
    path.write_bytes(whole[:-5])
    with pytest.raises(
        DataError, match=r"shard .*x-split0-00000\.pt has \d+ bytes instead of \d+; restore it or run"
    ):
        open_shard(str(folder), entry, metadata.description)
    path.write_bytes(b"\0" * len(whole))
    with pytest.raises(
        DataError, match=r"shard .*x-split0-00000\.pt cannot be read; run `sequifier-ray preprocess`"
    ):
        open_shard(str(folder), entry, metadata.description)
    other = write_shard(str(path), make_data(metadata.description, (4, 8)), "pt")
    with pytest.raises(DataError, match=r"holds 12 events in 2 segments instead of 12 in 3"):
        open_shard(str(folder), dataclasses.replace(other, segments=3), metadata.description)
    path.unlink()
    with pytest.raises(DataError, match=r"shard .*x-split0-00000\.pt is missing"):
        open_shard(str(folder), entry, metadata.description)


def test_folders_that_are_no_data_sets(split: tuple[Path, SplitMetadata], tmp_path: Path) -> None:
    folder, _ = split
    path = folder / "metadata.json"
    values = json.loads(path.read_text())
    path.write_text(json.dumps({**values, "version": 2}))
    with pytest.raises(
        DataError, match=r"has format sequifier_ray\.split version 2, and this release reads .* version 1"
    ):
        read_split(str(folder))
    path.write_text(path.read_text()[:50])
    with pytest.raises(DataError, match=r"metadata\.json is not valid JSON .*preprocess` again"):
        read_split(str(folder))
    path.unlink()
    with pytest.raises(DataError, match=r"its metadata \(.*metadata\.json\) is missing"):
        read_split(str(folder))
    with pytest.raises(DataError, match=r"nowhere: the split does not exist"):
        read_split(str(tmp_path / "nowhere"))
    with pytest.raises(DataError, match=r"no\.json: there is no dataset description"):
        read_description(str(tmp_path / "no.json"))
