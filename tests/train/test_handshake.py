"""Before the first update: one version, one configuration, one storage, on all ranks; what differs is
named."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

import pytest

from sequifier_ray.errors import ClusterError
from sequifier_ray.train.handshake import Witness, _agree_on_versions

VERSIONS = {"sequifier-ray": "1", "Python": "3.11.7", "torch": "2.13.0", "Ray": "2.60.0"}


def test_versions_that_differ_are_named() -> None:
    lead = Witness("node1", VERSIONS, "digest", None, None)
    _agree_on_versions([lead, Witness("node2", VERSIONS, "digest", None, None)])
    other = Witness("node2", {**VERSIONS, "torch": "2.12.1"}, "digest", None, None)
    with pytest.raises(ClusterError) as caught:
        _agree_on_versions([lead, lead, other])
    assert str(caught.value) == (
        "rank 2 on node node2 runs torch 2.12.1, and rank 0 on node node1 runs 2.13.0; install the same "
        "versions on all nodes"
    )
    with pytest.raises(
        ClusterError, match="rank 1 on node node2 has another configuration than rank 0 on node"
    ):
        _agree_on_versions([lead, Witness("node2", VERSIONS, "other", None, None)])


BLIND = """
import sys
from sequifier_ray import storage
from sequifier_ray.launch import torchrun
from sequifier_ray.cli import main
import os
if os.environ["RANK"] == "1":
    # this node mounts another folder under the same path: what rank 0 writes does not appear
    exists = storage.exists
    storage.exists = lambda path: False if ".token-" in path else exists(path)
from sequifier_ray.launch.ranks import leave
leave(main(sys.argv[1:]))
"""


def test_storage_that_is_not_shared_is_named(flights: Any, tmp_path: Any) -> None:
    flights.train_config(model_name="blind", global_training__collective_timeout_s=6.0)
    script = tmp_path / "blind.py"
    script.write_text(BLIND)
    config = flights.root / "configs" / "blind.yaml"
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    command += [str(script), "train", "--config-path", str(config)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, env=environment, check=False)
    assert done.returncode != 0
    assert done.stderr.count("error: rank 1 on node ") == 1
    assert "does not see what rank 0 on node " in done.stderr
    assert f"writes to {flights.root}/checkpoints/blind: it is not the same folder on both" in done.stderr
    assert not list((flights.root / "checkpoints" / "blind").glob(".token-*"))


def test_the_token_is_taken_away(flights: Any) -> None:
    from sequifier_ray.launch.choose import train

    config = flights.train_config(model_name="token", evaluation=False, training_plan__epochs=1)
    assert train(config, "spawn", None) == 0
    assert not list((flights.root / "checkpoints" / "token").glob(".token-*"))
    assert json.loads((flights.root / "logs" / "token" / "summary.json").read_text())["world_size"] == 2
