"""Which launcher a run takes, and what torchrun's variables must say."""

from __future__ import annotations

from typing import Any

import pytest

from sequifier_ray.errors import ConfigError
from sequifier_ray.launch.choose import choose
from sequifier_ray.launch.context import torchrun_ranks
from sequifier_ray.launch.torchrun import with_world_size
from sequifier_ray.train.preflight import samples_per_update

WHOLE = {
    "RANK": "1",
    "WORLD_SIZE": "2",
    "LOCAL_RANK": "1",
    "MASTER_ADDR": "localhost",
    "MASTER_PORT": "29500",
}


def test_auto_takes_torchrun_then_ray_then_this_process(
    flights: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("RANK", raising=False)
    one = {
        "global_training__distributed": False,
        "global_training__data_parallelism": ...,
        "global_training__world_size": 1,
    }
    assert choose(flights.train_config(model_name="auto"), "auto") == "ray"
    assert choose(flights.train_config(model_name="auto", **one), "auto") == "local"
    for name, value in WHOLE.items():
        monkeypatch.setenv(name, value)
    assert choose(flights.train_config(model_name="auto"), "auto") == "torchrun"


def test_unknown_launcher(flights: Any) -> None:
    with pytest.raises(ConfigError, match='--launcher: "slurm" is none of auto, ray, torchrun, spawn, local'):
        choose(flights.train_config(model_name="auto"), "slurm")


def test_half_of_torchruns_variables_is_a_mistake(flights: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert choose(flights.train_config(model_name="auto"), "auto") == "torchrun"
    with pytest.raises(ConfigError, match="RANK, LOCAL_RANK, MASTER_ADDR, MASTER_PORT are missing"):
        torchrun_ranks({"WORLD_SIZE": "2"})


def test_other_launchers_under_torchrun(flights: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in WHOLE.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(
        ConfigError, match="--launcher spawn under torchrun would start a run in each of its processes"
    ):
        choose(flights.train_config(model_name="auto"), "spawn")


def test_several_processes_need_distributed(flights: Any) -> None:
    config = flights.train_config(
        model_name="auto",
        global_training__distributed=False,
        global_training__data_parallelism=...,
        global_training__world_size=1,
    )
    with pytest.raises(ConfigError, match=r"--launcher spawn starts several processes .*distributed: true"):
        choose(config, "spawn")


def test_torchrun_variables_are_checked_together() -> None:
    ranks = torchrun_ranks(WHOLE)
    assert (ranks.rank, ranks.world_size, ranks.local_rank, ranks.restarts) == (1, 2, 1, 0)
    with pytest.raises(ConfigError, match="LOCAL_RANK, MASTER_PORT are missing"):
        torchrun_ranks({k: v for k, v in WHOLE.items() if k not in ("LOCAL_RANK", "MASTER_PORT")})
    with pytest.raises(ConfigError, match='RANK must be a number of 0 or more, found "one"'):
        torchrun_ranks({**WHOLE, "RANK": "one"})
    with pytest.raises(ConfigError, match="RANK must be below WORLD_SIZE, found 2 and 2"):
        torchrun_ranks({**WHOLE, "RANK": "2"})


def test_world_size_of_torchrun_changes_the_samples_of_an_update(flights: Any) -> None:
    config = flights.train_config(model_name="auto")
    assert samples_per_update(config) == 128
    assert samples_per_update(with_world_size(config, 3)) == 192
