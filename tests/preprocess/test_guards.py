"""Two runs at once, names that look like patterns, and numbers too large to store."""

from __future__ import annotations

import errno
import fcntl
from typing import Any

import polars as pl
import pytest

from sequifier_ray.errors import ConfigError, DataError


def table(values: list[float]) -> pl.DataFrame:
    n = len(values)
    return pl.DataFrame(
        {"sequenceId": [1] * n, "itemPosition": list(range(n)), "x": values, "c": ["a", "b"] * (n // 2)}
    )


def test_a_second_run_of_the_same_data_set_is_refused(project: Any) -> None:
    project.write(table([float(i) for i in range(10)]))
    project.run()
    before = sorted(path.name for path in (project.root / "data").rglob("*"))
    lock = project.root / "data" / ".events-preprocess.lock"
    with open(lock, "w") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        with pytest.raises(DataError, match=r"another preprocess run of .*data/events is under way"):
            project.run()
    lock.unlink()
    assert sorted(path.name for path in (project.root / "data").rglob("*")) == before
    project.run()
    assert not lock.exists()


def test_a_file_system_without_locks_is_told_as_such(project: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any) -> None:
        raise OSError(errno.ENOSYS, "Function not implemented")

    project.write(table([float(i) for i in range(10)]))
    monkeypatch.setattr("fcntl.flock", refuse)
    with pytest.raises(ConfigError, match=r"data cannot be worked in .* has no locks \(Function.*-o flock"):
        project.run()
    assert list((project.root / "data").glob(".*")) == []


@pytest.mark.parametrize("ending", ["csv", "parquet"])
def test_a_name_that_looks_like_a_pattern_is_a_name(project: Any, ending: str) -> None:
    project.write(table([0.5] * 10), f"raw1.{ending}")
    project.write(table([float(i) for i in range(20)]), f"raw[1].{ending}")
    summary = project.run(preprocessing_data_path=f"raw[1].{ending}", read_format=ending)
    assert summary.rows == 20


@pytest.mark.parametrize(
    ("settings", "values"),
    [
        ({}, [1.0] * 8 + [1e39, 2.0]),
        ({}, [1e200, 2.0] * 5),
        ({}, [1e308, -1e308] * 5),
        ({"normalize_real_columns": False}, [1e39] + [2.0] * 9),
    ],
)
def test_numbers_that_do_not_fit_are_named(
    project: Any, settings: dict[str, Any], values: list[float]
) -> None:
    project.write(table([float(i) for i in range(10)]))
    project.run()
    before = {path: path.read_bytes() for path in (project.root / "data").rglob("*") if path.is_file()}
    project.write(table([v + 0.01 * i for i, v in enumerate(values)]))
    with pytest.raises(
        DataError, match=r'column "x": \d+ values? too large to store as float32 .*, first .* at sequenceId 1'
    ):
        project.run(**settings)
    assert {
        path: path.read_bytes() for path in (project.root / "data").rglob("*") if path.is_file()
    } == before
