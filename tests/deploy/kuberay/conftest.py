"""Modules of this folder can be imported; the jobs of the base, and what they need to run here."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

sys.path.insert(0, str(Path(__file__).parent))
from local_pods import Pods

BASE = Path(__file__).parents[3] / "deploy" / "kuberay" / "base"


@pytest.fixture(scope="session")
def jobs() -> dict[str, dict[str, Any]]:
    """The RayJobs of the base, by the step they are for."""
    paths = sorted(BASE.glob("rayjob-*.yaml"))
    return {path.stem.removeprefix("rayjob-"): yaml.safe_load(path.read_text()) for path in paths}


@pytest.fixture(scope="module")
def claim(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A project as it lies on the claim: that of ``make --demo``, with fewer flights."""
    import polars as pl

    from sequifier_ray.project import make_project

    folder = tmp_path_factory.mktemp("claim") / "project"
    make_project(str(folder), demo=True)
    table = folder / "data" / "flights.parquet"
    flights = pl.read_parquet(table)
    flights.filter(
        pl.col("sequenceId").is_in(flights["sequenceId"].unique().sort().head(200).implode())
    ).write_parquet(table)
    return folder


@pytest.fixture(scope="module")
def pods(jobs: dict[str, dict[str, Any]], claim: Path) -> Iterator[Pods]:
    temp = Path(f"/tmp/sqr-k-{os.getpid()}")  # short: Ray's sockets have to fit into 107 characters
    pods = Pods(claim, temp)
    try:
        pods.start(jobs["train"]["spec"]["rayClusterSpec"])
        yield pods
    finally:
        pods.stop()
