"""How runs end when something goes wrong: exit codes, one message, checkpoints, no process left behind."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from sequifier_ray.errors import ClusterError, DataError, TrainingError
from sequifier_ray.launch.choose import train

LONG = {"training_plan__epochs": 200, "global_training__resume__policy": "if_exists"}


def start(path: Path, *options: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "sequifier_ray", "train", "--config-path", str(path), *options]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
        start_new_session=True,
    )


def wait_until(condition: Callable[[], bool], timeout_s: float = 240) -> None:
    deadline_s = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline_s, "waited too long"
        time.sleep(0.1)


def has_steps(project: Any, model_name: str, n: int = 3) -> Callable[[], bool]:
    path = project.root / "logs" / model_name / "metrics.jsonl"
    return lambda: path.exists() and path.read_text().count('"train"') >= n


def children(pid: int) -> list[int]:
    text = Path(f"/proc/{pid}/task/{pid}/children").read_text()
    return [int(child) for child in text.split()]


@pytest.mark.parametrize("launcher", ["local", "spawn", "ray"])
def test_sigterm_saves_and_a_second_run_goes_on(flights: Any, launcher: str) -> None:
    name = f"term-{launcher}"
    flights.train_config(model_name=name, **LONG)
    process = start(flights.root / "configs" / f"{name}.yaml", "--launcher", launcher)
    wait_until(has_steps(flights, name))
    process.send_signal(signal.SIGTERM)
    out, err = process.communicate(timeout=240)
    assert process.returncode == 75, err
    assert "Traceback" not in err
    stopped = flights.summary(name)
    assert stopped["status"] == "stopped"
    state = json.loads((Path(stopped["checkpoints"][-1]) / "state.json").read_text())
    assert f"stopped on request at step {state['update']}" in out
    one = flights.train_config(model_name=name, **{**LONG, "training_plan__epochs": state["epoch"] + 1})
    assert train(one, "local", None) == 0
    steps = [line["step"] for line in flights.metrics(name, "train")]
    assert steps == list(range(1, steps[-1] + 1))


def test_second_signal_ends_at_once(flights: Any) -> None:
    flights.train_config(model_name="twice", **LONG)
    process = start(flights.root / "configs" / "twice.yaml", "--launcher", "ray")
    wait_until(lambda: process.poll() is not None or has_steps(flights, "twice", 1)())
    process.send_signal(signal.SIGINT)
    process.send_signal(signal.SIGTERM)
    process.wait(timeout=60)
    assert process.returncode in (128 + signal.SIGTERM, 128 + signal.SIGINT)
    process.communicate()


def test_killed_process_of_spawn_is_told_and_all_end(flights: Any) -> None:
    flights.train_config(model_name="killed", **LONG)
    process = start(flights.root / "configs" / "killed.yaml", "--launcher", "spawn")
    wait_until(has_steps(flights, "killed"))
    workers = [
        pid for pid in children(process.pid) if b"spawn_main" in Path(f"/proc/{pid}/cmdline").read_bytes()
    ]
    assert len(workers) == 2
    os.kill(workers[1], signal.SIGKILL)
    _, err = process.communicate(timeout=240)
    assert process.returncode == 5
    assert "error: " in err
    assert "Traceback" not in err
    assert not any(Path(f"/proc/{pid}").exists() for pid in workers)


def test_killed_ray_worker_is_started_again_and_loses_no_sample(flights: Any) -> None:
    fields = {"training_plan__epochs": 4, "global_training__save_interval_batches": 3}
    flights.train_config(model_name="lost", **fields)
    process = start(flights.root / "configs" / "lost.yaml", "--launcher", "ray")
    wait_until(has_steps(flights, "lost", 8))
    os.kill(_newest("ray::RayTrainWorker"), signal.SIGKILL)
    out, err = process.communicate(timeout=240)
    assert process.returncode == 0, err
    assert "resuming from step" in out
    summary = flights.summary("lost")
    assert summary["restarts"] == 1
    per_epoch = summary["real_samples_per_epoch"]
    assert summary["samples"] == 4 * per_epoch
    steps = [line["step"] for line in flights.metrics("lost", "train")]
    assert steps == list(range(1, summary["updates"] + 1))


def _newest(name: str) -> int:
    """The process of that name that was started last."""
    found = subprocess.run(["pgrep", "-n", "-f", f"^{name}"], capture_output=True, text=True, check=True)
    return int(found.stdout)


def _truncate_a_shard(project: Any) -> None:
    shard = sorted((project.root / "data" / "flights-split0").glob("*.pt"))[3]
    shard.write_bytes(shard.read_bytes()[:-10])


@pytest.mark.parametrize("launcher", ["local", "spawn", "ray"])
def test_truncated_shard_ends_with_its_name(
    new_project: Any, launcher: str, ray_instance: None, capsys: pytest.CaptureFixture[str]
) -> None:
    project = new_project(40)
    project.preprocess()
    config = project.train_config(model_name="torn", global_training__batch_size=8)
    _truncate_a_shard(project)
    with pytest.raises(DataError, match=r"shard .*flights-split0-00003\.pt has \d+ bytes instead of \d+"):
        train(config, launcher, None)
    captured = capsys.readouterr()
    assert "starts the workers again" not in captured.out + captured.err


def test_torchrun_tells_a_mistake_once(flights: Any) -> None:
    path = flights.write_train(
        {"model_name": "wrong", "global_training.optimizer": {"name": "AdamV"}}, "wrong.yaml"
    )
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    command += ["-m", "sequifier_ray", "train", "--config-path", str(path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240)
    assert done.returncode != 0
    assert done.stderr.count('error: global_training.optimizer.name: "AdamV"') == 1


def test_missing_resources_are_named(flights: Any, ray_instance: None) -> None:
    config = flights.train_config(
        model_name="large", global_training__world_size=8, ray={"resource_timeout_s": 1.0}
    )
    with pytest.raises(ClusterError, match=r"lacks resources: world_size 8 needs 8 CPU \(there: 3\)"):
        train(config, "ray", None)


def test_address_without_a_cluster(flights: Any) -> None:
    flights.train_config(model_name="nowhere")
    process = start(
        flights.root / "configs" / "nowhere.yaml", "--launcher", "ray", "--address", "127.0.0.1:1"
    )
    _, err = process.communicate(timeout=240)
    assert process.returncode == 4
    assert "error: cannot connect to Ray at 127.0.0.1:1" in err


@pytest.mark.parametrize("launcher", ["local", "spawn"])
def test_loss_that_is_not_finite(flights: Any, launcher: str) -> None:
    name = f"exploded-{launcher}"
    config = flights.train_config(
        model_name=name, global_training__learning_rate=1e30, global_training__optimizer={"name": "SGD"}
    )
    with pytest.raises(
        TrainingError, match=r"the gradient of update 2 is not finite .*step 1 holds the last good"
    ):
        train(config, launcher, None)
    assert [p.name for p in (flights.root / "checkpoints" / name).glob("step-*")] == ["step-00000001"]


@pytest.mark.parametrize("launcher", ["local", "spawn"])
def test_gradients_that_are_not_finite_may_be_skipped(flights: Any, launcher: str) -> None:
    name = f"skipped-{launcher}"
    config = flights.train_config(
        model_name=name,
        global_training__learning_rate=1e30,
        global_training__optimizer={"name": "SGD"},
        global_training__non_finite="skip",
        training_plan__epochs=1,
        evaluation=False,
    )
    assert train(config, launcher, None) == 0
    summary = flights.summary(name)
    assert summary["skipped_updates"] == summary["updates"] - 1
    assert summary["samples"] == summary["real_samples_per_epoch"]
