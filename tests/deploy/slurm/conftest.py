"""One Slurm and one demo project for all tests of jobs."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from sequifier_ray.cli import main

# importlib import mode knows no neighbours.
_spec = importlib.util.spec_from_file_location("slurm_bed", Path(__file__).parent / "bed.py")
assert _spec is not None
assert _spec.loader is not None
bed_module = importlib.util.module_from_spec(_spec)
sys.modules["slurm_bed"] = bed_module
_spec.loader.exec_module(bed_module)


@pytest.fixture(scope="session")
def running_bed() -> Iterator[Any]:
    """Three nodes of two CPUs."""
    if (lack := bed_module.lacking()) is not None:
        pytest.skip(f"Slurm tests: {lack}")
    running = bed_module.Bed(3)
    try:
        running.start()
        yield running
    finally:
        running.stop()


@pytest.fixture
def bed(running_bed: Any) -> Iterator[Any]:
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
