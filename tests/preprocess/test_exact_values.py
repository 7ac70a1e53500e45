"""Values are read as they are written: nothing merged, guessed or rounded without a word."""

from __future__ import annotations

import datetime
import json
from decimal import Decimal
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.parquet
import pytest

from sequifier_ray.config.tables import Cardinality
from sequifier_ray.data.metadata import read_split
from sequifier_ray.data.shards import open_shard
from sequifier_ray.errors import ConfigError, DataError
from sequifier_ray.preprocess.splits import within_sequence_bounds
from sequifier_ray.preprocess.vocabulary import Moments, listed_values

CSV = {"preprocessing_data_path": "t.csv", "read_format": "csv", "split_ratios": [1.0]}
PARQUET = {"preprocessing_data_path": "t.parquet", "split_ratios": [1.0]}


def write_csv(project: Any, values: list[str], name: str = "x", sep: str = ",") -> None:
    lines = [sep.join(["sequenceId", "itemPosition", f'"{name}"'])]
    lines += [sep.join(["0", str(i), value]) for i, value in enumerate(values)]
    project.write("\n".join(lines) + "\n", "t.csv")


def write_parquet(project: Any, **columns: Any) -> None:
    n = len(next(iter(columns.values())))
    keys = {"sequenceId": [0] * n, "itemPosition": list(range(n))}
    pa.parquet.write_table(pa.table({**keys, **columns}), project.root / "t.parquet")


def names_of(project: Any) -> list[Any]:
    description = project.description("t")
    path = project.root / description.split_paths[0]
    found: list[Any] = []
    for entry in read_split(str(path)).shards:
        shard = open_shard(str(path), entry, description)
        names = shard.sequence_names
        found += shard.sequence_ids.tolist() if names is None else names.to_list()
    return found


def ids_of(project: Any) -> set[str]:
    return set(project.description("t").id_maps["x"]) - {"[unknown]", "[other]"}


@pytest.mark.parametrize(
    ("ids", "is_text"),
    [
        (["1", "2", " 3 "], False),
        (["1", "+1"], True),
        (["0", "-0"], True),
        (["1", " 01"], True),
        (["1", "01"], True),
        ([str(2**63), "1"], True),
        (["9223372036854775807", "-9223372036854775808"], False),
    ],
)
def test_ids_of_csv_are_integers_only_as_integers_are_written(
    project: Any, ids: list[str], is_text: bool
) -> None:
    rows = [f"{name},{i},{'ab'[i % 2]}" for name in ids for i in range(2)]
    project.write("\n".join(["sequenceId,itemPosition,x", *rows]), "t.csv")
    project.run(**CSV)
    assert names_of(project) == (sorted(ids) if is_text else sorted(int(name) for name in ids))


def test_text_ids_of_parquet_stay_text(project: Any) -> None:
    ids = ["1", "1 ", "+1", "-0", "0", "01"]
    table = {"sequenceId": ids * 2, "itemPosition": [0] * 6 + [1] * 6, "x": ["a", "b"] * 6}
    pa.parquet.write_table(pa.table(table), project.root / "t.parquet")
    project.run(**PARQUET)
    assert names_of(project) == sorted(ids)
    table["sequenceId"] = ["1"] * 6 + ["2"] * 6
    table["itemPosition"] = list(range(6)) * 2
    pa.parquet.write_table(pa.table(table), project.root / "t.parquet")
    project.run(**PARQUET)
    assert names_of(project) == ["1", "2"]


@pytest.mark.parametrize(
    ("values", "ids"),
    [
        (["1", " 2", "3 "], {"1", "2", "3"}),
        ([" 007", "7", "8"], {" 007", "7", "8"}),
        (["+1", "1", "2"], {"+1", "1", "2"}),
        (["-0", "0", "1"], {"-0", "0", "1"}),
        ([str(2**64), str(2**64 + 1), "5"], {str(2**64), str(2**64 + 1), "5"}),
        (["1", "2", "NaN"], {"1", "2"}),
        (["1", "2", "NA"], {"1", "2"}),
        (["True", "False", "nan"], {"0", "1"}),
    ],
)
def test_categories_of_csv_are_not_merged(project: Any, values: list[str], ids: set[str]) -> None:
    write_csv(project, values * 3)
    project.run(**CSV)
    assert ids_of(project) == ids


