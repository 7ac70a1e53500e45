"""Inputs that people have: where they lie, how they are written, and what their columns hold."""

from __future__ import annotations

import gzip
import uuid
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.parquet
import pytest

from sequifier_ray.data.metadata import read_split
from sequifier_ray.data.shards import open_shard
from sequifier_ray.errors import ConfigError, DataError


def names_of(project: Any, split: int = 0, name: str = "events") -> list[str]:
    """The text ids of a split, in the order of its shards."""
    description = project.description(name)
    path = project.root / description.split_paths[split]
    folder = path.parent if description.merge_output else path
    names: list[str] = []
    for entry in read_split(str(path)).shards:
        shard = open_shard(str(folder), entry, description)
        assert shard.sequence_names is not None
        names += shard.sequence_names.to_list()
    return names


def published(project: Any, name: str) -> dict[str, bytes]:
    """Everything that was published under a name, by file name without it."""
    files = {k: v for k, v in project.snapshot().items() if f"{name}-split" in k and k.startswith("data")}
    return {
        k.replace(f"{name}-split", "*-split"): v for k, v in files.items() if not k.endswith("metadata.json")
    }


@pytest.fixture
def expected(project: Any, events: Any) -> dict[str, bytes]:
    """What one Parquet file with all rows gives."""
    project.write(events([12, 9, 11, 4]), "expected.parquet")
    project.run(preprocessing_data_path="expected.parquet")
    return published(project, "expected")


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("in", "in"),
        ("in/", "in"),
        ("in/*.parquet", "in"),
        ("in/**/*.parquet", "in"),
        ("in/**/part-[ab].parquet", "in"),
        ("file://{root}/in", "in"),
        ("{root}/in", "in"),
    ],
)
def test_folders_patterns_and_uris(
    project: Any, events: Any, expected: dict[str, bytes], path: str, name: str
) -> None:
    table = events([12, 9, 11, 4]).sample(fraction=1.0, shuffle=True, seed=1)
    is_flat = path == "in/*.parquet"
    project.write(table[:10], "in/part-a.parquet")
    project.write(table[10:], "in/part-b.parquet" if is_flat else "in/2024/january/part-b.parquet")
    project.write("no data", "in/_SUCCESS")
    project.write("no data", "in/.hidden.parquet")
    project.write("no data", "in/_temporary/0/part-x.parquet")
    project.write("about", "in/README.md")
    project.run(preprocessing_data_path=path.format(root=project.root))
    assert published(project, name) == expected
    if "*" not in path:
        warning = f"warning: 1 file of other kinds in {project.root}/in (.md) left out, such as README.md"
        assert [line.replace("file://", "") for line in project.lines if "other kinds" in line] == [warning]


def test_a_pattern_without_a_match(project: Any) -> None:
    with pytest.raises(
        ConfigError, match=r"preprocessing_data_path: no file matches .*/in/\*\.parquet; check"
    ):
        project.run(preprocessing_data_path="in/*.parquet")


@pytest.mark.parametrize(
    ("text", "settings"),
    [
        ("{csv}", {}),
        ("\ufeff{csv}", {}),
        ("{crlf}", {}),
        ("{semicolons}", {}),
        ("{tabs}", {}),
        ("{bars}", {}),
        ("{semicolons}", {"csv": {"separator": ";"}}),
        ("{quoted}", {}),
        ("{single}", {"csv": {"quote": "'"}}),
        ("{comma}", {"csv": {"decimal": ","}}),
        ("{blanks}", {}),
    ],
)
def test_csv_dialects(
    project: Any, events: Any, expected: dict[str, bytes], text: str, settings: dict[str, Any]
) -> None:
    table = events([12, 9, 11, 4])
    csv = table.write_csv()
    written = {
        "csv": csv,
        "crlf": csv.replace("\n", "\r\n"),
        "semicolons": table.write_csv(separator=";"),
        "tabs": table.write_csv(separator="\t"),
        "bars": table.write_csv(separator="|"),
        "quoted": table.write_csv(quote_style="always"),
        "single": table.write_csv(quote_style="always", quote_char="'"),
        "comma": table.write_csv(separator=";").replace(".", ","),
        # blanks around numbers do not matter; in text they are part of the value
        "blanks": csv.replace("\n0,", "\n 0 , "),
    }
    project.write(text.format(**written), "t.csv")
    project.run(preprocessing_data_path="t.csv", read_format="csv", **settings)
    assert published(project, "t") == expected


