"""A project in Google's or Azure's object store, each a stand-in on this machine: as with S3."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from typing import Any

import pytest
from cloud_stores import azure_server, google_server
from stored_project import Stored

from sequifier_ray import storage
from sequifier_ray.data.metadata import read_description
from sequifier_ray.launch.choose import train


@pytest.fixture(scope="module", params=[google_server, azure_server], ids=["gs", "abfss"])
def stored(request: Any, flights: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stored]:
    """Preprocessed into the store."""
    environment = pytest.MonkeyPatch()
    log = tmp_path_factory.mktemp("store") / "requests"
    try:
        with request.param(environment, "bucket", log) as address:
            there = Stored(f"{address}/pro ject", flights, log)
            there.preprocess()
            yield there
    finally:
        environment.undo()


def test_shards_are_those_of_a_local_run(flights: Any, stored: Stored) -> None:
    description = read_description(f"{stored.root}/configs/metadata_configs/flights.json")
    for split, path in enumerate(description.split_paths):
        here = flights.root / "data" / f"flights-split{split}"
        names = sorted(p.name for p in here.glob("*.pt"))
        assert names == [n for n in storage.list_names(f"{stored.root}/{path}") if n != "metadata.json"]
        for name in names:
            assert storage.read_bytes(f"{stored.root}/{path}/{name}") == (here / name).read_bytes()


def test_killed_it_goes_on(flights: Any, stored: Stored) -> None:
    name = f"in-{stored.root.partition(':')[0]}"
    kind = {"global_training.data_parallelism": "fsdp", "global_training.fsdp_cpu_offload": False}
    config = stored.train_yaml(name, **kind)
    process = stored.command("train", config, "--launcher", "spawn")
    steps = f"{stored.root}/checkpoints/{name}"
    deadline_s = time.monotonic() + 240
    while not storage.exists(f"{steps}/step-00000030/state.json"):
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline_s
        time.sleep(0.1)
    os.killpg(process.pid, signal.SIGKILL)
    process.communicate()
    code, out, err = stored.run("train", config, "--launcher", "spawn")
    assert code == 0, err
    assert "resuming from step" in out
    assert storage.exists(stored.figures(name)["models"]["last"] + "/model.safetensors")
    here = flights.train_config(
        model_name=f"{name}-here", training_plan__epochs=2, global_training__batch_size=16
    )
    assert train(here, "spawn", None) == 0
    assert stored.losses(name) == pytest.approx(flights.losses(f"{name}-here"), rel=1e-4)