def test_large_integers_among_reals_are_reals(project: Any) -> None:
    write_csv(project, ["0.5", str(2**64), "+1", "-0"] * 2)
    project.run(**CSV)
    assert project.description("t").real_columns == ("x",)


@pytest.mark.parametrize("column", ["decimal", "float"])
def test_integers_that_floats_do_not_tell_apart_are_refused_as_categories(project: Any, column: str) -> None:
    values = [2**53, 2**53 + 1, 7, 7]
    arrow = {
        "decimal": pa.array([Decimal(v) for v in values], pa.decimal128(38, 0)),
        "float": pa.array([float(v) for v in values]),
    }[column]
    write_parquet(project, x=arrow)
    with pytest.raises(DataError, match='categorical column "x" holds 2 values unfit as categories, first'):
        project.run(categorical_columns=["x"], **PARQUET)
    write_parquet(project, x=arrow.take(pa.array([2, 3])))
    project.run(categorical_columns=["x"], **PARQUET)
    assert ids_of(project) == {"7"}


def test_missing_floats_are_missing_categories(project: Any) -> None:
    write_parquet(project, x=[1.0, float("nan"), None, 2.0])
    project.run(categorical_columns=["x"], **PARQUET)
    assert project.events(0, "t")["x"].to_list() == [3, 0, 0, 4]


def test_ids_that_are_decimals_are_called_so(project: Any) -> None:
    table = {"sequenceId": pa.array([Decimal(1)] * 3), "itemPosition": [0, 1, 2], "x": ["a"] * 3}
    pa.parquet.write_table(pa.table(table), project.root / "t.parquet")
    with pytest.raises(DataError, match=r'"sequenceId" holds 3 values of type Decimal\('):
        project.run(**PARQUET)


def test_a_point_is_no_decimal_comma(project: Any) -> None:
    write_csv(project, ["1.234", "2,5", "3"] * 3, sep=";")
    project.run(csv={"decimal": ","}, **CSV)
    assert ids_of(project) == {"1.234", "2,5", "3"}
    assert any('column "x" is taken as text: 6 of its 9 values are numbers' in line for line in project.lines)
    with pytest.raises(
        DataError, match=r"real column \"x\" holds 3 values other than numbers, first '1.234'"
    ):
        project.run(csv={"decimal": ","}, real_columns=["x"], **CSV)


MASKS = [
    (["1.0", "0.0", "1", "0"], [True, False, True, False]),
    ([" true", "TRUE ", "false", ""], [True, True, False, False]),
    ([1.0, 0.0, None, float("nan")], [True, False, False, None]),
    ([True, False, None, True], [True, False, False, True]),
    ([1, 0, 2, 1], None),
    (["yes", "no", "yes", "no"], None),
    ([0.5, 1.9, 1.0, 0.0], None),
    ([datetime.date(1970, 1, 2)] * 4, None),
    ([Decimal("0.5"), Decimal(1), Decimal(0), Decimal(1)], None),
]


@pytest.mark.parametrize(("mask", "expected"), MASKS)
def test_masks_are_understood_or_refused(project: Any, mask: list[Any], expected: list[bool] | None) -> None:
    is_text = isinstance(mask[0], str)
    write_parquet(project, x=["a", "b", "c", "d"])
    project.run(**PARQUET)
    (project.root / "maps.json").write_bytes((project.root / "configs/metadata_configs/t.json").read_bytes())
    settings = {"mask_column": "m", "metadata_config_path": "maps.json", "selected_columns": ["x"]}
    if is_text:
        rows = [f"0,{i},{'abcd'[i]},{value}" for i, value in enumerate(mask)]
        project.write("\n".join(["sequenceId,itemPosition,x,m", *rows]), "t.csv")
        settings |= CSV
    else:
        write_parquet(project, x=["a", "b", "c", "d"], m=mask)
        settings |= PARQUET
    if expected is None or None in expected:
        with pytest.raises(
            DataError, match=r'mask_column "m" holds . values? other than true, false, 0 and 1'
        ):
            project.run(**settings)
    else:
        project.run(**settings)
        masked = [2 if is_masked else i + 3 for i, is_masked in enumerate(expected)]
        assert project.events(0, "t")["x"].to_list() == masked


