"""Runs in processes of their own, and the ledger of the samples that they applied."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from hosts import wait_until

SMALL: dict[str, Any] = {
    "training_plan__epochs": 2,
    "evaluation": False,
    "global_training__batch_size": 16,
    "global_training__save_interval_batches": 4,
    "global_training__resume__policy": "if_exists",
}


@dataclass
class Run:
    """One run of a model and all its starts."""

    project: Any
    name: str
    processes: list[subprocess.Popen[str]] = field(default_factory=list)

    @property
    def ledger(self) -> Path:
        return Path(self.project.root) / "ledgers" / self.name

    def start(
        self,
        *options: str,
        launcher: str = "ray",
        torchrun: tuple[str, ...] = (),
        within: Sequence[str] = (),
        environment: Mapping[str, str] = os.environ,
    ) -> subprocess.Popen[str]:
        """Begin in a process of its own; ``within`` are words before the command."""
        command = [*within, sys.executable]
        if torchrun:
            command += ["-m", "torch.distributed.run", *torchrun]
            launcher = "torchrun"
        path = self.project.root / "configs" / f"{self.name}.yaml"
        command += [
            "-m",
            "sequifier_ray",
            "train",
            "--config-path",
            str(path),
            "--launcher",
            launcher,
            *options,
        ]
        process = subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**environment, "OMP_NUM_THREADS": "1", "SEQUIFIER_RAY_LEDGER": str(self.ledger)},
            start_new_session=True,
        )
        self.processes.append(process)
        return process

    def wait_for_update(self, update: int) -> None:
        """Until some rank has applied this update, or the run has ended."""
        process = self.processes[-1]
        wait_until(lambda: self.updates() >= update or process.poll() is not None)

    def wait_for_leg(self, earlier: int) -> None:
        """Until more than so many legs have applied something, or the run has ended."""
        process = self.processes[-1]
        wait_until(lambda: self.legs() > earlier or process.poll() is not None)

    def updates(self) -> int:
        """The newest update that any rank has applied."""
        return max((line["update"] for line in self.lines()), default=0)

    def lines(self) -> list[dict[str, Any]]:
        found = []
        for path in self.ledger.glob("*.jsonl"):
            for line in path.read_text().splitlines(keepends=True):
                if line.endswith("\n"):
                    found.append(json.loads(line))
        return found

    def surviving(self) -> list[dict[str, Any]]:
        """Lines of the history that survives: of each update those of the last leg that applied it."""
        lines = self.lines()
        last: dict[int, int] = {}
        for line in lines:
            last[line["update"]] = max(last.get(line["update"], 0), line["leg"])
        return [line for line in lines if line["leg"] == last[line["update"]]]

    def check_ledger(self, epochs: int, n_samples: int) -> None:
        """Every sample exactly once in every epoch, and every update by one leg only."""
        for epoch in range(epochs):
            counts = Counter(
                position
                for line in self.surviving()
                if line["epoch"] == epoch
                for position, is_real in zip(line["positions"], line["is_real"], strict=True)
                if is_real
            )
            assert sorted(counts) == list(range(n_samples)), f"epoch {epoch}"
            assert set(counts.values()) == {1}, f"epoch {epoch}"

    def pid_of(self, rank: int) -> int:
        """The process that is this rank now."""
        newest = max(self.ledger.glob(f"*-{rank}.jsonl"), key=lambda path: int(path.name.split("-")[0]))
        return int(newest.name.split("-")[1])

    def legs(self) -> int:
        return len({line["leg"] for line in self.lines()})


@pytest.fixture
def new_run(flights: Any) -> Iterator[Callable[..., Run]]:
    """Make a run of a model name of its own; whatever is left of its processes ends with the test."""
    runs = []

    def make(name: str, **fields: Any) -> Run:
        flights.train_config(model_name=name, **{**SMALL, **fields})
        runs.append(Run(flights, name))
        return runs[-1]

    yield make
    for run in runs:
        # torchrun's ranks have sessions of their own.
        pattern = f"sequifier_ray train --config-path {run.project.root}/configs/{run.name}.yaml"
        subprocess.run(["pkill", "-9", "-f", pattern], check=False)
        for process in run.processes:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()


def end(process: subprocess.Popen[str], timeout_s: float = 300) -> tuple[int, str, str]:
    out, err = process.communicate(timeout=timeout_s)
    return process.returncode, out, err


def weights(project: Any, name: str) -> dict[str, Any]:
    from safetensors.torch import load_file

    found: dict[str, Any] = load_file(project.root / "models" / f"{name}-last" / "model.safetensors")
    return found


def n_samples(project: Any) -> int:
    from sequifier_ray.data.loader import SplitDataset
    from sequifier_ray.data.windows import ViewSpec

    path = str(project.root / "data" / "flights-split0")
    return SplitDataset(path, ViewSpec(33, 8, 1, 32, 1), ("dest",), ("dest",), 32).n_samples
