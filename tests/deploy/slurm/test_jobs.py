"""The shipped batch scripts, in a real Slurm whose nodes have network namespaces of their own."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

SCRIPTS = Path(__file__).parents[3] / "deploy" / "slurm"
RAY, TORCHRUN = str(SCRIPTS / "train-ray.sbatch"), str(SCRIPTS / "train-torchrun.sbatch")
FOLDERS = Path(f"/tmp/sqr-{os.getuid()}")


def _settings(name: str, epochs: int) -> list[str]:
    return ["configs/train.yaml", "--set", f"model_name={name}", "--set", f"training_plan.epochs={epochs}"]


def _losses(project: Path, name: str) -> dict[int, float]:
    lines = (project / "logs" / name / "metrics.jsonl").read_text().splitlines()
    return {line["step"]: line["loss"] for line in map(json.loads, lines) if line["kind"] == "train"}


def _ports(log: str) -> set[int]:
    found = re.search(r"ports (\d+) to (\d+)", log)
    assert found is not None, log
    return set(range(int(found.group(1)), int(found.group(2)) + 1))


def _tokens(number: int) -> dict[str, str]:
    """A job's token files, with their texts; each must be its owner's alone."""
    paths = list(FOLDERS.glob(f"{number}-*/token"))
    assert [path for path in paths if stat.S_IMODE(path.stat().st_mode) != 0o600] == []
    return {path.parent.name: path.read_text() for path in paths}


def test_a_torchrun_job_saves_on_the_warning_and_goes_on_in_the_queue(bed: Any, demo: Path) -> None:
    job = bed.submit(demo, "--nodes=2", TORCHRUN, *_settings("torchrun", 1))
    job.wait_for_log("no checkpoint to resume from", 240)
    job.signal("USR1")
    job.start_again()
    assert job.end(240) == ("COMPLETED", "0:0"), job.log
    assert "stopped on request" in job.log
    assert "start 2 of this job: goes on from its newest checkpoint" in job.log
    assert "resuming from step" in job.log
    assert "Traceback" not in job.log
    assert job.field("Restarts") == "1"
    assert re.search(
        r"torchrun on node1: 2 CPUs 0 GPUs, node2: 2 CPUs 0 GPUs; head node1 at 10\.77\.0\.11", job.log
    )
    assert max(_losses(demo, "torchrun")) == 51
    assert bed.processes() == {}
    assert not FOLDERS.exists()


def test_a_job_whose_starts_save_nothing_leaves_the_queue(bed: Any, demo: Path) -> None:
    job = bed.submit(demo, "--nodes=1", RAY, *_settings("idle", 1))
    job.wait_for_log("slurm: ray on node1", 240)
    job.signal("USR1")
    job.wait_for_log(r"putting the job back in the queue \(so far 0 times\)", 240)
    job.start_again()
    job.wait_for_log("(?s)start 2 of this job: it has no checkpoint yet.*slurm: ray on node", 240)
    job.signal("USR1")
    assert job.end(240) == ("FAILED", "75:0"), job.log
    assert "2 starts in a row have saved nothing new, so not put back in the queue" in job.log
    assert job.field("Restarts") == "1"


@pytest.mark.timeout(900)
def test_two_ray_jobs_on_the_same_nodes_do_not_meet_and_one_goes_back_into_the_queue(
    bed: Any, demo: Path, tmp_path: Path
) -> None:
    stopped = bed.submit(
        demo, "--nodes=2", "--nodelist=node1,node2", "--cpus-per-task=1", RAY, *_settings("stopped", 1)
    )
    lasting = bed.submit(
        demo, "--nodes=2", "--nodelist=node1,node2", "--cpus-per-task=1", RAY, *_settings("lasting", 2)
    )
    for job in (stopped, lasting):
        job.wait_for_log("the Ray cluster of 2 nodes is up", 240)
    tokens = [_tokens(job.number) for job in (stopped, lasting)]
    assert [sorted(found) for found in tokens] == [
        [f"{job.number}-{place}" for place in ("0", "1", "batch")] for job in (stopped, lasting)
    ]
    assert len({text for found in tokens for text in found.values()}) == 2
    assert _ports(stopped.log).isdisjoint(_ports(lasting.log))
    _check_that_tokens_stay_in_files(bed, tokens[0][f"{stopped.number}-0"])
    _check_that_a_token_is_wanted(bed, min(_ports(lasting.log)), tmp_path)
    stopped.wait_for_log("no checkpoint to resume from", 240)
    stopped.signal("USR1")
    stopped.start_again()
    stopped.wait_for_log("start 2 of this job", 240)
    # What the one took down was its own.
    assert lasting.end(240) == ("COMPLETED", "0:0"), lasting.log
    assert "has left the Ray cluster" not in lasting.log
    assert stopped.end(240) == ("COMPLETED", "0:0"), stopped.log
    assert "resuming from step" in stopped.log
    assert max(_losses(demo, "stopped")) == 51
    assert max(_losses(demo, "lasting")) == 102
    # Stopped and gone on with, or not: the run is the same. A line tells the mean since the one before.
    assert _losses(demo, "stopped")[50] == pytest.approx(_losses(demo, "lasting")[50], rel=1e-3)
    assert bed.processes() == {}
    assert not FOLDERS.exists()


def _check_that_tokens_stay_in_files(bed: Any, token: str) -> None:
    ray = {pid: line for pid, line in bed.processes().items() if "raylet" in line or "gcs_server" in line}
    assert len(ray) >= 4
    for pid in bed.processes():
        for name in ("cmdline", "environ"):
            try:
                text = Path(f"/proc/{pid}/{name}").read_bytes()
            except OSError:
                continue  # it has ended
            assert token.encode() not in text, f"the token is in {name} of {pid}"


def _check_that_a_token_is_wanted(bed: Any, port: int, folder: Path) -> None:
    """Without the job's token nobody gets to know the cluster's nodes."""
    (folder / "token").write_text("0" * 64)
    environment = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": str(folder / "token")}
    words = [sys.executable, "-m", "sequifier_ray.launch.ray_nodes", f"10.77.0.11:{port}", "3", "node1"]
    done = subprocess.run(
        [*bed.hosts.on_bridge(), *words],
        env={**bed.environment, **environment},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 4
    assert "not in the Ray cluster" in done.stderr


@pytest.mark.parametrize("script", [RAY, TORCHRUN])
def test_a_wrong_configuration_ends_with_its_own_code_before_anything_starts(
    bed: Any, demo: Path, script: str
) -> None:
    job = bed.submit(demo, "--nodes=2", script, "configs/train.yaml", "--set", "training_plan.epochs=0")
    assert job.end(240) == ("FAILED", "2:0")
    assert "training_plan.epochs" in job.log
    assert "slurm: " not in job.log


def test_a_rank_s_exit_code_becomes_the_job_s(bed: Any, demo: Path) -> None:
    where = "dataset.part.metadata_config_path=configs/none.json"
    job = bed.submit(demo, "--nodes=2", TORCHRUN, "configs/train.yaml", "--set", where)
    assert job.end(240) == ("FAILED", "3:0"), job.log
    assert "configs/none.json" in job.log
    assert bed.processes() == {}


def test_a_node_s_process_that_is_killed_takes_its_ranks_along(bed: Any, demo: Path) -> None:
    job = bed.submit(demo, "--nodes=2", TORCHRUN, *_settings("orphaned", 500))
    job.wait_for_log("no checkpoint to resume from", 240)
    on_node2 = {pid: line for pid, line in bed.processes().items() if pid in bed.hosts.pids(2)}
    [node] = [pid for pid, line in on_node2.items() if "slurm.node" in line and "srun" not in line]
    os.kill(node, signal.SIGKILL)
    assert job.end(240) == ("FAILED", "4:0"), job.log
    assert "stopped on request at step" in job.log
    assert "Traceback" not in job.log
    assert "Logging error" not in job.log
    assert bed.processes() == {}
    shutil.rmtree(FOLDERS, ignore_errors=True)  # nobody was left to remove the node's


def test_more_processes_than_the_job_has_room_for(bed: Any, demo: Path) -> None:
    many = bed.submit(demo, "--nodes=2", RAY, "configs/train.yaml", "--set", "global_training.world_size=6")
    uneven = bed.submit(
        demo, "--nodes=2", TORCHRUN, "configs/train.yaml", "--set", "global_training.world_size=3"
    )
    assert many.end(240) == ("FAILED", "4:0")
    assert "6 workers must run" in many.log
    assert "room for 4 (node1: 2 CPUs, 0 GPUs, node2: 2 CPUs, 0 GPUs)" in many.log
    assert uneven.end(240) == ("FAILED", "2:0")
    assert "set a multiple of 2" in uneven.log
    assert "ray start" not in many.log


def test_a_node_that_cannot_be_reached_is_named(bed: Any, demo: Path) -> None:
    bed.set_link("node3", "down")
    try:
        job = bed.submit(demo, "--nodelist=node2,node3", "--nodes=2", RAY, *_settings("cut-off", 1))
        job.wait_for_log("node node3 did not take its part: srun ended there", 240)
    finally:
        # Slurm itself keeps the job until the node answers.
        bed.set_link("node3", "up")
    assert job.end(240) == ("FAILED", "4:0")
    assert "node2 did not" not in job.log


def test_a_node_that_does_not_answer_is_named(bed: Any, demo: Path, tmp_path: Path) -> None:
    impatient = tmp_path / "impatient.sbatch"
    impatient.write_text(Path(RAY).read_text().replace("slurm run ", "slurm run --wait 4 "))
    with bed.silenced("node3"):
        words = ["--nodelist=node2,node3", "--nodes=2", str(impatient), *_settings("silent", 1)]
        job = bed.submit(demo, *words)
        job.wait_for_log(r"after 4 s srun has started nothing on node3 \(of node2, node3\)", 240)
    assert job.end(240) == ("FAILED", "4:0")