def write_times(project: Any, times: list[str]) -> None:
    rows = [f'0,"{time}",{"ab"[i % 2]}' for i, time in enumerate(times)]
    project.write("\n".join(["sequenceId,itemPosition,x", *rows]), "t.csv")


def test_times_in_any_iso_form(project: Any) -> None:
    times = [
        "2024-01-31",
        "2024-01-31T12:30",
        "2024-01-31 12:30:01",
        "2024-01-31T12:30:01.5",
        "2024-01-31T12:30:01,000001Z",
        "2024-01-31T12:30:01.123456000+01:00",
        " 2024-02-01 00:00:00+0530 ",
        "2024-02-01 00:00:00+01",
    ]
    write_times(project, times)
    project.run(item_position="order", **CSV)
    utc = datetime.timezone.utc
    day = datetime.datetime(2024, 1, 31, tzinfo=utc)
    after = [0, 45_000, 45_001, 45_001.5, 45_001.000001, 41_401.123456, 66_600, 82_800]
    start = int(day.timestamp()) * 1_000_000
    assert project.positions(0, "t") == sorted(start + round(s * 1e6) for s in after)


@pytest.mark.parametrize(
    "time", ["31/01/2024", "01.02.2024", "2024/01/31", "2024-13-01", "2024-1-31", "", "x"]
)
def test_other_times_are_refused(project: Any, time: str) -> None:
    write_times(project, ["2024-01-01", time, "2024-01-03"])
    with pytest.raises(
        DataError, match=r"holds 1 value other than ISO dates or timestamps, first '.*' in row 2"
    ):
        project.run(item_position="order", **CSV)


def test_a_column_of_other_times_is_not_guessed_at(project: Any) -> None:
    write_times(project, ["01/02/2024", "02/02/2024", "03/02/2024"])
    with pytest.raises(
        DataError, match=r"holds 3 values other than ISO dates or timestamps, first '01/02/2024'"
    ):
        project.run(item_position="order", **CSV)


def test_times_finer_than_microseconds_are_refused(project: Any) -> None:
    write_times(project, ["2024-01-01T00:00:00.123456", "2024-01-01T00:00:00.1234567"])
    with pytest.raises(DataError, match="holds 1 timestamp finer than microseconds, first in row 2"):
        project.run(item_position="order", **CSV)


def test_positions_with_leading_zeros_are_numbers(project: Any) -> None:
    write_times(project, ["010", "008", "009"])
    for item_position in ("order", "consecutive"):
        project.run(item_position=item_position, **CSV)
        assert project.positions(0, "t") == [8, 9, 10]


@pytest.mark.parametrize(
    ("first", "later"),
    [
        (["true", "false", "maybe"], ["true", "false"]),
        (["1.5", "2.5", "A"], ["1.5", "2.5"]),
        (["7", "08", "A"], ["7", "7"]),
        (["NaN", "A", "B"], ["NaN", "NaN"]),
    ],
)
@pytest.mark.parametrize("source", ["metadata_config_path", "use_precomputed_maps"])
def test_maps_of_texts_are_looked_up_by_text(
    project: Any, first: list[str], later: list[str], source: str
) -> None:
    write_csv(project, first * 2)
    project.run(**CSV)
    id_map = project.description("t").id_maps["x"]
    if source == "metadata_config_path":
        earlier = (project.root / "configs/metadata_configs/t.json").read_bytes()
        (project.root / "maps.json").write_bytes(earlier)
        settings: dict[str, Any] = {source: "maps.json"}
    else:
        own = {text: number for text, number in id_map.items() if number > 2}
        project.write(json.dumps(own), "configs/id_maps/x.json")
        settings = {source: ["x"]}
    write_csv(project, later * 2)
    project.run(**CSV, **settings)
    assert project.events(0, "t")["x"].to_list() == [id_map[text] for text in later * 2]


