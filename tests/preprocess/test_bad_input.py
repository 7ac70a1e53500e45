"""Bad input ends with one clear message, and what an earlier run published stays byte for byte."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import polars as pl
import pytest

from sequifier_ray.errors import ConfigError, DataError

NAMES = ["sequenceId", "itemPosition", "kind", "level", "size"]


def with_value(table: pl.DataFrame, column: str, row: int, value: object) -> pl.DataFrame:
    values = table[column].to_list()
    values[row] = value
    return table.with_columns(pl.Series(column, values, strict=False))


def expect(
    project: Any, events: Any, table: Any, error: type[Exception], text: str, name: str = "", **settings: Any
) -> None:
    """A good run, then a run on the bad table: it fails with the text and nothing published changes."""
    good = project.write(events([12, 9, 11]))
    project.run()
    before = project.snapshot()
    if table is None:
        good.unlink()
    else:
        name = name or good.name
        project.write(table, name)
        settings = {"preprocessing_data_path": name, "read_format": name.rsplit(".", 1)[-1]} | settings
    with pytest.raises(error) as caught:
        project.run(**settings)
    assert text in str(caught.value)
    assert "\n" not in str(caught.value)
    assert caught.value.exit_code in (2, 3)
    assert project.snapshot() == before


def test_missing_file(project: Any, events: Any) -> None:
    expect(
        project,
        events,
        None,
        ConfigError,
        "events.parquet does not exist; name a file, a folder or a pattern",
    )


def test_empty_file(project: Any, events: Any) -> None:
    expect(project, events, b"", DataError, "events.parquet is empty (0 bytes)")


def test_header_only(project: Any, events: Any) -> None:
    expect(project, events, ",".join(NAMES) + "\n", DataError, "no rows; there is nothing", "events.csv")


def test_table_without_rows(project: Any, events: Any) -> None:
    expect(project, events, events([3]).clear(), DataError, "no rows; there is nothing to preprocess")


def test_csv_read_as_parquet(project: Any, events: Any) -> None:
    text = "is not a Parquet file, but read_format is parquet; set read_format: csv"
    expect(project, events, b"sequenceId,itemPosition\n0,0\n", ConfigError, text)


def test_parquet_read_as_csv(project: Any, events: Any) -> None:
    text = "events.parquet is a Parquet file, but read_format is csv; set read_format: parquet"
    expect(project, events, events([12]), ConfigError, text, read_format="csv")


def test_truncated_parquet(project: Any, events: Any) -> None:
    expect(project, events, b"PAR1abcdefgh", DataError, "events.parquet cannot be read as Parquet: ")


def test_csv_with_ragged_rows(project: Any, events: Any) -> None:
    table = "sequenceId,itemPosition,kind\n0,0,a\n0,1,b,c\n"
    expect(project, events, table, DataError, "events.csv cannot be read as CSV: ", "events.csv")


def test_missing_sequence_id(project: Any, events: Any) -> None:
    table = events([12]).rename({"sequenceId": "sequenceid"})
    text = 'the input has no column "sequenceId" (did you mean "sequenceid"?)'
    expect(project, events, table, DataError, text)


def test_missing_item_position(project: Any, events: Any) -> None:
    table = events([12]).drop("itemPosition")
    expect(project, events, table, DataError, 'the input has no column "itemPosition"')
    text = "item_position_column names them, in preprocess.yaml or with --set item_position_column=NAME"
    expect(project, events, table, DataError, text)


def test_null_id(project: Any, events: Any) -> None:
    table = with_value(events([12]), "sequenceId", 4, None)
    text = 'column "sequenceId" holds 1 null value, first in row 5 of '
    expect(project, events, table, DataError, text)


def test_ids_and_positions_that_are_floats(project: Any, events: Any) -> None:
    table = events([12]).with_columns(pl.col("sequenceId").cast(pl.Float32))
    text = 'column "sequenceId" holds 12 values of type Float32, first 0.0 in row 1 of '
    expect(project, events, table, DataError, text)
    table = events([12]).with_columns(pl.col("itemPosition").cast(pl.Float32))
    text = 'column "itemPosition" holds 12 values other than 64-bit integers (it is of type Float32), first '
    "0.0 in"
    expect(project, events, table, DataError, text)


def test_positions_that_are_text(project: Any, events: Any) -> None:
    table = "sequenceId,itemPosition,kind\n0,0,a\n0,x7,b\n"
    text = "column \"itemPosition\" holds 1 value other than 64-bit integers, first 'x7' in row 2 of "
    expect(project, events, table, DataError, text, "events.csv")
    expect(project, events, table, DataError, "or with item_position: order any numbers", "events.csv")


def test_duplicates(project: Any, events: Any) -> None:
    table = pl.concat([events([3, 12]), events([3, 12])[[4, 9]]])
    text = "the (sequenceId, itemPosition) of another row occurs again 2 times, first (1, 1)"
    expect(project, events, table, DataError, text)


def test_gap_in_positions(project: Any, events: Any) -> None:
    table = events([3, 12]).filter(pl.col("itemPosition") != 6)
    text = "itemPosition has 1 gap, first in sequenceId 1 between 5 and 7; positions must rise by exactly one"
    expect(project, events, table, DataError, text)


@pytest.mark.parametrize("value", [float("nan"), None])
def test_missing_reals_are_counted_over_all_files(project: Any, events: Any, value: float | None) -> None:
    project.write(events([3, 12])[:8], "many/a.parquet")
    table = with_value(with_value(events([3, 12])[8:], "size", 1, value), "size", 4, value)
    project.write(table, "many/b.parquet")
    with pytest.raises(DataError) as caught:
        project.run(preprocessing_data_path="many")
    assert str(caught.value) == (
        f'real column "size" holds 2 missing values (null or NaN), first in row 2 of '
        f"{project.root}/many/b.parquet "
        "(sequenceId 1, itemPosition 6); set missing_real: mean or zero, or fill or drop these rows"
    )


@pytest.mark.parametrize("missing_real", ["error", "mean"])
def test_infinite_reals(project: Any, events: Any, missing_real: str) -> None:
    infinite = float("inf")
    table = with_value(with_value(events([3, 12]), "size", 7, infinite), "size", 11, -infinite)
    text = 'real column "size" holds 2 infinite values, first inf in row 8 of '
    expect(project, events, table, DataError, text, missing_real=missing_real)


@pytest.mark.parametrize("text", ["NaN", "", "NA", "null", "N/A"])
def test_missing_reals_in_csv(project: Any, events: Any, text: str) -> None:
    table = f"sequenceId,itemPosition,size\n0,0,1.5\n0,1,{text}\n"
    expected = 'real column "size" holds 1 missing value (null or NaN), first in row 2 of '
    expect(project, events, table, DataError, expected, "events.csv")


def test_text_in_real_column(project: Any, events: Any) -> None:
    table = "sequenceId,itemPosition,size\n0,0,1.5\n0,1,high\n"
    text = "real column \"size\" holds 1 value other than numbers, first 'high' in row 2 of "
    expect(project, events, table, DataError, text, "events.csv", real_columns=["size"])


@pytest.mark.parametrize("column", ["kind", "size"])
def test_column_that_is_all_null(project: Any, events: Any, column: str) -> None:
    table = events([12])
    table = table.with_columns(pl.lit(None, table.schema[column]).alias(column))
    text = {"kind": 'column "kind" has no value', "size": 'real column "size" holds 12 missing values'}[
        column
    ]
    expect(project, events, table, DataError, text)
    table = table.with_columns(pl.lit(None, pl.Null).alias(column))
    expect(project, events, table, DataError, f'column "{column}" is all null')


def test_blank_column_in_csv(project: Any, events: Any) -> None:
    table = "sequenceId,itemPosition,size\n0,0,\n0,1,\n"
    expect(project, events, table, DataError, 'column "size" is all null', "events.csv")


def test_category_without_value_in_split_0(project: Any, events: Any) -> None:
    table = events([10]).with_columns(
        kind=pl.when(pl.col("itemPosition") < 8).then(None).otherwise(pl.lit("a"))
    )
    expect(project, events, table, DataError, 'column "kind" has no value in split 0')


def test_selected_column_that_does_not_exist(project: Any, events: Any) -> None:
    text = 'selected_columns: "knid" is not a column of the input (did you mean "kind"?)'
    expect(project, events, events([12]), ConfigError, text, selected_columns=["knid"])


def test_column_of_a_type_without_role(project: Any, events: Any) -> None:
    table = events([12]).with_columns(at=pl.date(2024, 1, 1))
    text = 'column "at" is of type timestamp, which can be neither categorical nor real'
    expect(project, events, table, DataError, text)


def test_real_column_to_be_stored_as_integer(project: Any, events: Any) -> None:
    types = {"kind": "Int64", "level": "Int64", "size": "Int64"}
    text = "column_data_types.size: found Int64 for a column that real_columns names; allowed: Float32 or "
    "Float64"
    expect(project, events, events([12]), ConfigError, text, column_data_types=types, real_columns=["size"])
    text = 'categorical column "size" holds 11 values unfit as categories, first 3.52'
    expect(project, events, events([12]), DataError, text, column_data_types=types)


def test_column_types_that_leave_a_column_out(project: Any, events: Any) -> None:
    text = "column_data_types: lacks ['size']; if set, it names every processed column"
    types = {"kind": "Int64", "level": "Int64"}
    expect(project, events, events([12]), ConfigError, text, column_data_types=types)


def test_files_with_different_columns(project: Any, events: Any) -> None:
    project.write(events([12]), "many/a.parquet")
    project.write(events([3]).drop("size").with_columns(weight=1.0), "many/b.parquet")
    settings = {"preprocessing_data_path": "many", "read_format": "parquet"}
    text = "have different columns: "
    expect(project, events, events([3]), DataError, text, "good.parquet", **settings)
    with pytest.raises(DataError, match=r"b.parquet lacks \['size'\] and has \['weight'\] besides"):
        project.run(**settings)


def test_files_with_different_types(project: Any, events: Any) -> None:
    project.write(events([12]), "many/a.parquet")
    project.write(events([3]).with_columns(kind=pl.lit(3)), "many/b.parquet")
    settings = {"preprocessing_data_path": "many", "read_format": "parquet"}
    with pytest.raises(DataError, match=r'column "kind" is text in \S+a.parquet and integer in \S+b.parquet'):
        project.run(**settings)


def test_folder_without_files_of_the_format(project: Any, events: Any) -> None:
    project.write(events([12]), "many/a.parquet")
    text = "many holds no .csv files (found .parquet); read_format is csv, allowed are csv and parquet"
    with pytest.raises(ConfigError) as caught:
        project.run(preprocessing_data_path="many", read_format="csv")
    assert text in str(caught.value)


def test_input_in_the_folder_of_the_results(project: Any, events: Any) -> None:
    project.write(events([12]), "data/a.parquet")
    with pytest.raises(ConfigError, match="preprocessing_data_path: data is the folder that results"):
        project.run(preprocessing_data_path="data")


def test_blank_ids_in_csv(project: Any, events: Any) -> None:
    table = "sequenceId,itemPosition,kind\n,0,a\n,1,b\n"
    text = 'column "sequenceId" holds 2 null values, first in row 1'
    expect(project, events, table, DataError, text, "events.csv")


def test_cutoff_column_that_decreases(project: Any, events: Any) -> None:
    text = 'split_column "level" decreases 2 times within a sequence, first in sequenceId 0 at itemPosition 4'
    cutoff = {"split_method": "value_cutoff", "split_ratios": None, "split_column": "level"}
    expect(project, events, events([12]), DataError, text, split_values=[2], **cutoff)


def test_cutoff_of_another_type(project: Any, events: Any) -> None:
    cutoff = {"split_method": "value_cutoff", "split_ratios": None, "split_column": "level"}
    text = 'split_column "level" holds 12 values other than ISO dates or timestamps (it is of type Int64), '
    "first 0 in row 1"
    expect(project, events, events([12]), DataError, text, split_values=["2024-01-01"], **cutoff)
    cutoff["split_column"] = "kind"
    text = "split_column \"kind\" holds 12 values other than ISO dates or timestamps, first 'k0' in row 1 of "
    expect(project, events, events([12]), DataError, text, split_values=["2024-01-01"], **cutoff)
    text = "column \"kind\" holds 12 values other than 64-bit integers, first 'k0' in row 1 of "
    expect(project, events, events([12]), DataError, text, split_values=[1], **cutoff)


def test_split_without_events(project: Any, events: Any) -> None:
    text = "split 0 of 2 has no events: the within_sequence split of 2 sequences (longest: 1 events)"
    expect(project, events, events([1, 1]), DataError, text, split_ratios=[0.5, 0.5])


def test_precomputed_map_that_is_missing_or_wrong(project: Any, events: Any) -> None:
    project.write(events([12]))
    with pytest.raises(DataError, match=r'use_precomputed_maps: "kind" needs the file .*id_maps/kind.json'):
        project.run(use_precomputed_maps=["kind"])
    project.write('{"k0": 3, "k1": 3}', "configs/id_maps/kind.json")
    with pytest.raises(DataError, match="the id of 'k1' is 3; ids are distinct integers from 3"):
        project.run(use_precomputed_maps=["kind"])
    project.write('{"k0": ', "configs/id_maps/kind.json")
    with pytest.raises(DataError, match=r"kind\.json is not valid JSON"):
        project.run(use_precomputed_maps=["kind"])


def test_reused_metadata_without_a_column(project: Any, events: Any) -> None:
    project.write(events([12]), "old.parquet")
    project.run(preprocessing_data_path="old.parquet", selected_columns=["level", "size"])
    project.write(events([12]))
    with pytest.raises(ConfigError, match=r'old\.json does not know the categorical column "kind"'):
        project.run(metadata_config_path="configs/metadata_configs/old.json")


FULL_DISK = """
import resource, sys
from sequifier_ray.config.load import load_preprocess
from sequifier_ray.errors import DataError
from sequifier_ray.preprocess.pipeline import preprocess
config = load_preprocess(sys.argv[1])
resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000))
try:
    preprocess(config, print)
except DataError as error:
    print("refused:", error)
"""


@pytest.mark.parametrize("write_format", ["pt", "parquet"])
def test_full_disk(project: Any, events: Any, write_format: str) -> None:
    project.write(events([12, 9, 11]))
    project.run(write_format=write_format)
    before = project.snapshot()
    project.write(events([3000] * 9).with_columns(size=pl.int_range(27_000).hash(1) / 2.0**64))
    done = subprocess.run(
        [sys.executable, "-c", FULL_DISK, str(project.root / "preprocess.yaml")],
        capture_output=True,
        text=True,
        check=False,
    )
    assert "refused: cannot write " in done.stdout, done.stdout + done.stderr
    assert "Results of earlier runs are as they were" in done.stdout
    assert project.snapshot() == before
