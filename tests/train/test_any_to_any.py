"""A checkpoint of any strategy, world size and launcher goes on under any other."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

RANKS = Path(__file__).parent / "engine_ranks.py"
SAMPLES = 96
WORLDS: dict[str, tuple[int, str | None]] = {
    "local": (1, None),
    "ddp-2": (2, "ddp"),
    "fsdp-2": (2, "fsdp"),
    "fsdp-3": (3, "fsdp"),
}
SOURCES = ("ddp-2", "fsdp-2", "fsdp-3", "local")
TARGETS = ("fsdp-3", "local", "ddp-2", "torchrun")
# An update of one kind has three micro-batches, and the others' three or fewer.
ACCUMULATION = {"local": 3, "ddp-2": 1, "fsdp-2": 3, "fsdp-3": 1}


def fields(world: str, **more: Any) -> dict[str, Any]:
    size, kind = WORLDS[world]
    steps = ACCUMULATION[world]
    return {
        "global_training__world_size": size,
        "global_training__distributed": size > 1,
        "global_training__data_parallelism": kind or ...,
        "global_training__fsdp_cpu_offload": False if kind == "fsdp" else ...,
        "global_training__batch_size": SAMPLES // (size * steps),
        "global_training__accumulation_steps": steps,
        # Divisible by all world sizes: they all take the same samples for an update.
        "global_training__data_streams": 6,
        "global_training__keep_checkpoints": 20,
        "global_training__save_interval_batches": 5,
        "training_plan__epochs": 2,
        "evaluation": False,
        **more,
    }


def run_together(world: str, names: list[str], project: Any, updates: int = 10**9) -> None:
    """Runs of these configurations, one after the other, by one group of ranks."""
    size = WORLDS[world][0]
    store = project.root / f"store-{'-'.join(names)}"[:200]
    configs = [str(project.root / "configs" / f"{name}.yaml") for name in names]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    words = [str(size), str(store), str(updates), *configs]
    ranks = [
        subprocess.Popen([sys.executable, str(RANKS), str(rank), *words], env=environment)
        for rank in range(size)
    ]
    try:
        assert [rank.wait(200) for rank in ranks] == [0] * size
    finally:
        for rank in ranks:
            rank.kill()


@pytest.fixture(scope="module")
def unbroken(flights: Any) -> list[float]:
    """Losses of the updates of two epochs, and with them the checkpoints of every kind of run."""
    for world in SOURCES:
        flights.train_config(model_name=f"from-{world}", **fields(world))
        run_together(world, [f"from-{world}"], flights)
    losses: list[float] = flights.losses("from-local")
    return losses


def test_sources_agree(flights: Any, unbroken: list[float]) -> None:
    for world in SOURCES:
        assert flights.losses(f"from-{world}") == pytest.approx(unbroken, rel=1e-4)


@pytest.mark.parametrize("target", TARGETS)
def test_goes_on_from_every_source(flights: Any, unbroken: list[float], target: str) -> None:
    """From the middle of an epoch and from its end; the next five updates agree with an unbroken run's."""
    world = "ddp-2" if target == "torchrun" else target
    per_epoch = len(unbroken) // 2
    starts = {}
    for i, source in enumerate(SOURCES):
        # Every start of torchrun takes its time: from two sources in the middle, from two at the end.
        for update in (5, per_epoch) if target != "torchrun" else ((5, per_epoch)[i % 2],):
            name = f"{source}-{update}-{target}"
            path = f"checkpoints/from-{source}/step-{update:08d}"
            resume = {"policy": "required", "checkpoint_path": path}
            flights.train_config(model_name=name, **fields(world, global_training__resume=resume))
            starts[name] = (source, update)
    if target == "torchrun":
        for name in starts:
            run_under_torchrun(flights, name)
    else:
        run_together(world, list(starts), flights, updates=5)
    for name, (source, update) in starts.items():
        following = flights.losses(f"from-{source}")[update : update + 5]
        assert flights.losses(name)[:5] == pytest.approx(following, rel=1e-5), name


def run_under_torchrun(project: Any, name: str) -> None:
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    command += ["-m", "sequifier_ray", "train", "--config-path", f"{project.root}/configs/{name}.yaml"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=200, check=False)
    assert done.returncode == 0, done.stderr
