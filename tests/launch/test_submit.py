"""Jobs on a cluster that wants a token, sent from a folder that has the configuration files only."""

from __future__ import annotations

import json
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

BIN = Path(sys.executable).parent


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@dataclass
class Head:
    dashboard: str
    environment: dict[str, str]

    def run(self, folder: Path, *words: str, signal_after: Any = None) -> tuple[int, str, str]:
        process = subprocess.Popen(
            words, cwd=folder, env=self.environment, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
        try:
            if signal_after is not None:
                signal_after(process)
                process.send_signal(signal.SIGTERM)
            out, err = process.communicate(timeout=300)
        finally:
            process.kill()
        return process.returncode, out, err

    def submit(self, folder: Path, *words: str, **more: Any) -> tuple[int, str, str]:
        command = [str(BIN / "sequifier-ray"), "submit", "--address", self.dashboard, "--", *words]
        return self.run(folder, *command, **more)


@pytest.fixture(scope="module")
def head() -> Iterator[Head]:
    """A Ray head with two CPUs that wants a token."""
    folder = tempfile.mkdtemp(prefix="sqr", dir="/tmp")
    token = Path(folder) / "token"
    token.write_text(secrets.token_hex(32))
    token.chmod(0o600)
    environment = {
        **{name: value for name, value in os.environ.items() if not name.startswith("RAY_")},
        "PATH": f"{BIN}:{os.environ['PATH']}",
        "RAY_AUTH_TOKEN_PATH": str(token),
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_GRACEFUL_SHUTDOWN_DRAIN_TIMEOUT_S": "0",
        "OMP_NUM_THREADS": "1",
    }
    port = free_port()
    words = ["ray", "start", "--head", "--block", f"--port={free_port()}", "--num-cpus=2"]
    words += [f"--dashboard-port={port}", f"--temp-dir={folder}/r"]
    words += [f"--ray-client-server-port={free_port()}", f"--dashboard-agent-listen-port={free_port()}"]
    words += ["--min-worker-port=0", "--max-worker-port=0"]
    started = subprocess.Popen(
        words,
        env={**environment, "RAY_AUTH_MODE": "token"},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    deadline_s = time.monotonic() + 180
    while True:
        assert time.monotonic() < deadline_s
        assert started.poll() is None
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                break
        time.sleep(0.2)
    yield Head(f"http://127.0.0.1:{port}", environment)
    os.killpg(started.pid, signal.SIGTERM)
    try:
        started.wait(40)
    except subprocess.TimeoutExpired:
        os.killpg(started.pid, signal.SIGKILL)
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
def sent(flights: Any, tmp_path: Path) -> Any:
    """Writes a configuration of a model into a folder of its own, which has nothing else."""

    def write(name: str, **fields: Any) -> Path:
        fields = {"model_name": name, "evaluation": False, **fields}
        source = flights.write_train({k.replace("__", "."): v for k, v in fields.items()}, f"{name}.yaml")
        (tmp_path / "configs").mkdir(exist_ok=True)
        shutil.copy(source, tmp_path / "configs" / "train.yaml")
        return tmp_path

    return write


def test_a_job_runs_and_its_log_and_exit_code_come_back(head: Head, sent: Any, flights: Any) -> None:
    code, out, err = head.submit(sent("submitted"), "train")
    assert code == 0, out + err
    assert "on 2 processes (ray, ddp)" in out
    assert flights.summary("submitted")["status"] == "done"


def test_a_mistake_ends_with_its_own_code(head: Head, sent: Any) -> None:
    folder = sent("mistaken", dataset__part__metadata_config_path="nowhere.json")
    code, out, _ = head.submit(folder, "train")
    assert code == 3
    assert "nowhere.json" in out  # the job's own words: only the cluster has, or lacks, that file


def test_further_files_are_those_of_this_folder(head: Head, sent: Any, flights: Any, tmp_path: Path) -> None:
    """Not those that lie on the cluster under the same name."""
    folder = sent("whole", model_name=..., additional_config_paths="configs/parts/name.yaml")
    (tmp_path / "kept").mkdir()
    (tmp_path / "kept" / "name.yaml").write_text("model_name: of-here\n")
    (folder / "configs" / "parts").symlink_to(tmp_path / "kept")
    (flights.root / "configs" / "parts").mkdir()
    (flights.root / "configs" / "parts" / "name.yaml").write_text("model_name: of-the-cluster\n")
    code, out, err = head.submit(folder, "train", "--config-path", "configs/../configs/train.yaml")
    assert code == 0, out + err
    assert flights.summary("of-here")["status"] == "done"


def test_stopped_it_leaves_a_checkpoint(head: Head, sent: Any, flights: Any) -> None:
    folder = sent("stopped-job", training_plan__epochs=500, global_training__save_interval_epochs=500)

    def wait_for_training(process: subprocess.Popen[str]) -> None:
        figures = flights.root / "logs" / "stopped-job" / "metrics.jsonl"
        deadline_s = time.monotonic() + 240
        while not (figures.exists() and figures.read_text().count("\n") > 5):
            assert process.poll() is None, process.communicate()
            assert time.monotonic() < deadline_s
            time.sleep(0.2)

    code, out, err = head.submit(folder, "train", signal_after=wait_for_training)
    assert code == 75, out + err
    states = sorted((flights.root / "checkpoints" / "stopped-job").glob("step-*/state.json"))
    assert f"stopped on request at step {json.loads(states[-1].read_text())['update']}" in out


def test_rays_own_command_works_as_well(head: Head, sent: Any, flights: Any, tmp_path: Path) -> None:
    sent("by-ray")
    config = str(flights.root / "configs" / "by-ray.yaml")
    (tmp_path / "elsewhere").mkdir()
    environment = {**head.environment, "RAY_AUTH_MODE": "token"}
    words = [str(BIN / "ray"), "job", "submit", "--address", head.dashboard, "--", "sequifier-ray", "train"]
    own = Head(head.dashboard, environment)
    code, out, err = own.run(tmp_path / "elsewhere", *words, "--config-path", config)
    assert code == 0, out + err
    assert flights.summary("by-ray")["status"] == "done"
    code, out, err = own.run(tmp_path / "elsewhere", *words, "--config-path", "nowhere.yaml")
    assert code == 1
    assert "failed with exit code 2" in out + err


def test_a_name_is_for_one_job(head: Head, tmp_path: Path) -> None:
    words = [str(BIN / "sequifier-ray"), "submit", "--address", head.dashboard, "--job-id", "looks"]
    words += ["--", "inspect", "/nowhere.csv"]
    code, out, _ = head.run(tmp_path, *words)
    assert code == 2
    assert out.count("/nowhere.csv") > 1  # in the command, and in what the job says of it
    code, _, err = head.run(tmp_path, *words)
    assert code == 2
    assert err.endswith('\nerror: --job-id: the cluster has a job "looks" already; choose another\n')


def test_another_token_is_refused_in_one_line(head: Head, tmp_path: Path) -> None:
    (tmp_path / "token").write_text(secrets.token_hex(32))
    environment = {**head.environment, "RAY_AUTH_TOKEN_PATH": str(tmp_path / "token")}
    code, _, err = Head(head.dashboard, environment).submit(tmp_path, "inspect", "/nowhere.csv")
    assert code == 4
    assert "Invalid authentication token); check RAY_AUTH_MODE and RAY_AUTH_TOKEN_PATH" in err
    assert err.count("\n") == 1


def test_without_the_token_the_remedy_is_said(head: Head, sent: Any) -> None:
    environment = {k: v for k, v in head.environment.items() if k != "RAY_AUTH_TOKEN_PATH"}
    stranger = Head(head.dashboard, {**environment, "HOME": "/nonexistent"})
    code, _, err = stranger.submit(sent("stranger"), "train")
    assert code == 4, err
    assert "RAY_AUTH_TOKEN_PATH if the cluster wants a token" in err
