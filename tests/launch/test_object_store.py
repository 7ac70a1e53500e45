"""A project that lies in an object store altogether: data, shards, checkpoints, models, figures."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from typing import Any

import pytest
from s3 import s3_server
from stored_project import Stored

from sequifier_ray import storage
from sequifier_ray.data.metadata import read_description
from sequifier_ray.inspection.run import inspect
from sequifier_ray.launch.choose import train

ROOT = "s3://bucket/project"


@pytest.fixture(scope="module")
def stored(flights: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stored]:
    """Preprocessed into the store."""
    environment = pytest.MonkeyPatch()
    log = tmp_path_factory.mktemp("s3") / "requests"
    with s3_server(environment, "bucket", log):
        there = Stored(ROOT, flights, log)
        there.preprocess()
        yield there
    environment.undo()


def description() -> Any:
    return read_description(f"{ROOT}/configs/metadata_configs/flights.json")


def test_shards_are_those_of_a_local_run(flights: Any, stored: Stored) -> None:
    for split, path in enumerate(description().split_paths):
        here = flights.root / "data" / f"flights-split{split}"
        names = sorted(p.name for p in here.glob("*.pt"))
        assert names == [n for n in storage.list_names(f"{ROOT}/{path}") if n != "metadata.json"]
        for name in names:
            assert storage.read_bytes(f"{ROOT}/{path}/{name}") == (here / name).read_bytes()


@pytest.mark.parametrize("root", [ROOT, "s3://bucket//project/"])
def test_what_is_stored_can_be_inspected(stored: Stored, root: str) -> None:
    path = f"{root}/configs/metadata_configs/flights.json"
    splits = inspect(path, None, {}, None, verify=True, report=lambda line: None)
    assert [(split.files, split.verified) for split in splits] == [(8, True)] * 2


def test_other_settings_replace_the_earlier_shards(stored: Stored) -> None:
    before = description().split_paths
    config = stored.local.root / "configs" / "stored.yaml"
    code, _, err = stored.run("preprocess", config, "--set", "window_stride=4")
    assert code == 0, err
    after = description().split_paths
    assert before != after
    assert not storage.exists(f"{ROOT}/{before[0]}")
    # A run that fails leaves what is there.
    assert stored.run("preprocess", config, "--set", "selected_columns=[nothing]")[0] == 2
    assert description().split_paths == after
    assert storage.exists(f"{ROOT}/{after[0]}/metadata.json")
    # Another run never writes to a folder that one before it has published.
    assert stored.run("preprocess", config)[0] == 0
    assert description().split_paths not in (before, after)
    assert not storage.exists(f"{ROOT}/{after[0]}")


@pytest.fixture(scope="module")
def unbroken(flights: Any) -> list[float]:
    """Losses of the same run on the file system, to which nothing happens."""
    fields = {"model_name": "not-stored", "training_plan__epochs": 2, "global_training__batch_size": 16}
    assert train(flights.train_config(**fields), "spawn", None) == 0
    losses: list[float] = flights.losses("not-stored")
    return losses


@pytest.mark.parametrize("launcher", ["spawn", "ray"])
def test_killed_and_truncated_it_goes_on(stored: Stored, unbroken: list[float], launcher: str) -> None:
    name = f"stored-{launcher}"
    kind = {"global_training.data_parallelism": "fsdp", "global_training.fsdp_cpu_offload": False}
    config = stored.train_yaml(name, **(kind if launcher == "spawn" else {}))
    process = stored.command("train", config, "--launcher", launcher)
    steps = f"{ROOT}/checkpoints/{name}"
    deadline_s = time.monotonic() + 240
    while not storage.exists(f"{steps}/step-00000030/state.json"):
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline_s
        time.sleep(0.1)
    os.killpg(process.pid, signal.SIGKILL)
    process.communicate()
    newest = max(n for n in storage.list_names(steps) if storage.exists(f"{steps}/{n}/state.json"))
    shard = next(n for n in storage.list_names(f"{steps}/{newest}") if n.endswith(".distcp"))
    storage.write_atomic(f"{steps}/{newest}/{shard}", storage.read_bytes(f"{steps}/{newest}/{shard}")[:-100])
    code, out, err = stored.run("train", config, "--launcher", launcher)
    assert code == 0, err
    assert f"{newest} is passed over: " in err
    assert "resuming from step" in out
    summary = stored.figures(name)
    assert storage.exists(summary["models"]["last"] + "/model.safetensors")
    assert stored.losses(name) == pytest.approx(unbroken, rel=1e-4)


def test_each_shard_is_fetched_once_for_all_ranks_and_epochs(stored: Stored) -> None:
    before = len(stored.log.read_text())
    config = stored.train_yaml(
        "fetched", **{"global_training.shard_cache_path": str(stored.log.parent / "c")}
    )
    code, _, err = stored.run("train", config, "--launcher", "spawn")
    assert code == 0, err
    requests = stored.log.read_text()[before:].splitlines()
    for split, path in enumerate(description().split_paths):
        for shard in storage.list_names(f"{ROOT}/{path}"):
            if shard.endswith(".pt"):
                n_fetched = sum(f"GET /bucket/project/{path}/{shard}" in line for line in requests)
                assert n_fetched == 1, (split, shard)
