"""Nodes that are lost, found again, or told to leave: a Ray cluster on hosts of their own."""

from __future__ import annotations

import os
import secrets
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parents[1] / "train"), str(Path(__file__).parents[1])]
from conftest import Run, end, n_samples, wait_until
from hosts import Hosts, address, child_of, needs_hosts

pytestmark = needs_hosts()


class Cluster:
    """A head without CPUs on host 1, a worker node with one CPU on every other host."""

    def __init__(self, folder: Path) -> None:
        self.hosts = Hosts(3, folder)
        self._folder = folder
        (folder / "token").write_text(secrets.token_hex(32))
        (folder / "token").chmod(0o600)
        self.environment = {
            **os.environ,
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
            "RAY_AUTH_MODE": "token",
            "RAY_AUTH_TOKEN_PATH": str(folder / "token"),
            "RAY_USAGE_STATS_ENABLED": "0",
            "RAY_GRACEFUL_SHUTDOWN_DRAIN_TIMEOUT_S": "15",
            "RAY_TRAIN_PREEMPTION_POLL_INTERVAL_S": "1",
        }
        self.address = f"{address(1)}:6379"
        self.head = self._boot(1, "--head", "--port=6379", "--num-cpus=0", "--include-dashboard=false")
        wait_until(self._answers)
        self.nodes = {number: self.join(number) for number in (2, 3)}

    def join(self, number: int) -> subprocess.Popen[str]:
        return self._boot(number, f"--address={self.address}", "--num-cpus=1")

    def _boot(self, number: int, *words: str) -> subprocess.Popen[str]:
        command = ["ray", "start", "--block", f"--node-ip-address={address(number)}", *words]
        command += ["--object-store-memory=100000000"]
        return self.hosts.boot(number, command, self.environment, self._folder / f"node{number}.log")

    def _answers(self) -> bool:
        probe = [sys.executable, "-c", f"import socket; socket.create_connection(('{address(1)}', 6379), 1)"]
        try:
            words = self.hosts.inside(self.head)
        except (IndexError, FileNotFoundError):
            return False
        return subprocess.run([*words, *probe], capture_output=True, check=False).returncode == 0

    def start(self, run: Run) -> subprocess.Popen[str]:
        words = self.hosts.inside(self.head)
        return run.start("--address", self.address, within=words, environment=self.environment)


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    there = Cluster(tmp_path)
    yield there
    there.hosts.close()


def world_sizes(run: Run) -> dict[int, int]:
    """Of every leg, in order, how many ranks applied its updates."""
    ranks: dict[int, set[int]] = {}
    for line in run.lines():
        ranks.setdefault(line["leg"], set()).add(line["rank"])
    return {leg: len(ranks[leg]) for leg in sorted(ranks)}


def test_a_node_is_lost_and_found(flights: Any, new_run: Callable[..., Run], cluster: Cluster) -> None:
    fields = {
        "training_plan__epochs": 1000,
        "evaluation": True,
        # Slow: so that an unbroken run to the same update takes little beside this one.
        "global_training__save_interval_batches": 1,
        "global_training__scheduler": {"name": "StepLR", "step_size": 10, "gamma": 0.99},
        "global_training__scheduler_step_on": "batch",
    }
    run = new_run("node-lost", ray__min_world_size=1, **fields)
    process = cluster.start(run)
    run.wait_for_update(10)
    assert process.poll() is None, end(process)
    legs = run.legs()
    cluster.nodes[3].kill()
    lost_s = time.monotonic()
    run.wait_for_leg(legs)
    print(f"training again {time.monotonic() - lost_s:.1f} s after the node was lost")
    assert list(world_sizes(run).values()) == [2, 1]
    cluster.nodes[3] = cluster.join(3)
    found_s = time.monotonic()
    run.wait_for_leg(legs + 1)
    print(f"grown {time.monotonic() - found_s:.1f} s after the node was back")
    run.wait_for_update(run.updates() + 10)
    assert list(world_sizes(run).values()) == [2, 1, 2]
    # The process itself only waits for the one that it has put onto the host.
    os.kill(child_of(process), signal.SIGUSR1)
    code, out, err = end(process)
    assert code == 75, out + err
    check_history(flights, run, fields)


def check_history(project: Any, run: Run, fields: dict[str, Any]) -> None:
    """Every sample once in every whole epoch, and the figures of a run to which nothing happened."""
    from test_resume import ONE, stop_after

    from sequifier_ray.train import engine
    from sequifier_ray.train.worker import WorkerContext

    last = run.updates()
    epochs = max(line["epoch"] for line in run.lines())
    assert epochs >= 1
    run.check_ledger(epochs, n_samples(project))
    per_update = Counter[int]()
    for line in run.surviving():
        per_update[line["update"]] += sum(line["is_real"])
    by_size = Counter(per_update[update] for update in range(1, last + 1))
    assert set(by_size) <= {32, n_samples(project) % 32}, "samples per update stay"

    fields = {**fields, "global_training__save_interval_batches": 10_000, "global_training__batch_size": 32}
    fields = {**ONE, **fields, "model_name": "no-node-lost", "evaluation": True}
    engine.run(project.train_config(**fields), WorkerContext(stop_requested=stop_after(last + 3 * epochs)))
    for kind, column, tolerance in (
        ("train", "learning_rate", 1e-9),
        ("validation", "loss", 0.01),
    ):
        found = {line["step"]: line[column] for line in project.metrics(run.name, kind)}
        wanted = {line["step"]: line[column] for line in project.metrics("no-node-lost", kind)}
        common = sorted(found.keys() & wanted.keys())
        assert len(common) >= (last - 1 if kind == "train" else epochs - 1)
        assert [found[step] for step in common] == pytest.approx(
            [wanted[step] for step in common], rel=tolerance
        )
