"""One Slurm and one demo project for all tests of jobs."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from slurm_bed import Bed, lacking

from sequifier_ray.cli import main


@pytest.fixture(scope="session")
def running_bed() -> Iterator[Bed]:
    """Three nodes of two CPUs."""
    if (lack := lacking()) is not None:
        pytest.skip(f"Slurm tests: {lack}")
    running = Bed(3)
    try:
        running.start()
        yield running
    finally:
        running.stop()


@pytest.fixture
def bed(running_bed: Bed) -> Iterator[Bed]:
    """The Slurm, without jobs of other tests."""
    yield running_bed
    running_bed.cancel_jobs()


@pytest.fixture(scope="session")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The demo project, preprocessed."""
    root = tmp_path_factory.mktemp("slurm") / "demo"
    with pytest.MonkeyPatch.context() as patch:
        assert main(["make", str(root), "--demo"]) == 0
        patch.chdir(root)
        assert main(["preprocess"]) == 0
    return root
