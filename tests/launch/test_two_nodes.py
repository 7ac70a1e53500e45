"""Two nodes with a network between them, a shared folder, and a head without CPUs."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hosts import Hosts, address, needs_hosts
from ray_hosts import Cluster

from sequifier_ray.launch.choose import train

pytestmark = needs_hosts()
PACKAGE = Path(__file__).parents[2] / "sequifier_ray"


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    there = Cluster(tmp_path)
    yield there
    there.hosts.close()


@pytest.fixture(scope="module")
def alone(flights: Any) -> list[float]:
    """Losses of one process that takes the same samples."""
    fields = {
        "global_training__distributed": False,
        "global_training__data_parallelism": ...,
        "global_training__world_size": 1,
        "global_training__batch_size": 128,
    }
    assert train(flights.train_config(model_name="one-node", **fields), "local", None) == 0
    losses: list[float] = flights.losses("one-node")
    return losses


def run(cluster: Cluster, project: Any, name: str, **fields: Any) -> subprocess.CompletedProcess[str]:
    project.train_config(model_name=name, global_training__collective_timeout_s=60.0, **fields)
    config = str(project.root / "configs" / f"{name}.yaml")
    words = ["train", "--config-path", config, "--launcher", "ray", "--address", cluster.address]
    return cluster.run([sys.executable, "-m", "sequifier_ray", *words])


def test_ray_on_two_nodes_trains_as_one_process(flights: Any, alone: list[float], cluster: Cluster) -> None:
    cluster.join(2)
    cluster.join(3)
    for kind, offload in (("ddp", ...), ("fsdp", False)):
        name = f"two-nodes-{kind}"
        fields = {
            "global_training__data_parallelism": kind,
            "global_training__fsdp_cpu_offload": offload,
        }
        done = run(cluster, flights, name, **fields)
        assert done.returncode == 0, done.stderr
        assert flights.losses(name) == pytest.approx(alone, rel=1e-4)


def test_a_node_without_the_shared_folder_is_named(flights: Any, cluster: Cluster) -> None:
    cluster.join(2)
    cluster.join(3, hidden=[flights.root])
    done = run(cluster, flights, "not-shared")
    assert done.returncode == 3, done.stdout + done.stderr
    assert "on node node3" in done.stderr
    assert not (flights.root / "logs" / "not-shared" / "metrics.jsonl").exists()


def test_a_node_with_another_version_is_named(flights: Any, cluster: Cluster, tmp_path: Path) -> None:
    other = tmp_path / "other" / "sequifier_ray"
    shutil.copytree(PACKAGE, other)
    (other / "__init__.py").write_text('__version__ = "9.9"\n')
    cluster.join(2)
    cluster.join(3, PYTHONPATH=str(other.parent))
    done = run(cluster, flights, "versions")
    assert done.returncode == 4, done.stdout + done.stderr
    assert "on node node3 runs sequifier-ray 9.9, and rank" in done.stderr or (
        "on node node2 runs sequifier-ray" in done.stderr and "9.9" in done.stderr
    )


def test_torchrun_on_two_nodes_trains_as_one_process(
    flights: Any, alone: list[float], tmp_path: Path
) -> None:
    flights.train_config(model_name="two-nodes-torchrun")
    words = [sys.executable, "-m", "torch.distributed.run", "--nnodes", "2", "--nproc-per-node", "1"]
    words += ["--rdzv-backend", "c10d", "--rdzv-endpoint", f"{address(1)}:29400", "-m", "sequifier_ray"]
    words += ["train", "--config-path", str(flights.root / "configs" / "two-nodes-torchrun.yaml")]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    hosts = Hosts(2, tmp_path)
    try:
        nodes = [hosts.boot(i, words, environment, tmp_path / f"node{i}.log") for i in (1, 2)]
        for node in nodes:
            node.wait(150)
        logs = [(tmp_path / f"node{i}.log").read_text() for i in (1, 2)]
    finally:
        hosts.close()
    assert flights.losses("two-nodes-torchrun") == pytest.approx(alone, rel=1e-4), logs
