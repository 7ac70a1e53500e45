"""`continue_preprocessing`: killed at any moment, a run is gone on with, and what was finished is not done
again."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections import Counter
from typing import Any

import polars as pl
import pytest
import yaml

from sequifier_ray.errors import DataError

WITH_KILL = """
import os, sys
from pathlib import Path
from sequifier_ray import storage
from sequifier_ray.config.load import load_preprocess
import sequifier_ray.preprocess.encode as encode
import sequifier_ray.preprocess.measure as measure
import sequifier_ray.preprocess.pieces as pieces
import sequifier_ray.preprocess.spill as spill
from sequifier_ray.preprocess.pipeline import preprocess

log, left, moment = Path(sys.argv[2]), int(sys.argv[3]), sys.argv[4]

def watch(module, name, label):
    original = getattr(module, name)
    def watched(*arguments, **named):
        global left
        if moment == "before" and left <= 0:
            os._exit(9)
        result = original(*arguments, **named)
        with log.open("a") as file:
            file.write(label(arguments) + "\\n")
        left -= 1
        if moment == "after" and left < 0:
            os._exit(9)
        return result
    setattr(module, name, watched)

watch(spill, "write_piece", lambda a: f"piece {a[0]}")
watch(measure, "measure", lambda a: f"measured {a[2]}")
watch(encode, "_write", lambda a: f"shard {a[2]} {a[3]}")
watch(storage, "write_atomic", lambda a: f"file {a[0]}")
watch(Path, "rename", lambda a: f"rename {a[0]}")
preprocess(load_preprocess(sys.argv[1]), print)
"""


def write_files(project: Any, events: Any) -> None:
    table = events([40, 33, 9, 60, 5, 70, 41, 22, 13, 80]).sample(fraction=1.0, shuffle=True, seed=2)
    for i in range(3):
        project.write(table[i * 125 : (i + 1) * 125], f"in/{i}.parquet")


def config_of(project: Any, **settings: Any) -> str:
    """The configuration of the project's last run, changed."""
    path = project.root / "preprocess.yaml"
    values = yaml.safe_load(path.read_text()) | settings
    path.write_text(yaml.safe_dump(values))
    return str(path)


