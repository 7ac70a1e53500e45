"""Storage that fails, dies in the middle or is damaged costs a save, and never the run nor an older
checkpoint."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from sequifier_ray.launch.choose import train
from sequifier_ray.train import checkpoint, engine
from sequifier_ray.train.checkpoint import StepFolders
from sequifier_ray.train.parallel import Strategy
from sequifier_ray.train.saver import Saver
from sequifier_ray.train.state import OrderKey, TrainState
from sequifier_ray.train.worker import WorkerContext

sys.path.insert(0, str(Path(__file__).parent))
from conftest import Run, end, wait_until

STATE = TrainState(OrderKey(1, 10, 8, "shuffled", "f"), 1, run_id="r", run_started_s=1.0)


def a_model(width: int = 64) -> tuple[torch.nn.Module, torch.optim.Optimizer]:
    model = torch.nn.Sequential(torch.nn.Linear(width, width), torch.nn.Linear(width, 1))
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.ones(2, width)).sum().backward()
    optimizer.step()
    return model, optimizer


def a_saver(folder: Path, warnings: list[str]) -> tuple[Saver, StepFolders]:
    folders = StepFolders(str(folder), 2)
    return Saver(folders, Strategy(torch.device("cpu")), warnings.append), folders


def at(update: int) -> TrainState:
    from dataclasses import replace

    return replace(STATE, update=update)


KILLED = """
import os, random, sys, threading, time
sys.path[:0] = sys.argv[3:]
from test_checkpoint_storage import a_model, a_saver, at
from pathlib import Path
model, optimizer = a_model(400)
saver, folders = a_saver(Path(sys.argv[1]), [])
update = max((step.state.update for step in folders.complete()), default=0)
threading.Timer(float(sys.argv[2]), lambda: os._exit(9)).start()
print("ready", flush=True)
while True:
    update += 1
    saver.start(at(update), model, optimizer)
