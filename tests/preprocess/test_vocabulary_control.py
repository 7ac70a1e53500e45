"""Vocabularies that are limited, hashed, given, or taken from an earlier run."""

from __future__ import annotations

import hashlib
import json
from typing import Any

import polars as pl
import pytest

from sequifier_ray.errors import ConfigError, DataError


def words(counts: dict[str, int], rest: int = 10) -> pl.DataFrame:
    """One sequence whose first rows hold each word so many times, and then `rest` rows with new ones."""
    column = [word for word, n in counts.items() for _ in range(n)] + [f"new{i}" for i in range(rest)]
    n = len(column)
    return pl.DataFrame(
        {"sequenceId": [0] * n, "itemPosition": range(n), "word": column, "x": [0.5, 1.5] * (n // 2)}
    )


SETTINGS = {"split_ratios": [0.5, 0.5]}


def ids(project: Any, split: int) -> list[int]:
    return list(project.events(split)["word"])


def test_the_most_frequent_values_have_ids(project: Any) -> None:
    project.write(words({"c": 4, "a": 3, "b": 3}))
    project.run(cardinality_config={"word": {"top_k": 2}}, **SETTINGS)
    assert project.description().id_maps["word"] == {"a": 3, "c": 4, "[unknown]": 0, "[other]": 1}
    assert ids(project, 0) == [4] * 4 + [3] * 3 + [1] * 3
    assert ids(project, 1) == [1] * 10
    project.run(cardinality_config={"word": {"min_freq": 4}}, **SETTINGS)
    assert set(project.description().id_maps["word"]) == {"c", "[unknown]", "[other]"}


def test_other_values_are_hashed_alike_on_every_machine(project: Any) -> None:
    project.write(words({"c": 4, "a": 3, "b": 3}))
    limit = {"top_k": 1, "hashing": {"num_buckets": 4, "seed": 7}}
    project.run(cardinality_config={"word": limit}, **SETTINGS)
    description = project.description()
    assert description.n_classes["word"] == 8

    def bucket(value: str) -> int:
        digest = hashlib.sha256(f"7:{value}".encode()).digest()
        return 4 + int.from_bytes(digest[:8], "big") % 4

    assert ids(project, 0) == [3] * 4 + [bucket("a")] * 3 + [bucket("b")] * 3
    assert ids(project, 1) == [bucket(f"new{i}") for i in range(10)]
    assert len(set(ids(project, 1))) > 1
    # the map, classes and buckets of an earlier run are taken over together
    project.write(words({"c": 2, "z": 8}), "next.parquet")
    reused = {"preprocessing_data_path": "next.parquet"}
    project.run(metadata_config_path="configs/metadata_configs/events.json", **reused, **SETTINGS)
    assert project.description("next").n_classes["word"] == 8
    assert list(project.events(0, "next")["word"]) == [3] * 2 + [bucket("z")] * 8


def test_integers_may_be_limited_too(project: Any, events: Any) -> None:
    project.write(events([40]).with_columns(level=pl.int_range(pl.len()) % 10 // 3))
    project.run(cardinality_config={"level": {"top_k": 2, "hashing": {"num_buckets": 2}}}, split_ratios=[1.0])
    assert list(project.description().id_maps["level"]) == ["0", "1"]
    assert project.description().n_classes["level"] == 7


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        (
            {"cardinality_config": {"x": {"top_k": 3}}},
            'cardinality_config: "x" is a real column, and only categ',
        ),
        (
            {"cardinality_config": {"wrod": {"top_k": 3}}},
            'cardinality_config: "wrod" is not a column of the input',
        ),
        (
            {"cardinality_config": {"word": {"top_k": 3}}, "selected_columns": ["x"]},
            'cardinality_config: "word" is not processed; add it to selected_columns',
        ),
        ({"use_precomputed_maps": ["x"]}, 'use_precomputed_maps: "x" is a real column'),
        (
            {"use_precomputed_maps": ["nothing"]},
            'use_precomputed_maps: "nothing" is not a column of the input',
        ),
    ],
)
def test_limits_of_columns_that_have_no_ids(project: Any, settings: dict[str, Any], text: str) -> None:
    project.write(words({"a": 10}))
    with pytest.raises(ConfigError) as caught:
        project.run(**settings, **SETTINGS)
    assert text in str(caught.value)


def test_precomputed_maps_say_what_they_do_not_know(project: Any) -> None:
    project.write(words({"a": 5, "b": 5}))
    project.write(json.dumps({"a": 3}), "configs/id_maps/word.json")
    project.run(use_precomputed_maps=["word"], split_ratios=[1.0])
    warning = 'warning: column "word": 75.0% of the events are [other], not in configs/id_maps/word.json'
    assert warning in project.lines
    project.write(json.dumps({"zzz": 3}), "configs/id_maps/word.json")
    with pytest.raises(DataError, match=r'column "word": configs/id_maps/word.json knows none of its values'):
        project.run(use_precomputed_maps=["word"], split_ratios=[1.0])


@pytest.mark.parametrize("ending", ["csv", "parquet"])
def test_a_map_of_texts_finds_numbers_too(project: Any, ending: str) -> None:
    """Written as text before, as numbers now: the values are the same."""
    before = words({"7": 5, "08": 5}, rest=0)
    project.write(before, "old.parquet")
    project.run(preprocessing_data_path="old.parquet", split_ratios=[1.0])
    if ending == "csv":
        project.write(before, "events.csv")
        expected = [4] * 5 + [3] * 5
    else:
        project.write(before.with_columns(word=pl.lit(7)))
        expected = [4] * 10
    project.run(
        preprocessing_data_path=f"events.{ending}",
        read_format=ending,
        metadata_config_path="configs/metadata_configs/old.json",
        split_ratios=[1.0],
    )
    assert ids(project, 0) == expected


def test_a_map_of_integers_finds_floats_of_whole_numbers(project: Any) -> None:
    """A single missing value turns the integers of some tools into floats."""
    before = words({"a": 10}, rest=0).with_columns(word=pl.int_range(pl.len()) % 3)
    project.write(before, "old.parquet")
    project.run(preprocessing_data_path="old.parquet", split_ratios=[1.0])
    project.write(before.with_columns(word=pl.col("word").cast(pl.Float64).replace(2.0, None)))
    project.run(metadata_config_path="configs/metadata_configs/old.json", split_ratios=[1.0])
    assert ids(project, 0) == [3, 4, 0] * 3 + [3]


def test_a_column_that_only_varies_later_is_told(project: Any, events: Any) -> None:
    table = events([20]).with_columns(late=pl.when(pl.col("itemPosition") > 17).then(5.0).otherwise(1.0))
    project.write(table)
    project.run()
    warning = 'warning: column "late" does not vary in split 0: all its values are stored as 0'
    assert warning in project.lines


def test_a_damaged_description_is_named(project: Any, events: Any) -> None:
    project.write(events([20]))
    project.run()
    path = project.root / "configs" / "metadata_configs" / "events.json"
    values = json.loads(path.read_text())
    del values["id_maps"]
    path.write_text(json.dumps(values))
    with pytest.raises(DataError, match=r"events\.json is damaged \(KeyError: 'id_maps'\); run"):
        project.run(metadata_config_path="configs/metadata_configs/events.json")
    with pytest.raises(DataError, match=r"there is no dataset description \(metadata_config_path\)"):
        project.run(metadata_config_path="configs/metadata_configs/nothing.json")