@pytest.mark.parametrize(
    ("moment", "step", "write_format", "merge_output"),
    [("before", 4, "parquet", False), ("after", 5, "csv", True)],
)
def test_killed_again_and_again(
    project: Any, events: Any, moment: str, step: int, write_format: str, merge_output: bool
) -> None:
    write_files(project, events)
    settings = {"preprocessing_data_path": "in", "write_format": write_format, "merge_output": merge_output}
    project.run(**settings)
    expected = project.snapshot()
    project.write(events([5, 6]), "old/x.parquet")
    project.run(**{**settings, "window_stride": 1})  # what is there before, under the same name
    earlier = project.snapshot()
    config = config_of(project, continue_preprocessing=True, window_stride=2)
    log = project.root / "log"
    for attempt in range(60):
        # Publishing is undone as a whole, so that it needs a run that lives through all of it.
        n_events = str(step + attempt // 3)
        command = [sys.executable, "-c", WITH_KILL, config, str(log), n_events, moment]
        done = subprocess.run(command, check=False, capture_output=True, text=True)
        if done.returncode == 0:
            break
        assert done.returncode == 9, done.stderr
        visible = {k: v for k, v in project.snapshot().items() if ".in-preprocess" not in k}
        if visible == expected:
            break  # killed while it cleared up
        is_moving = any(
            (project.root / "data" / ".in-preprocess" / n).exists() for n in ("retiring", "previous")
        )
        assert is_moving or visible == earlier
    assert {k: v for k, v in project.snapshot().items() if ".in-preprocess" not in k} == expected
    times = Counter(log.read_text().splitlines())
    # Killed just before its last act is recorded, a part is done twice at most; recorded, never again.
    recorded = [line for line in times if line.startswith("file ") and ("fit-" in line or "encoded-" in line)]
    assert 12 <= len(recorded) <= 16  # a second thread may be killed before it writes the log
    assert {times[line] for line in recorded} == {1}
    assert {times[line] for line in times if line.startswith("rename ") and "task-" in line} == {1}


def test_killed_from_outside_at_any_time(project: Any) -> None:
    from pathlib import Path

    flights = pl.read_parquet(Path(__file__).parents[1] / "data" / "flights.parquet")
    project.write(flights.sample(fraction=1.0, shuffle=True, seed=1), "flights.parquet")
    project.run(preprocessing_data_path="flights.parquet", window_length=33, window_stride=8)
    expected = project.snapshot()
    config = config_of(project, continue_preprocessing=True)
    command = [sys.executable, "-m", "sequifier_ray", "preprocess", "--config-path", config]
    for delay_s in (0.7, 1.0, 1.3, 1.6):
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
        time.sleep(delay_s)
        process.send_signal(signal.SIGKILL)
        process.wait()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    assert project.snapshot() == expected


def test_another_configuration_or_input_starts_anew(project: Any, events: Any) -> None:
    write_files(project, events)
    project.run(preprocessing_data_path="in", write_format="parquet")
    config = config_of(project, continue_preprocessing=True)
    log = project.root / "log"

    def kill() -> None:
        command = [sys.executable, "-c", WITH_KILL, config, str(log), "12", "after"]
        assert subprocess.run(command, check=False, capture_output=True).returncode == 9

    settings = {"preprocessing_data_path": "in", "write_format": "parquet", "continue_preprocessing": True}
    kill()
    project.run(**settings)
    assert "going on from where an interrupted run of the same configuration and input was" in project.lines
    kill()
    project.run(window_stride=3, **settings)
    cleared = "cleared what an interrupted run of another configuration or input had left"
    assert cleared in project.lines
    kill()
    changed = pl.read_parquet(project.root / "in" / "1.parquet").with_columns(pl.col("size") + 1)
    project.write(changed, "in/1.parquet")
    project.run(**settings)
    assert cleared in project.lines
    kill()
    project.run(preprocessing_data_path="in", write_format="parquet")
    assert "cleared what an interrupted run had left" in project.lines


def test_an_error_keeps_what_was_worked_out(project: Any, events: Any) -> None:
    """A configuration that fails late, in writing: mended, the run goes on."""
    write_files(project, events)
    project.run(preprocessing_data_path="in", write_format="parquet")
    expected = project.snapshot()
    config = config_of(project, continue_preprocessing=True)
    limited = (
        "import resource, sys; resource.setrlimit(resource.RLIMIT_FSIZE, (6000, 6000))\n"
        "from sequifier_ray.cli import main\n"
        f"sys.exit(main(['preprocess', '--config-path', {config!r}]))"
    )
    done = subprocess.run([sys.executable, "-c", limited], check=False, capture_output=True, text=True)
    assert done.returncode == 3, done.stdout + done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert "Results of earlier runs are as they were" in done.stderr
    assert {k: v for k, v in project.snapshot().items() if ".in-preprocess" not in k} == expected
    settings = {"preprocessing_data_path": "in", "write_format": "parquet", "continue_preprocessing": True}
    project.run(**settings)
    assert project.snapshot() == expected
    assert json.loads((project.root / "configs/metadata_configs/in.json").read_text())["columns"]


KILLED_WHILE_DELETING = """
import os, shutil, sys
from sequifier_ray.config.load import load_preprocess
from sequifier_ray.preprocess.pipeline import preprocess
remove, kept = shutil.rmtree, sys.argv[2].split(",")
def dying(path, *arguments, **named):
    if os.path.isdir(path) and {"previous", "obsolete"} & set(os.listdir(path)):
        for name in os.listdir(path):
            if name not in kept:
                target = os.path.join(path, name)
                remove(target) if os.path.isdir(target) else os.remove(target)
        os._exit(9)
    remove(path, *arguments, **named)
shutil.rmtree = dying
preprocess(load_preprocess(sys.argv[1]), print)
"""


@pytest.mark.parametrize("kept", ["new,work", "new,work,previous"])
def test_killed_while_it_deletes_what_is_obsolete(project: Any, events: Any, kept: str) -> None:
    """In whatever order things vanish: what was published stays, and what was worked out is not trusted."""
    write_files(project, events)
    project.run(preprocessing_data_path="in")
    expected = project.snapshot()
    config = config_of(project, continue_preprocessing=True)
    command = [sys.executable, "-c", KILLED_WHILE_DELETING, config, kept]
    assert subprocess.run(command, check=False, capture_output=True).returncode == 9
    project.run(preprocessing_data_path="in", continue_preprocessing=True)
    assert project.snapshot() == expected


@pytest.mark.parametrize("damage", ["deleted", "cut"])
@pytest.mark.parametrize("merge_output", [False, True])
def test_a_shard_that_is_not_as_recorded_is_written_again(
    project: Any, events: Any, damage: str, merge_output: bool
) -> None:
    write_files(project, events)
    settings = {"preprocessing_data_path": "in", "write_format": "parquet", "merge_output": merge_output}
    project.run(**settings)
    expected = project.snapshot()
    config = config_of(project, continue_preprocessing=True)
    # to the end of the last partition
    command = [sys.executable, "-c", WITH_KILL, config, str(project.root / "log"), "50", "after"]
    assert subprocess.run(command, check=False, capture_output=True).returncode == 9
    staging = project.root / "data" / ".in-preprocess"
    shards = sorted((staging / ("work" if merge_output else "new")).rglob("in-split0-*.parquet"))
    assert len(shards) > 2
    if damage == "deleted":
        shards[1].unlink()
    else:
        shards[1].write_bytes(shards[1].read_bytes()[:-9])
    project.run(continue_preprocessing=True, **settings)
    assert project.snapshot() == expected


def test_a_shard_that_vanishes_during_a_run_is_an_error(
    project: Any, events: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    import sequifier_ray.preprocess.encode as encode

    write_files(project, events)
    project.run(preprocessing_data_path="in", write_format="parquet")
    expected = project.snapshot()
    write = encode._write

    def lose(job: Any, data: Any, split: int, number: int) -> Any:
        entry = write(job, data, split, number)
        if (split, number) == (1, 2):
            (job.folder(split) / entry.name).unlink()
        return entry

    monkeypatch.setattr(encode, "_write", lose)
    with pytest.raises(DataError, match=r"in-split1-00002.parquet is no longer as this run has written it"):
        project.run(preprocessing_data_path="in", write_format="parquet")
    assert project.snapshot() == expected
