"""A run means the same at any scale: every update's loss, whatever starts the processes."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import Any

import pytest

from sequifier_ray.launch.choose import train

RELATIVE = 1e-4


@pytest.fixture(scope="module")
def reference(flights: Any) -> list[float]:
    """One process, batch 128."""
    config = flights.train_config(
        model_name="local",
        global_training__batch_size=128,
        global_training__world_size=1,
        global_training__distributed=False,
        global_training__data_parallelism=...,
    )
    assert train(config, "local", None) == 0
    losses = flights.losses("local")
    assert len(losses) == flights.summary("local")["updates"] >= 8
    return losses


def check(flights: Any, model_name: str, reference: list[float], **expected: Any) -> None:
    assert flights.losses(model_name) == pytest.approx(reference, rel=RELATIVE)
    summary = flights.summary(model_name)
    assert {name: summary[name] for name in expected} == expected
    assert summary["real_samples_per_epoch"] == flights.summary("local")["real_samples_per_epoch"]
    validation = flights.metrics(model_name, "validation")[-1]["loss"]
    assert validation == pytest.approx(flights.metrics("local", "validation")[-1]["loss"], rel=RELATIVE)


def test_local_with_accumulation(flights: Any, reference: list[float]) -> None:
    config = flights.train_config(
        model_name="accumulated",
        global_training__world_size=1,
        global_training__accumulation_steps=2,
        global_training__distributed=False,
        global_training__data_parallelism=...,
    )
    assert train(config, "local", None) == 0
    check(flights, "accumulated", reference, launcher="local", strategy="none", world_size=1)


def test_spawn_ddp(flights: Any, reference: list[float]) -> None:
    config = flights.train_config(model_name="spawned")
    assert train(config, "spawn", None) == 0
    check(flights, "spawned", reference, launcher="spawn", strategy="ddp", world_size=2)


def test_ray_ddp(flights: Any, reference: list[float], ray_instance: None) -> None:
    config = flights.train_config(model_name="ray-ddp")
    assert train(config, "ray", None) == 0
    check(flights, "ray-ddp", reference, launcher="ray", strategy="ddp", world_size=2)


def test_ray_fsdp(flights: Any, reference: list[float], ray_instance: None) -> None:
    config = flights.train_config(
        model_name="ray-fsdp",
        global_training__data_parallelism="fsdp",
        global_training__fsdp_cpu_offload=False,
    )
    assert train(config, "ray", None) == 0
    check(flights, "ray-fsdp", reference, launcher="ray", strategy="fsdp", world_size=2)


def test_torchrun_ddp(flights: Any, reference: list[float]) -> None:
    path = flights.write_train({"model_name": "torchrun"}, "torchrun.yaml")
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    command += ["-m", "sequifier_ray", "train", "--config-path", str(path)]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=300, env={**os.environ, "OMP_NUM_THREADS": "1"}
    )
    assert done.returncode == 0, done.stderr
    check(flights, "torchrun", reference, launcher="torchrun", strategy="ddp", world_size=2)