@pytest.mark.parametrize("value", [0.1, 1234567.891, 1e9 + 0.1, 1e15 + 0.3])
def test_a_constant_column_is_zero_and_told(project: Any, value: float) -> None:
    n = 3000
    table = {
        "sequenceId": np.repeat(np.arange(n // 50), 50),
        "itemPosition": np.tile(np.arange(50), n // 50),
        "x": np.full(n, value),
    }
    pa.parquet.write_table(pa.table(table), project.root / "t.parquet")
    project.run(preprocessing_data_path="t.parquet")
    statistics = project.description("t").selected_columns_statistics["x"]
    assert (statistics.mean, statistics.std) == (value, 0.0)
    assert set(project.events(0, "t")["x"]) == {0.0}
    assert any('column "x" does not vary in split 0' in line for line in project.lines)


def test_a_constant_has_no_deviation_however_it_is_cut() -> None:
    values = np.full(1001, 0.1)
    parts = [Moments.of(values[start : start + 77]) for start in range(0, 1001, 77)]
    merged = Moments()
    for part in parts:
        merged = merged.merge(part)
    assert (merged.mean, merged.std, merged.minimum, merged.maximum) == (0.1, 0.0, 0.1, 0.1)


@pytest.mark.parametrize("ratios", [[0.7, 0.2, 0.1], [0.6, 0.3, 0.1], [0.1] * 10, [1 / 3] * 3])
def test_no_event_is_lost_to_rounding(ratios: list[float]) -> None:
    lengths = np.arange(1, 500)
    bounds = within_sequence_bounds(lengths, ratios)
    assert bounds[:, -1].tolist() == lengths.tolist()
    assert (np.diff(bounds, axis=1) >= 0).all()


def test_special_names_are_none_of_the_most_frequent(project: Any) -> None:
    values, counts = pl.Series(["[other]", "a", "b"]), np.array([9, 5, 2])
    assert listed_values(values, counts, Cardinality(top_k=1)).to_list() == ["a"]


def test_a_column_of_others_alone_is_told(project: Any) -> None:
    write_csv(project, ["a", "b", "c"] * 3)
    project.run(cardinality_config={"x": {"min_freq": 100}}, **CSV)
    assert any('column "x" has no value with an id of its own: all its events' in t for t in project.lines)
    project.run(cardinality_config={"x": {"min_freq": 3}}, **CSV)
    assert not any("id of its own" in line for line in project.lines)


@pytest.mark.parametrize("name", ["rows", "*", "^x.*$", "text", "len", "literal", "id", "[a]"])
@pytest.mark.parametrize("ending", ["csv", "parquet"])
def test_columns_may_have_any_name(project: Any, name: str, ending: str) -> None:
    table = pl.DataFrame(
        {"sequenceId": [0] * 4, "itemPosition": range(4), name: list("abca"), "xa": [0.5] * 4}
    )
    project.write(table, f"t.{ending}")
    project.run(**{"csv": CSV, "parquet": PARQUET}[ending])
    assert project.events(0, "t")[name].to_list() == [3, 4, 5, 3]
    project.write(table.with_columns(pl.Series(name, ["1.5", "x", "2", ""])), f"t.{ending}")
    with pytest.raises(DataError, match="holds 1 value other than numbers"):
        project.run(**{"csv": CSV, "parquet": PARQUET}[ending], real_columns=[name], missing_real="mean")


@pytest.mark.parametrize("name", ["sequenceId", "itemPosition"])
@pytest.mark.parametrize(
    ("write_format", "merge_output"), [("pt", False), ("parquet", False), ("parquet", True), ("csv", True)]
)
def test_features_with_the_names_of_keys(
    project: Any, name: str, write_format: str, merge_output: bool
) -> None:
    table = {"user": [0] * 4, "at": list(range(4)), name: [7, 8, 9, 7]}
    pa.parquet.write_table(pa.table(table), project.root / "t.parquet")
    settings = {"sequence_id_column": "user", "item_position_column": "at", "write_format": write_format}
    settings |= {"merge_output": merge_output, **PARQUET}
    if write_format == "pt":
        project.run(**settings)
        assert project.description("t").columns == (name,)
        return
    with pytest.raises(ConfigError, match=f'the column "{name}" cannot be stored as {write_format}, where'):
        project.run(**settings)


@pytest.mark.parametrize("column", ["sequenceId", "x"])
def test_bytes_that_are_no_text_are_refused(project: Any, column: str) -> None:
    values = pa.array([b"a", b"b", b"\xff\xfe", b"c"])
    table = {"sequenceId": [0] * 4, "itemPosition": list(range(4)), "x": ["a"] * 4} | {column: values}
    pa.parquet.write_table(pa.table(table), project.root / "t.parquet")
    what = {
        "sequenceId": "holds 1 value of bytes that are not UTF-8 text",
        "x": "holds 1 value unfit as categories",
    }[column]
    with pytest.raises(DataError, match=rf"{what}, first b'\\xff\\xfe' in row 3 of"):
        project.run(**PARQUET)


OPEN = "sequenceId,itemPosition,x\n0,0,a\n0,1,{}\n0,2,c\n0,3,d\n"


@pytest.mark.parametrize("quote", ['"', "'"])
@pytest.mark.parametrize("line_end", ["\n", "\r\n"])
def test_a_quote_that_is_not_closed_is_refused(project: Any, quote: str, line_end: str) -> None:
    settings = {**CSV, "csv": {"quote": quote}}
    text = OPEN.format(f"{quote}b {quote}{quote}")
    for written in (text, text.rstrip()):
        project.write(written.replace("\n", line_end), "t.csv")
        with pytest.raises(DataError, match=r"t\.csv ends inside a quoted field that opens in row 2"):
            project.run(**settings)
    project.write(text.replace("x\n", "x,y\n").replace("c\n", "c,\n"), "t.csv")
    with pytest.raises(DataError, match=r"t\.csv cannot be read as CSV: "):
        project.run(**settings)
    for whole in (f"{quote}b\n{quote}", f"{quote}\n{quote}", f"{quote},\n{quote}{quote}\n{quote}"):
        lines = ["sequenceId,itemPosition,x", "0,0,a", f"0,1,{whole}"]
        for written in ("\n".join(lines), "\n".join(lines) + "\n"):
            project.write(written, "t.csv")
            project.run(**settings)
    project.write("sequenceId,itemPosition,x,y\n" + f"0,0,a,1\n0,1,b,{quote}2\n0,2,c,3\n", "t.csv")
    with pytest.raises(DataError, match="ends inside a quoted field"):
        project.run(selected_columns=["x"], **settings)


def test_a_quote_that_swallows_very_much_is_refused(project: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sequifier_ray.preprocess.dialect.BLOCK_BYTES", 1000)
    rows = "".join(f"0,{i},a\n" for i in range(2, 2000))
    project.write(f'sequenceId,itemPosition,x\n0,0,a\n0,1,"b\n{rows}', "t.csv")
    with pytest.raises(
        DataError, match='a row has more than 1,000 bytes; perhaps a " before it is never closed'
    ):
        project.run(**CSV)


def test_merged_csv_keeps_line_breaks_in_ids(project: Any) -> None:
    # more than pyarrow reads at once
    line = "a line" * 20
    ids = ['a "b"', "x,y", "", *(f"{i}\n{line}\n{i}" for i in range(20_000))]
    n = len(ids)
    table = {"sequenceId": ids * 2, "itemPosition": [0] * n + [1] * n, "x": ["a", "b"] * n}
    pa.parquet.write_table(pa.table(table), project.root / "t.parquet")
    project.run(write_format="csv", merge_output=True, **PARQUET)
    description = project.description("t")
    (entry,) = read_split(str(project.root / description.split_paths[0])).shards
    shard = open_shard(str(project.root / "data"), entry, description)
    assert shard.sequence_names is not None
    assert shard.sequence_names.to_list() == sorted(ids)


@pytest.mark.parametrize("header_only", ["sequenceId,itemPosition,x", "sequenceId,itemPosition,x\n"])
def test_a_header_alone_is_a_file_without_rows(project: Any, header_only: str) -> None:
    rows = "sequenceId,itemPosition,x\n" + "".join(f"0,{i},a\n" for i in range(4))
    project.write(header_only, "in/a.csv")
    project.write(rows, "in/b.csv")
    settings = {**CSV, "preprocessing_data_path": "in"}
    assert project.run(**settings).rows == 4
    project.write("\n" + rows, "in/a.csv")
    with pytest.raises(DataError, match="occurs again 4 times"):
        project.run(**settings)


@pytest.mark.parametrize("blank", ["\ufeff", "\n", "\n\n \n"])
def test_a_file_of_blanks_is_named(project: Any, blank: str) -> None:
    project.write(blank, "in/a.csv")
    project.write("sequenceId,itemPosition,x\n0,0,a\n", "in/b.csv")
    with pytest.raises(DataError, match=r"in/a\.csv holds no text, only blanks; give a file with rows"):
        project.run(**{**CSV, "preprocessing_data_path": "in"})


@pytest.mark.parametrize("path", [".", "data/*.csv", "data/**/*.csv", "in"])
def test_results_of_earlier_runs_are_no_input(project: Any, path: str) -> None:
    rows = "sequenceId,itemPosition,x\n" + "".join(f"0,{i},{i % 3 + 3}\n" for i in range(10))
    project.write(rows, "in/t.csv" if path == "in" else "data/t.csv")
    settings = {**CSV, "preprocessing_data_path": path, "write_format": "csv", "merge_output": True}
    for _ in range(2):
        assert project.run(**settings).rows == 10
    assert any("that preprocess wrote left out" in line for line in project.lines) == (path != "in")
    if path == ".":
        project.run(**{**settings, "preprocessing_data_path": "data/t.csv", "write_format": "parquet"})
        with pytest.raises(ConfigError, match=r"holds no .parquet files besides those that preprocess wrote"):
            project.run(preprocessing_data_path=".")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"a": 3, "a": 4}', "names 'a' more than once; every value has one id"),
        ('{"a": 3, "b": 1000000000000}', "the id of 'b' is 1000000000000; ids are below 2,000,000,000"),
        ('{"a": 3, "b": 9300000000000000000000}', "the id of 'b' is 9300000000000000000000; ids are below"),
        ('{"a": 3.0}', "the id of 'a' is 3.0; ids are distinct integers from 3"),
        ('{"a": {"b": 3}}', "ids are distinct integers from 3"),
        ("[1]", "must hold an object of value: id pairs"),
        ("{}", "must hold an object of value: id pairs"),
    ],
)
def test_maps_that_are_none(project: Any, text: str, message: str) -> None:
    write_csv(project, ["a", "b"] * 3)
    project.write(text, "configs/id_maps/x.json")
    with pytest.raises(DataError, match=message):
        project.run(use_precomputed_maps=["x"], **CSV)


def test_a_null_character_in_a_path_is_told(project: Any) -> None:
    write_csv(project, ["a", "b"])
    with pytest.raises(ConfigError, match="holds a null character, which no name of a file may"):
        project.run(project_root="\0", **CSV)


def test_too_large_for_float64_is_not_sent_to_float64(project: Any) -> None:
    write_parquet(project, x=[1e308, -1e308] * 5)
    remedies = {"Float32": ", or set column_data_types to Float64 for it", "Float64": ""}
    for dtype, remedy in remedies.items():
        with pytest.raises(DataError) as caught:
            project.run(column_data_types={"x": dtype}, **PARQUET)
        assert str(caught.value).endswith(f"; rescale the column{remedy}")