@pytest.mark.parametrize("ending", ["gz", "zst", "bz2"])
def test_compressed_csv(project: Any, events: Any, expected: dict[str, bytes], ending: str) -> None:
    text = events([12, 9, 11, 4]).write_csv().encode()
    kind = {"gz": "gzip", "zst": "zstd", "bz2": "bz2"}[ending]
    with pa.CompressedOutputStream(pa.OSFile(str(project.root / f"t.csv.{ending}"), "wb"), kind) as stream:
        stream.write(text)
    project.run(preprocessing_data_path=f"t.csv.{ending}", read_format="csv")
    assert published(project, "t") == expected


def test_a_damaged_gzip_file(project: Any, events: Any) -> None:
    whole = gzip.compress(events([12, 9]).write_csv().encode())
    project.write(whole[: len(whole) // 2], "t.csv.gz")
    with pytest.raises(DataError, match=r"t\.csv\.gz cannot be unpacked as gzip: "):
        project.run(preprocessing_data_path="t.csv.gz", read_format="csv")


@pytest.mark.parametrize("encoding", ["latin-1", "utf-16"])
def test_encodings(project: Any, encoding: str) -> None:
    rows = [f"{s},{p},{['Zürich', 'Genève'][p % 2]}" for s in range(2) for p in range(5)]
    project.write("\n".join(["sequenceId,itemPosition,Stadt Größe", *rows]).encode(encoding), "t.csv")
    with pytest.raises((ConfigError, DataError), match=r"encoding: (…|utf-16)}"):
        project.run(preprocessing_data_path="t.csv", read_format="csv")
    project.run(preprocessing_data_path="t.csv", read_format="csv", csv={"encoding": encoding})
    assert {"Zürich", "Genève"} <= set(project.description("t").id_maps["Stadt Größe"])


def test_a_header_that_repeats_a_name(project: Any) -> None:
    project.write("sequenceId,itemPosition,x,x\n0,0,1,2\n", "t.csv")
    with pytest.raises(DataError, match=r"t\.csv: the header names \['x'\] more than once"):
        project.run(preprocessing_data_path="t.csv", read_format="csv")


def test_columns_without_a_name(project: Any, events: Any, expected: dict[str, bytes]) -> None:
    lines = events([12, 9, 11, 4]).write_csv().splitlines()
    settings = {"preprocessing_data_path": "t.csv", "read_format": "csv"}
    project.write("".join(f"{line},\n" for line in lines), "t.csv")
    project.run(**settings)
    assert published(project, "t") == expected
    project.write("\n".join([f",{lines[0]}", *(f"{i},{line}" for i, line in enumerate(lines[1:]))]), "t.csv")
    with pytest.raises(
        DataError, match="the input has a column without a name that holds values, such as a row"
    ):
        project.run(**settings)
    project.run(selected_columns=["kind", "level", "size"], **settings)
    assert published(project, "t") == expected


def test_two_byte_text_without_a_mark(project: Any, events: Any) -> None:
    project.write(events([12]).write_csv().encode("utf-16-le"), "t.csv")
    with pytest.raises(
        DataError, match=r"t\.csv is not text in utf-8: its header holds null characters; set csv:"
    ):
        project.run(preprocessing_data_path="t.csv", read_format="csv")
    project.run(preprocessing_data_path="t.csv", read_format="csv", csv={"encoding": "utf-16-le"})


@pytest.mark.parametrize("folder", ["my dir", "50% off", "my%20dir"])
def test_addresses_with_odd_characters(project: Any, events: Any, folder: str) -> None:
    from urllib.parse import quote

    project.write(events([12, 9]), f"{folder}/t 1.parquet")
    address = f"file://{quote(str(project.root / folder))}"
    assert project.run(preprocessing_data_path=address).rows == 21
    assert project.run(preprocessing_data_path=f"{folder}/t 1.parquet").rows == 21


def test_quoted_line_breaks_and_quotes(project: Any) -> None:
    values = ["two\nlines", 'a "quoted" word', "semi;colon, comma", "", "NA", " x "]
    quoted = ['"' + value.replace('"', '""') + '"' for value in values]
    rows = [f"{s},{p},{value}" for s in range(2) for p, value in enumerate(quoted)]
    project.write("\n".join(["sequenceId,itemPosition,note", *rows]), "t.csv")
    project.run(preprocessing_data_path="t.csv", read_format="csv", split_ratios=[1.0])
    assert set(project.description("t").id_maps["note"]) == {*values, "[unknown]", "[other]"}


def test_missing_values_of_csv(project: Any) -> None:
    lines = ["sequenceId,itemPosition,real,whole,flag,country,empty"]
    marks = ["NA", "null", "", "N/A", "-"]
    lines += [f"0,{p},{p}.5,{p},{p % 2 == 0},{'NA' if p % 2 else 'DE'},{'x' if p else ''}" for p in range(10)]
    lines += [f"1,{p},{mark},{mark},{mark},NA," for p, mark in enumerate(marks)]
    project.write("\n".join(lines), "t.csv")
    settings = {"preprocessing_data_path": "t.csv", "read_format": "csv", "split_ratios": [1.0]}
    project.run(missing_real="mean", **settings)
    description = project.description("t")
    assert description.real_columns == ("real",)
    assert list(description.id_maps["whole"]) == [str(i) for i in range(10)]
    assert description.id_maps["flag"] == {"0": 3, "1": 4}
    # a text column: NA is Namibia, only the empty field is missing
    assert set(description.id_maps["country"]) == {"NA", "DE", "[unknown]", "[other]"}
    stored = project.events(0, "t").filter(pl.col("sequenceId") == 1)
    assert stored["whole"].to_list() == stored["flag"].to_list() == [0] * 5
    assert stored["real"].to_list() == [0.0] * 5
    assert stored["country"].to_list() == [description.id_maps["country"]["NA"]] * 5
    assert stored["empty"].to_list() == [0] * 5
    project.run(
        missing_real="mean", csv={"null_values": ["", "NA"]}, selected_columns=["country"], **settings
    )
    assert set(project.description("t").id_maps["country"]) == {"DE", "[unknown]", "[other]"}


def test_a_column_that_is_almost_numbers_is_told(project: Any) -> None:
    lines = ["sequenceId,itemPosition,x"] + [f"0,{p},{'abc' if p == 7 else p}" for p in range(10)]
    project.write("\n".join(lines), "t.csv")
    project.run(preprocessing_data_path="t.csv", read_format="csv")
    warning = (
        'warning: column "x" is taken as text: 9 of its 10 values are numbers, but row 8 of '
        f"{project.root}/t.csv holds 'abc'; list it in csv.null_values, or mend it, if the column is real"
    )
    assert warning in project.lines
    assert "categorical: x (text)" in project.lines


def test_codes_with_leading_zeros_are_text(project: Any) -> None:
    lines = ["sequenceId,itemPosition,zip"] + [
        f"0,{p},{zip_code}" for p, zip_code in enumerate(["007", "7"] * 5)
    ]
    project.write("\n".join(lines), "t.csv")
    project.run(preprocessing_data_path="t.csv", read_format="csv")
    assert {"007", "7"} < set(project.description("t").id_maps["zip"])


def test_parquet_types(project: Any) -> None:
    n = 12
    table = pa.table(
        {
            "sequenceId": pa.array(np.repeat([0, 1], 6).astype(np.uint16)),
            "itemPosition": pa.array(np.tile(np.arange(6), 2).astype(np.int8)),
            "flag": pa.array([i % 2 == 0 for i in range(n)]),
            "price": pa.array([Decimal(i) / 4 for i in range(n)]),
            "tiny": pa.array(np.arange(n, dtype=np.int8)),
            "unsigned": pa.array(np.arange(n, dtype=np.uint64)),
            "word": pa.array(["a", "b", None, "c"] * 3).dictionary_encode(),
            "large": pa.array(["a", "b", "c", "d"] * 3, pa.large_string()),
            "bytes": pa.array([b"a", b"b", b"c", b"d"] * 3),
            "half": pa.array(np.arange(n).astype(np.float16)),
            "whole": pa.array([1, 2, 3, 4] * 3).dictionary_encode(),
        }
    )
    pa.parquet.write_table(table, project.root / "t.parquet")
    project.run(preprocessing_data_path="t.parquet")
    description = project.description("t")
    assert description.real_columns == ("price", "half")
    assert list(description.id_maps["unsigned"]) == [str(i) for i in range(5)] + [
        str(i) for i in range(6, 11)
    ] or (len(description.id_maps["unsigned"]) == 8)
    assert description.id_maps["flag"] == {"0": 3, "1": 4}
    assert set(description.id_maps["bytes"]) == {"a", "b", "c", "d", "[unknown]", "[other]"}
    assert set(description.id_maps["whole"]) == {"1", "2", "3", "4"}
    assert description.id_maps["large"] == description.id_maps["bytes"]


def test_integers_beyond_64_bits_are_refused_as_categories(project: Any) -> None:
    table = pl.DataFrame(
        {"sequenceId": [0, 0], "itemPosition": [0, 1], "big": pl.Series([1, 2**63], dtype=pl.UInt64)}
    )
    project.write(table)
    with pytest.raises(
        DataError, match=r'categorical column "big" holds 1 value unfit as categories, first 92233'
    ):
        project.run(split_ratios=[1.0])


@pytest.mark.parametrize(
    ("write_format", "merge_output"), [("pt", False), ("parquet", False), ("parquet", True), ("csv", True)]
)
@pytest.mark.parametrize("kind", ["text", "uuid", "uuid text", "unsigned"])
def test_ids_are_exact(project: Any, events: Any, kind: str, write_format: str, merge_output: bool) -> None:
    lengths = [6, 7, 5, 9]
    column = {
        "text": pl.Series(["b/é", "a", "10", "9"]),
        "uuid": pl.Series([uuid.UUID(int=i * 2**100 + 7).bytes for i in range(4)]),
        "uuid text": pl.Series([str(uuid.UUID(int=i * 2**100 + 7)) for i in range(4)]),
        "unsigned": pl.Series([2**64 - 1 - i for i in range(4)], dtype=pl.UInt64),
    }[kind]
    table = events(lengths)
    table = table.with_columns(user=column.gather(table["sequenceId"])).drop("sequenceId")
    arrow = table.to_arrow()
    if kind == "uuid":
        place = arrow.schema.get_field_index("user")
        arrow = arrow.set_column(place, "user", arrow["user"].cast(pa.binary(16)))
    pa.parquet.write_table(arrow, project.root / "events.parquet")
    project.run(
        sequence_id_column="user", split_ratios=[1.0], write_format=write_format, merge_output=merge_output
    )
    shown = [str(uuid.UUID(bytes=value)) for value in column] if kind == "uuid" else [str(v) for v in column]
    assert names_of(project) == sorted(shown)
    length_of = dict(zip(shown, lengths, strict=True))
    positions = [position for name in sorted(shown) for position in range(length_of[name])]
    assert project.positions(0) == positions
    description = project.description()
    assert (description.sequence_id_column, description.sequence_id_type) == ("user", "String")


def test_64_bit_ids_and_positions_are_exact(project: Any, events: Any) -> None:
    table = events([6, 7]).with_columns(pl.col("sequenceId") + 2**62 + 1, pl.col("itemPosition") + 2**60 + 1)
    project.write(table, "t.csv")
    project.run(preprocessing_data_path="t.csv", read_format="csv", split_ratios=[1.0])
    stored = project.events(0, "t")
    assert stored["sequenceId"].to_list() == table["sequenceId"].to_list()
    assert stored["itemPosition"].to_list() == table["itemPosition"].to_list()


def test_a_text_id_in_one_file_makes_all_ids_text(project: Any, events: Any) -> None:
    table = events([6, 7, 8])
    project.write(table[:13], "in/a.csv")
    project.write(table[13:].with_columns(sequenceId=pl.lit("x")), "in/b.csv")
    project.run(preprocessing_data_path="in", read_format="csv")
    assert names_of(project, name="in") == ["0", "1", "x"]


@pytest.mark.parametrize("times", [False, True])
@pytest.mark.parametrize("ending", ["parquet", "csv"])
@pytest.mark.parametrize(("write_format", "merge_output"), [("pt", False), ("parquet", True), ("csv", True)])
def test_positions_with_gaps_keep_their_values(
    project: Any, events: Any, times: bool, ending: str, write_format: str, merge_output: bool
) -> None:
    table = events([9, 12]).with_columns(itemPosition=pl.col("itemPosition") ** 2 * 1_000_003 - 5)
    wanted = table["itemPosition"].to_list()
    if times:
        table = table.with_columns(pl.from_epoch("itemPosition", time_unit="us").dt.replace_time_zone("UTC"))
    shuffled = table.sample(fraction=1.0, shuffle=True, seed=3).rename({"itemPosition": "at"})
    if ending == "csv" and times:
        shuffled = shuffled.with_columns(pl.col("at").dt.strftime("%Y-%m-%dT%H:%M:%S%.6fZ"))
    project.write(shuffled, f"events.{ending}")
    settings = {"preprocessing_data_path": f"events.{ending}", "read_format": ending, "split_ratios": [1.0]}
    settings |= {"item_position_column": "at", "write_format": write_format, "merge_output": merge_output}
    project.run(item_position="order", **settings)
    assert project.positions(0) == wanted
    assert project.description().item_position_type == ("Datetime" if times else "Int64")
    with pytest.raises(DataError, match=r"(has 19 gaps|other than 64-bit integers)"):
        project.run(**settings)


def test_one_sequence_over_many_files(project: Any, events: Any) -> None:
    table = events([700]).sample(fraction=1.0, shuffle=True, seed=9)
    for i in range(7):
        project.write(table[i * 100 : (i + 1) * 100], f"in/{i}.parquet")
    project.run(preprocessing_data_path="in", split_ratios=[1.0])
    assert project.events(0, "in")["itemPosition"].to_list() == list(range(700))


@pytest.mark.parametrize(("policy", "expected_fill"), [("mean", 0.0), ("zero", "zero")])
def test_missing_reals_are_filled_and_marked(
    project: Any, events: Any, policy: str, expected_fill: Any
) -> None:
    table = events([20, 20])
    is_missing = pl.int_range(pl.len()) % 5 == 2
    size = (
        pl.when(is_missing)
        .then(pl.when(pl.int_range(pl.len()) % 2 == 0).then(float("nan")))
        .otherwise("size")
    )
    project.write(table.with_columns(size=size))
    project.run(missing_real=policy, missing_indicator=True, split_ratios=[1.0])
    description = project.description()
    present = table.filter(~is_missing)["size"]
    assert description.selected_columns_statistics["size"].mean == pytest.approx(present.mean())
    assert description.selected_columns_statistics["size"].std == pytest.approx(present.std())
    assert description.columns == ("kind", "level", "size", "size_is_missing")
    stored = project.events(0)
    missing = table.select(is_missing).to_series()
    assert stored["size_is_missing"].to_list() == [float(m) for m in missing]
    fill = -present.mean() / present.std() if expected_fill == "zero" else expected_fill
    np.testing.assert_allclose(stored["size"].filter(missing), fill, rtol=1e-5, atol=1e-7)


def test_mask_column(project: Any, events: Any) -> None:
    table = events([10, 10])
    project.write(table)
    project.run()
    project.write(table.with_columns(hidden=pl.col("itemPosition") == 3))
    project.run(mask_column="hidden", metadata_config_path="configs/metadata_configs/events.json")
    stored = project.events(0)
    masked = stored["itemPosition"] == 3
    assert set(stored.filter(masked)["kind"]) == set(stored.filter(masked)["level"]) == {2}
    assert set(stored.filter(masked)["size"]) == {0.0}
    assert 2 not in set(stored.filter(~masked)["kind"])
    assert "hidden" not in project.description().columns


@pytest.mark.parametrize(("write_format", "merge_output"), [("pt", False), ("parquet", False), ("csv", True)])
def test_curriculum_column_is_stored_as_it_is(
    project: Any, events: Any, write_format: str, merge_output: bool
) -> None:
    table = events([10, 10]).with_columns(difficulty=pl.col("itemPosition") * 10**10 - 7)
    project.write(table)
    project.run(
        curriculum_column="difficulty",
        split_ratios=[1.0],
        write_format=write_format,
        merge_output=merge_output,
    )
    assert project.events(0)["difficulty"].to_list() == table["difficulty"].to_list()
    assert project.description().columns == ("kind", "level", "size")


def test_dates_as_split_column(project: Any, events: Any) -> None:
    table = events([20, 20]).with_columns(at=pl.date(2024, 1, 1) + pl.duration(days=pl.col("itemPosition")))
    project.write(table)
    cutoff = {"split_method": "value_cutoff", "split_ratios": None, "split_column": "at"}
    project.run(split_values=["2024-01-11"], **cutoff)
    assert project.events(0)["itemPosition"].to_list() == [*range(10), *range(10)]


@pytest.mark.parametrize("column", ["itemPosition", "sequenceId"])
def test_key_columns_as_split_column(project: Any, events: Any, column: str) -> None:
    project.write(events([20, 20]))
    cutoff = {"split_method": "value_cutoff", "split_ratios": None, "split_column": column}
    project.run(split_values=[10 if column == "itemPosition" else 1], **cutoff)
    assert project.events(0)["itemPosition"].to_list() == (
        [*range(10), *range(10)] if column == "itemPosition" else [*range(20)]
    )


def test_configs_and_data_on_different_file_systems(project: Any, events: Any) -> None:
    elsewhere = Path("/dev/shm") / f"sequifier-ray-test-{uuid.uuid4().hex}"
    if not elsewhere.parent.exists():
        pytest.skip("no second file system at /dev/shm")
    elsewhere.mkdir()
    try:
        (project.root / "data").symlink_to(elsewhere)
        project.write(events([10, 10]))
        project.run()
        first = project.description()
        project.run()
        assert project.description() == first
    finally:
        for path in sorted(elsewhere.rglob("*"), reverse=True):
            path.rmdir() if path.is_dir() else path.unlink()
        elsewhere.rmdir()


def test_files_of_the_user_with_such_names_stay(project: Any, events: Any) -> None:
    project.write(events([10, 10]))
    project.write("a,b\n", "data/events-split7.csv")
    project.run()
    project.run()
    assert (project.root / "data" / "events-split7.csv").read_text() == "a,b\n"
    project.write("mine", "data/events-split1/notes.txt")
    (project.root / "data" / "events-split1" / "metadata.json").unlink()
    with pytest.raises(
        DataError, match=r"data/events-split1 is in the way of the results and was not written"
    ):
        project.run()
    assert (project.root / "data" / "events-split1" / "notes.txt").read_text() == "mine"
