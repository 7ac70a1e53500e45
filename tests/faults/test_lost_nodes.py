"""Nodes that are lost, found again, or told to leave: a Ray cluster on hosts of their own."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parent))
from conftest import Run, end, n_samples, wait_until
from hosts import child_of, needs_hosts
from ray_hosts import Cluster

pytestmark = needs_hosts()


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Every test leaves it with all its nodes."""
    there = Cluster(
        tmp_path_factory.mktemp("cluster"),
        RAY_GRACEFUL_SHUTDOWN_DRAIN_TIMEOUT_S="8",
        RAY_TRAIN_PREEMPTION_POLL_INTERVAL_S="1",
    )
    there.join(2)
    there.join(3)
    yield there
    there.hosts.close()


def start(cluster: Cluster, run: Run, **variables: str) -> subprocess.Popen[str]:
    """The run's driver on the head."""
    words = cluster.hosts.inside(cluster.head)
    return run.start(
        "--address", cluster.address, within=words, environment={**cluster.environment, **variables}
    )


RARELY = {
    "training_plan__epochs": 1000,
    "global_training__save_interval_batches": 100_000,
    "global_training__save_interval_epochs": 1000,
}


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
    process = start(cluster, run)
    run.wait_for_update(10)
    assert process.poll() is None, end(process)
    legs = run.legs()
    cluster.nodes[3].kill()
    lost_s = time.monotonic()
    run.wait_for_leg(legs)
    print(f"training again {time.monotonic() - lost_s:.1f} s after the node was lost")
    assert list(world_sizes(run).values()) == [2, 1]
    cluster.join(3)
    found_s = time.monotonic()
    run.wait_for_leg(legs + 1)
    print(f"grown {time.monotonic() - found_s:.1f} s after the node was back")
    run.wait_for_update(run.updates() + 10)
    assert list(world_sizes(run).values()) == [2, 1, 2]
    code, out, err = stopped(process)
    assert code == 75, out + err
    check_history(flights, run, fields)


def check_history(project: Any, run: Run, fields: dict[str, Any]) -> None:
    """Every sample once in every whole epoch, and the figures of a run to which nothing happened."""
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

    alone = {
        **fields,
        "model_name": "no-node-lost",
        "training_plan__epochs": epochs,
        "global_training__save_interval_batches": 10_000,
        "global_training__distributed": False,
        "global_training__data_parallelism": ...,
        "global_training__world_size": 1,
        "global_training__batch_size": 32,
    }
    engine.run(project.train_config(**alone), WorkerContext())
    for kind, column, tolerance in (
        ("train", "learning_rate", 1e-9),
        ("validation", "loss", 0.01),
    ):
        found = {line["step"]: line[column] for line in project.metrics(run.name, kind)}
        wanted = {line["step"]: line[column] for line in project.metrics("no-node-lost", kind)}
        common = sorted(found.keys() & wanted.keys())
        assert len(common) == (-(-n_samples(project) // 32) * epochs if kind == "train" else epochs)
        assert [found[step] for step in common] == pytest.approx(
            [wanted[step] for step in common], rel=tolerance
        )


def stopped(process: subprocess.Popen[str]) -> tuple[int, str, str]:
    """Ask a run to stop, and wait for its end."""
    assert process.poll() is None, process.communicate()
    # The process itself only waits for the one that it has put onto the host.
    os.kill(child_of(process), signal.SIGUSR1)
    return end(process)


def saved_update(project: Any, name: str) -> int:
    found = sorted((project.root / "checkpoints" / name).glob("step-*/state.json"))
    return int(json.loads(found[-1].read_text())["update"]) if found else 0


def take_away(node: subprocess.Popen[str]) -> None:
    """What a provider does: SIGTERM to the node's service, which drains it for a while and ends."""
    os.kill(child_of(node), signal.SIGTERM)


def test_told_that_a_node_will_go_a_run_saves_and_ends(
    flights: Any, new_run: Callable[..., Run], cluster: Cluster
) -> None:
    run = new_run("node-leaves", **RARELY)
    process = start(cluster, run)
    run.wait_for_update(10)
    take_away(cluster.nodes[3])
    code, out, err = end(process)
    assert code == 75, out + err
    assert re.search(r"Ray is about to take the node of rank [01] away: saving at the next update", out)
    assert saved_update(flights, run.name) == run.updates()
    cluster.nodes[3].wait(30)
    cluster.join(3)
    process = start(cluster, run)
    run.wait_for_leg(1)
    code, out, err = stopped(process)
    assert code == 75, out + err
    assert "resuming from step" in out
    run.check_ledger(max(line["epoch"] for line in run.lines()), n_samples(flights))


def test_told_that_a_node_will_go_an_elastic_run_saves_and_goes_on(
    flights: Any, new_run: Callable[..., Run], cluster: Cluster
) -> None:
    run = new_run("node-leaves-elastic", ray__min_world_size=1, **RARELY)
    process = start(cluster, run)
    run.wait_for_update(10)
    take_away(cluster.nodes[3])
    wait_until(lambda: saved_update(flights, run.name) > 0, 120)
    saved = saved_update(flights, run.name)
    run.wait_for_leg(1)
    cluster.join(3)
    code, out, err = stopped(process)
    assert code == 75, out + err
    assert list(world_sizes(run).values())[:2] == [2, 1]
    assert f"resuming from step {saved} " in out
    run.check_ledger(max(line["epoch"] for line in run.lines()), n_samples(flights))


def test_a_node_that_never_comes_back_ends_a_run_that_needs_it(
    flights: Any, new_run: Callable[..., Run], cluster: Cluster
) -> None:
    run = new_run("node-gone", ray__resource_timeout_s=10.0, **RARELY)
    process = start(cluster, run, RAY_TRAIN_WORKER_GROUP_START_TIMEOUT_S="12")
    run.wait_for_update(10)
    cluster.nodes[3].kill()
    code, out, err = end(process, 300)
    cluster.join(3)
    assert code == 4, out + err
    assert "error: the Ray cluster lacks resources: world_size 2 needs 2 CPU (there: 1)" in err