"""


def test_killed_in_the_middle_of_saving_twenty_times(tmp_path: Path) -> None:
    """There is always a whole checkpoint, and from the second on there are two."""
    folder, chance = tmp_path / "steps", random.Random(0)
    newest = 0
    for round_number in range(20):
        delay = str(0.05 + 0.25 * chance.random())
        places = [str(path) for path in Path(__file__).parents[:2]]
        command = [sys.executable, "-c", KILLED, str(folder), delay, *places]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 9, done.stderr
        steps = StepFolders(str(folder), 2).complete()
        updates = [step.state.update for step in steps]
        if updates:
            assert updates[-1] >= newest
            newest = updates[-1]
            checkpoint.load_weights(steps[-1].path)
        if round_number > 2:
            assert len(updates) >= 2
    assert newest > 20


@pytest.mark.parametrize("damage", ["truncated", "state", "shard"])
def test_a_damaged_newest_step_is_passed_over(flights: Any, new_run: Callable[..., Run], damage: str) -> None:
    name = f"damaged-{damage}"
    run = new_run(name, training_plan__epochs=3)
    process = run.start(launcher="spawn")
    run.wait_for_update(14)
    process.send_signal(signal.SIGTERM)
    assert end(process)[0] == 75
    newest = sorted((flights.root / "checkpoints" / name).glob("step-*"))[-1]
    shard = sorted(newest.glob("*.distcp"))[-1]
    if damage == "truncated":
        shard.write_bytes(shard.read_bytes()[:-50])
    else:
        (newest / "state.json" if damage == "state" else shard).unlink()
    code, out, err = end(run.start(launcher="spawn"))
    assert code == 0, err
    words = {"state": "it has no state.json", "shard": " has None bytes instead of"}
    assert f"{newest.name} is passed over: " in err
    assert words.get(damage, " bytes instead of") in err
    earlier = (int(newest.name[5:]) - 1) // 4 * 4
    assert f"resuming from step {earlier}" in out


def test_a_save_that_fails_is_told_and_training_goes_on(tmp_path: Path) -> None:
    """A file stands where the folder of all steps was; later saves succeed."""
    warnings: list[str] = []
    model, optimizer = a_model()
    place = tmp_path / "steps"
    saver, folders = a_saver(place, warnings)
    with saver:
        saver.start(at(1), model, optimizer)
        assert saver.wait()
        place.rename(tmp_path / "away")
        place.write_text("in the way")
        saver.start(at(2), model, optimizer)
        assert not saver.wait()
        place.unlink()
        (tmp_path / "away").rename(place)
        saver.start(at(3), model, optimizer)
        saver.finish()
    assert saver.failures == 1
    (told,) = [text for text in warnings if "could not be written" in text]
    assert f"the checkpoint {place} could not be written (" in told or f"{place}/step-00000002" in told
    assert told.endswith("earlier checkpoints are untouched; training goes on")
    assert [step.state.update for step in folders.complete()] == [1, 3]


@pytest.mark.skipif(os.geteuid() != 0, reason="mounting a small file system needs root")
def test_a_full_disk(flights: Any, new_run: Callable[..., Run]) -> None:
    name = "full-disk"
    folder = flights.root / "checkpoints" / name
    folder.mkdir(parents=True)
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=6m", "none", str(folder)], check=False, capture_output=True
    )
    if mounted.returncode:
        pytest.skip("mount is not allowed here")
    try:
        # Room for two checkpoints of 1.3 MB and the next one, until something else fills it.
        run = new_run(name, training_plan__epochs=4)
        process = run.start(launcher="spawn")
        wait_until(lambda: len(list(folder.glob("step-????????"))) >= 2 or process.poll() is not None)
        ballast = folder / "ballast"
        ballast.write_bytes(b"x" * max(0, shutil.disk_usage(folder).free - 300_000))
        kept = sorted(folder.glob("step-????????"))
        at_fill = run.updates()
        run.wait_for_update(at_fill + 24)
        assert {path.name for path in folder.glob("step-????????")} >= {kept[-1].name}
        ballast.unlink()
        code, _, err = end(process)
        assert code == 0, err
        assert "could not be written" in err
        assert "No space left" in err
        summary = flights.summary(name)
        assert summary["failed_saves"] >= 1
        assert err.count("could not be written") == summary["failed_saves"]
        assert summary["status"] == "done"
    finally:
        time.sleep(0.2)
        subprocess.run(["umount", "-l", str(folder)], check=False)


@pytest.mark.skipif(os.geteuid() != 0, reason="mounting a small file system needs root")
def test_figures_that_find_no_room_end_nothing(flights: Any) -> None:
    name = "full-logs"
    folder = flights.root / "logs" / name
    folder.mkdir(parents=True)
    mount = ["mount", "-t", "tmpfs", "-o", "size=64k", "none", str(folder)]
    if subprocess.run(mount, check=False, capture_output=True).returncode:
        pytest.skip("mount is not allowed here")
    warnings = []

    def make_room_once_told(event: dict[str, Any]) -> None:
        if event["kind"] == "warning":
            warnings.append(event["text"])
            (folder / "ballast").unlink()

    try:
        (folder / "ballast").write_bytes(b"x" * 56 * 1024)
        fields = {
            "global_training__distributed": False,
            "global_training__data_parallelism": ...,
            "global_training__world_size": 1,
            "global_training__batch_size": 16,
        }
        config = flights.train_config(model_name=name, evaluation=False, **fields)
        summary = engine.run(config, WorkerContext(report=make_room_once_told))
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)
    assert summary["status"] == "done"
    assert ["metrics.jsonl misses figures from here on" in text for text in warnings] == [True]


def test_deletes_that_fail_end_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from sequifier_ray import storage
    from sequifier_ray.errors import DataError

    def refuse(path: str, missing_ok: bool = True) -> None:
        raise DataError(f"cannot delete {path}: device or resource busy")

    warnings: list[str] = []
    model, optimizer = a_model()
    saver, folders = a_saver(tmp_path, warnings)
    monkeypatch.setattr(storage, "delete_folder", refuse)
    with saver:
        for update in range(1, 5):
            saver.start(at(update), model, optimizer)
        saver.finish()
    assert saver.failures == 0
    assert any("step-00000001 could not be deleted (" in text for text in warnings)
    assert [step.state.update for step in folders.complete()] == [1, 2, 3, 4]


def test_the_last_save_must_succeed(tmp_path: Path) -> None:
    from sequifier_ray.errors import TrainingError

    model, optimizer = a_model()
    place = tmp_path / "steps"
    place.write_text("in the way")
    saver, _ = a_saver(place, [])
    saver.start(at(1), model, optimizer)
    with pytest.raises(TrainingError, match=r"steps.* could not be written .*Mend the storage and run again"):
        saver.finish()


def test_summary_counts_saves_that_failed(flights: Any) -> None:
    config = flights.train_config(model_name="counted", evaluation=False, training_plan__epochs=1)
    assert train(config, "local", None) == 0
    summary = json.loads((flights.root / "logs" / "counted" / "summary.json").read_text())
    assert summary["failed_saves"] == 0
