"""All results of a run appear together, or the earlier ones stay, wherever the run ends."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from sequifier_ray.errors import DataError
from sequifier_ray.preprocess.publish import DESCRIPTION, Outputs, recover, staged


def build(outputs: Outputs, splits: int, text: str) -> None:
    for i in range(splits):
        folder = outputs.new / f"x-split{i}"
        folder.mkdir()
        (folder / "metadata.json").write_text(text)
    (outputs.new / DESCRIPTION).write_text(text)


def visible(root: Path) -> dict[str, str]:
    return {str(p.relative_to(root)): p.read_text() for p in sorted(root.rglob("*")) if p.is_file()}


@pytest.fixture
def outputs(tmp_path: Path) -> Outputs:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "xy-split0").mkdir()
    (tmp_path / "data" / "xy-split0" / "of another data set").write_text("kept")
    return Outputs("x", tmp_path / "data", tmp_path / "configs" / "metadata_configs" / "x.json")


def test_new_results_replace_all_earlier_ones(outputs: Outputs, tmp_path: Path) -> None:
    with staged(outputs):
        build(outputs, 3, "first")
    (tmp_path / "data" / "x-split0.parquet").write_text("merged form of long ago")
    (tmp_path / "data" / "x-split0.metadata.json").write_text("merged form of long ago")
    with staged(outputs):
        build(outputs, 2, "second")
    assert visible(tmp_path) == {
        "configs/metadata_configs/x.json": "second",
        "data/x-split0/metadata.json": "second",
        "data/x-split1/metadata.json": "second",
        "data/xy-split0/of another data set": "kept",
    }
    assert not outputs.staging.exists()


def fail_to_build(outputs: Outputs, error: Exception) -> None:
    with staged(outputs):
        build(outputs, 2, "second")
        raise error


def test_an_error_while_building_changes_nothing(outputs: Outputs, tmp_path: Path) -> None:
    with staged(outputs):
        build(outputs, 2, "first")
    before = visible(tmp_path)
    with pytest.raises(DataError, match="bad"):
        fail_to_build(outputs, DataError("bad"))
    assert visible(tmp_path) == before
    full = OSError(28, "No space left on device", "data/x-split0")
    with pytest.raises(DataError, match="cannot write data/x-split0: No space left on device; free space"):
        fail_to_build(outputs, full)
    assert visible(tmp_path) == before


KILLED_AT_RENAME = """
import os, sys
from pathlib import Path
from sequifier_ray.preprocess.publish import DESCRIPTION, Outputs, staged
data, description, limit = Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3])
real_rename, calls = Path.rename, 0
def rename(source, target):
    global calls
    calls += 1
    if calls > limit:
        os._exit(9)
    return real_rename(source, target)
Path.rename = rename
with staged(Outputs("x", data, description)) as folder:
    for i in range(2):
        (folder / f"x-split{i}").mkdir()
        (folder / f"x-split{i}" / "metadata.json").write_text("second")
    (folder / DESCRIPTION).write_text("second")
"""


@pytest.mark.parametrize("earlier_splits", [0, 2, 3])
def test_a_kill_at_any_rename_is_undone_by_the_next_run(
    outputs: Outputs, tmp_path: Path, earlier_splits: int
) -> None:
    if earlier_splits:
        with staged(outputs):
            build(outputs, earlier_splits, "first")
    before = visible(tmp_path)
    # each earlier and each new entry, `retiring` to `previous`, `previous` to `obsolete`
    n_renames = (earlier_splits + 1 if earlier_splits else 0) + 3 + 2
    for limit in range(n_renames + 1):
        arguments = [str(outputs.data_folder), str(outputs.description), str(limit)]
        killed = subprocess.run([sys.executable, "-c", KILLED_AT_RENAME, *arguments], check=False)
        assert killed.returncode == (9 if limit < n_renames else 0)
        recover(outputs)
        if limit < n_renames - 1:
            assert visible(tmp_path) == before, limit
            continue
        after = {k: v for k, v in visible(tmp_path).items() if not k.startswith("data/xy")}
        assert list(after.values()) == ["second"] * 3
        break
