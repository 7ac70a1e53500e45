"""All results of a run appear together, or the earlier ones stay, wherever the run ends."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from sequifier_ray.data.metadata import DATASET_FORMAT, SPLIT_FORMAT
from sequifier_ray.errors import DataError
from sequifier_ray.preprocess.publish import DESCRIPTION, Outputs, recover, staged


def metadata(name: str, split: int, text: str) -> str:
    paths = [f"data/{name}" if i == split else "" for i in range(split + 1)]
    shards = [{"name": name if "." in name else "0.pt"}]
    dataset = {"split_paths": paths, "text": text}
    return json.dumps({"format": SPLIT_FORMAT, "split": split, "dataset": dataset, "shards": shards})


def build(outputs: Outputs, splits: int, text: str) -> None:
    for i in range(splits):
        folder = outputs.new / f"x-split{i}"
        folder.mkdir()
        (folder / "metadata.json").write_text(metadata(f"x-split{i}", i, text))
    (outputs.new / DESCRIPTION).write_text(json.dumps({"format": DATASET_FORMAT, "text": text}))


def visible(root: Path) -> dict[str, str]:
    texts = {str(p.relative_to(root)): p.read_text() for p in sorted(root.rglob("*")) if p.is_file()}
    for name, text in texts.items():
        if name.endswith(".json"):
            values = json.loads(text)
            texts[name] = values.get("dataset", values)["text"]
    return texts


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
    merged = tmp_path / "data" / "x-split0.metadata.json"
    merged.write_text(metadata("x-split0.parquet", 0, "merged form of long ago"))
    with staged(outputs):
        build(outputs, 2, "second")
    assert visible(tmp_path) == {
        "configs/metadata_configs/x.json": "second",
        "data/x-split0/metadata.json": "second",
        "data/x-split1/metadata.json": "second",
        "data/xy-split0/of another data set": "kept",
    }
    assert not outputs.staging.exists()
    assert not outputs.obsolete.exists()


@pytest.mark.parametrize(
    "entry", ["x-split1/metadata.json", "x-split1/notes.txt", "x-split1", "x-split1.metadata.json"]
)
def test_what_others_have_put_there_stays(outputs: Outputs, tmp_path: Path, entry: str) -> None:
    """Of such names, but not as a run has written it: refused where it is in the way, else left alone."""
    with staged(outputs):
        build(outputs, 3, "first")
    path = outputs.data_folder / entry
    if entry == "x-split1":
        shutil.rmtree(path)
    path.write_text("mine")
    before = {str(p): p.read_bytes() for p in tmp_path.rglob("*") if p.is_file()}
    for splits in (1, 3):
        taken = [f"x-split{i}" for i in range(splits)]
        if splits == 1 or entry.endswith(".metadata.json"):
            outputs.refuse_others([*taken, DESCRIPTION])
            continue
        with pytest.raises(DataError, match="x-split1 is in the way of the results and was not written by"):
            outputs.refuse_others([*taken, DESCRIPTION])
        with pytest.raises(DataError, match="x-split1 is in the way"), staged(outputs):
            build(outputs, splits, "second")
        assert {str(p): p.read_bytes() for p in tmp_path.rglob("*") if p.is_file()} == before
    with staged(outputs):
        build(outputs, 1, "second")
    assert path.read_text() == "mine"


def test_a_description_of_others_is_refused(outputs: Outputs) -> None:
    outputs.description.parent.mkdir(parents=True)
    outputs.description.write_text('{"split_paths": []}')
    with pytest.raises(DataError, match=r"x\.json is in the way of the results and was not written by"):
        outputs.refuse_others([DESCRIPTION])


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
        (folder / f"x-split{i}" / "metadata.json").write_text(sys.argv[4 + i])
    (folder / DESCRIPTION).write_text(sys.argv[6])
"""


@pytest.mark.parametrize("earlier_splits", [0, 2, 3])
def test_a_kill_at_any_rename_is_undone_by_the_next_run(
    outputs: Outputs, tmp_path: Path, earlier_splits: int
) -> None:
    if earlier_splits:
        with staged(outputs):
            build(outputs, earlier_splits, "first")
    before = visible(tmp_path)
    # each earlier and each new entry, `retiring` to `previous`, all to `obsolete`
    n_renames = (earlier_splits + 1 if earlier_splits else 0) + 3 + 2
    for limit in range(n_renames + 1):
        arguments = [str(outputs.data_folder), str(outputs.description), str(limit)]
        arguments += [metadata(f"x-split{i}", i, "second") for i in range(2)]
        arguments.append(json.dumps({"format": DATASET_FORMAT, "text": "second"}))
        killed = subprocess.run([sys.executable, "-c", KILLED_AT_RENAME, *arguments], check=False)
        assert killed.returncode == (9 if limit < n_renames else 0)
        recover(outputs)
        if limit < n_renames - 1:
            assert visible(tmp_path) == before, limit
            continue
        after = {k: v for k, v in visible(tmp_path).items() if not k.startswith("data/xy")}
        assert list(after.values()) == ["second"] * 3
        break
