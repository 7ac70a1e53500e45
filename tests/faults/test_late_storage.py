"""Checkpoint storage on which every node sees the others' files late, as on NFS."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from sequifier_ray.launch.choose import train

RANKS = Path(__file__).parents[1] / "train" / "engine_ranks.py"
LATE_S = 20
pytestmark = pytest.mark.skipif(
    os.geteuid() != 0 or not shutil.which("bindfs") or not Path("/dev/fuse").exists(),
    reason="needs root, bindfs and /dev/fuse for storage that is seen late",
)


def run_two_nodes(
    project: Any, place: Path, name: str, leg: int, updates: int
) -> list[subprocess.CompletedProcess[str]]:
    """Two ranks, each with a view of ``place`` of its own, which remembers for a while what was not there."""
    options = f"entry_timeout={LATE_S},negative_timeout={LATE_S},attr_timeout={LATE_S}"
    script = f"""
        bindfs -o {options} {place}-kept {place} || exit 9
        # A look at every name that a checkpoint could have makes the view remember that it is not there.
        for i in $(seq 0 60); do
            step=$(printf {place}/{name}/step-%08d $i)
            stat $step $step.partial >/dev/null 2>&1
        done
        "$@"
        code=$?
        umount -l {place}
        exit $code
    """
    config = f"{project.root}/configs/{name}.yaml"
    store = project.root / f"store-{name}-{leg}"
    ranks = [
        subprocess.Popen(
            [
                *("unshare", "--mount", "--", "bash", "-c", script, "node", sys.executable, str(RANKS)),
                *(str(rank), "2", str(store), str(updates), config),
            ],
            env={**os.environ, "OMP_NUM_THREADS": "1"},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    try:
        outputs = [rank.communicate(timeout=300) for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
    return [
        subprocess.CompletedProcess(rank.args, rank.returncode, *output)
        for rank, output in zip(ranks, outputs, strict=True)
    ]


def test_ranks_that_see_storage_late_neither_wait_for_ever_nor_disagree(new_project: Any) -> None:
    flights = new_project(200)
    flights.preprocess()
    place = flights.root / "checkpoints"
    place.mkdir()
    Path(f"{place}-kept").mkdir()
    fields = {
        "model_name": "late",
        "evaluation": False,
        "global_training__data_parallelism": "fsdp",
        "global_training__fsdp_cpu_offload": False,
        "global_training__save_interval_batches": 3,
        "global_training__batch_size": 48,
        "global_training__resume__policy": "if_exists",
    }
    flights.train_config(**fields)
    for leg, updates in enumerate((4, 10**9)):
        for done in run_two_nodes(flights, place, "late", leg, updates):
            assert done.returncode == 0, done.stderr
    # The same without a break, on a folder that is seen at once.
    assert train(flights.train_config(**{**fields, "model_name": "not-late"}), "spawn", None) == 0
    assert flights.losses("late") == pytest.approx(flights.losses("not-late"), rel=1e-5)
