"""The jobs' entrypoints, as they stand in the manifests, through the job API of a cluster with a token."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from local_pods import ENDED, JOB_S, Pods, wait


def change_train(claim: Path, epochs: int) -> None:
    """Few updates, and checkpoints between them."""
    path = claim / "configs" / "train.yaml"
    values = yaml.safe_load(path.read_text())
    values["training_plan"]["epochs"] = epochs
    values["global_training"] |= {"batch_size": 256, "save_interval_batches": 2}
    values["evaluation"] = False
    path.write_text(yaml.safe_dump(values))


@pytest.mark.timeout(900)
def test_preprocess_then_train_then_a_retry_that_goes_on(
    pods: Pods, claim: Path, jobs: dict[str, Any]
) -> None:
    preprocess = pods.submit(jobs["preprocess"])
    assert pods.end_of(preprocess) == "SUCCEEDED", pods.logs(preprocess)
    assert (claim / "configs" / "metadata_configs" / "flights.json").exists()

    # Whoever stops a job in mid-training gets a checkpoint; by itself Ray would kill it after 3 s.
    change_train(claim, epochs=500)
    train = pods.submit(jobs["train"])
    steps = claim / "checkpoints" / "demo"
    wait(lambda: any(steps.glob("step-*")) or pods.status(train) in ENDED, JOB_S, "a checkpoint")
    pods.client.stop_job(train)
    assert pods.end_of(train) == "STOPPED", pods.logs(train)
    saved = max(int(path.name.removeprefix("step-")) for path in steps.glob("step-*"))
    assert f"stopped on request at step {saved};" in pods.logs(train), pods.logs(train)

    # The next attempt of the operator submits the same words.
    metrics = (claim / "logs" / "demo" / "metrics.jsonl").read_text().splitlines()
    change_train(claim, epochs=json.loads(metrics[-1])["epoch"] + 2)
    again = pods.submit(jobs["train"])
    assert pods.end_of(again) == "SUCCEEDED", pods.logs(again)
    assert f"resuming from step {saved} " in pods.logs(again), pods.logs(again)
    assert (claim / "models" / "demo-last" / "model.safetensors").exists()
    summary = json.loads((claim / "logs" / "demo" / "summary.json").read_text())
    assert (summary["launcher"], summary["world_size"]) == ("ray", 2)
