"""What a job is made of, without Slurm: words, addresses, ports, folders, signals, exit codes."""

from __future__ import annotations

import json
import os
import signal
import socket
import stat
import subprocess
import sys
import time
from pathlib import Path

import pytest
import typer
import yaml

from sequifier_ray.cli import app, main
from sequifier_ray.deploy.slurm import elastic, network, plan, ray_node
from sequifier_ray.deploy.slurm.allocation import read_allocation
from sequifier_ray.deploy.slurm.signals import StopRequest, catches_stop
from sequifier_ray.deploy.slurm.starts import RESUME, count_idle_starts, go_on
from sequifier_ray.deploy.slurm.task import Task, read_task
from sequifier_ray.errors import ClusterError, ConfigError, DataError

PROGRAM = typer.main.get_command(app)


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The demo's configuration, and the current directory in it."""
    assert main(["make", str(tmp_path / "project"), "--demo"]) == 0
    monkeypatch.chdir(tmp_path / "project")
    return tmp_path / "project"


def test_outside_a_job(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(ConfigError, match=r"SLURM_JOB_ID is not set; submit with `sbatch train-ray\.sbatch"):
        read_allocation({})


@pytest.mark.parametrize(
    ("option", "value"), [("--wait", "nan"), ("--wait", "-1"), ("--wait", "1e9"), ("--max-requeues", "-1")]
)
def test_numbers_that_would_never_end(option: str, value: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["slurm", "run", option, value]) == 2
    assert option in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("", "train --config-path configs/train.yaml"),
        ("configs/train.yaml --set seed=3", "train --config-path configs/train.yaml --set seed=3"),
        ("train --set seed=3", "train --config-path configs/train.yaml --set seed=3"),
        ("--set seed=3 --randomize", "train --config-path configs/train.yaml --set seed=3 --randomize"),
        (
            "preprocess --selected-columns a b --set seed=3",
            "preprocess --config-path configs/preprocess.yaml --selected-columns a b --set seed=3",
        ),
        ("preprocess configs/preprocess.yaml", "preprocess --config-path configs/preprocess.yaml"),
    ],
)
def test_words_after_the_script(words: str, expected: str, project: Path) -> None:
    task = read_task(words.split(), "ray", PROGRAM)
    assert " ".join(task.words) == expected
    assert (task.config is not None) == (task.verb == "train")


@pytest.mark.parametrize(
    ("words", "launcher", "text"),
    [
        ("preprocess", "torchrun", "the torchrun script trains; for `preprocess` submit train-ray.sbatch"),
        ("configs/train.yaml --launcher ray", "ray", "--launcher is not for a Slurm job: the script sets it"),
        ("configs/train.yaml --address=auto", "ray", "--address is not for a Slurm job"),
        ("configs/none.yaml", "ray", "none.yaml"),
        ("preprocess --set window_length=0", "ray", "window_length"),
        ("preprocess --engine ray --set window_length=0", "ray", "window_length"),
        (
            "--set seed=3 configs/other.yaml",
            "ray",
            "configs/other.yaml: a word without an option; write `sbatch",
        ),
        ("configs/train.yaml configs/other.yaml", "ray", "CONFIG first"),
        ("configs/train.yaml --set seed", "ray", '--set: found "seed"'),
    ],
)
def test_words_that_are_refused(words: str, launcher: str, text: str, project: Path) -> None:
    with pytest.raises(ConfigError, match=text):
        read_task(words.split(), launcher, PROGRAM)


def test_an_option_that_the_command_does_not_have_is_refused_before_anything_starts(project: Path) -> None:
    with pytest.raises(typer.TyperException, match="No such option: --epochs"):
        read_task(["configs/train.yaml", "--epochs", "3"], "ray", PROGRAM)


@pytest.fixture
def again(project: Path) -> Task:
    """A training whose model has no checkpoints yet."""
    path = project / "configs" / "train.yaml"
    values = yaml.safe_load(path.read_text())
    path.write_text(yaml.safe_dump({**values, "model_name": "again"}))
    return read_task([], "ray", PROGRAM)


def _save(project: Path, run_id: str, update: int, run_started_s: float = 5.0) -> Path:
    step = project / "checkpoints" / "again" / f"step-{update:08d}-{run_id}"
    step.mkdir(parents=True)
    state = {"run_id": run_id, "update": update, "run_started_s": run_started_s}
    (step / "state.json").write_text(json.dumps(state))
    return step / "state.json"


def test_a_job_started_again_goes_on_from_its_own_checkpoints_only(project: Path, again: Task) -> None:
    # Times that nodes have written decide nothing: their clocks may differ.
    _save(project, "old", 7, 1e11)
    told: list[str] = []
    assert go_on(again, 12, 0, told.append) == again
    assert told == []
    # An earlier run's checkpoint is not this job's.
    assert go_on(again, 12, 1, told.append) == again
    assert told.pop().startswith("start 2 of this job: it has no checkpoint yet")
    # Nor is one that nobody can read.
    own = _save(project, "own", 3, 0.0)
    text = own.read_text()
    for damaged in ("null", "{", "{}"):
        own.write_text(damaged)
        assert go_on(again, 12, 1, told.append) == again
        assert told.pop().startswith("start 2 of this job: it has no checkpoint yet")
    own.write_text(text)
    assert go_on(again, 12, 2, told.append).options[-2:] == ("--set", RESUME)
    assert told.pop().startswith("start 3 of this job: goes on from its newest checkpoint")
    # It may have gone on with an earlier job's run.
    assert go_on(again, 13, 0, told.append) == again
    _save(project, "old", 8)
    assert go_on(again, 13, 1, told.append).options[-2:] == ("--set", RESUME)


def test_starts_without_an_update_are_counted(project: Path, again: Task) -> None:
    told: list[str] = []
    go_on(again, 12, 0, told.append)
    # A stop before the first update saves what is no progress.
    _save(project, "own", 0)
    assert count_idle_starts(again, 12, 0) == 1
    go_on(again, 12, 1, told.append)
    _save(project, "own", 5)
    assert count_idle_starts(again, 12, 1) == 0
    for start in (2, 3):
        go_on(again, 12, start, told.append)
        assert count_idle_starts(again, 12, start) == start - 1
    # Shown late by the file system: the next start sees it.
    _save(project, "own", 6)
    go_on(again, 12, 4, told.append)
    assert count_idle_starts(again, 12, 4) == 1
    assert count_idle_starts(Task("preprocess", (), None), 12, 1) == 2


def test_a_part_ends_with_the_node_s_process_when_that_is_killed() -> None:
    script = (
        "import os, signal, subprocess, time; from functools import partial\n"
        "from sequifier_ray.parent import end_with; ending = partial(end_with, os.getpid(), signal.SIGTERM)\n"
        "print(subprocess.Popen(['sleep', '60'], preexec_fn=ending).pid, flush=True)\n"
        "time.sleep(60)"
    )
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True) as node:
        assert node.stdout is not None
        part = int(node.stdout.readline())
        node.kill()
    deadline_s = time.monotonic() + 10
    while Path(f"/proc/{part}").exists() and "Z" not in Path(f"/proc/{part}/stat").read_text().split()[2]:
        assert time.monotonic() < deadline_s
        time.sleep(0.05)


@pytest.mark.parametrize("content", [None, "", "null", "{}", '{"earlier": 1}'])
def test_a_lost_memory_of_earlier_starts(content: str | None, project: Path, again: Task) -> None:
    told: list[str] = []
    marker = project / "logs" / "again" / "slurm-12.json"
    go_on(again, 12, 0, told.append)
    _save(project, "own", 5)
    marker.unlink() if content is None else marker.write_text(content)
    # Saved and put back, it goes on.
    assert count_idle_starts(again, 12, 0) == 0
    assert go_on(again, 12, 1, told.append).options[-2:] == ("--set", RESUME)
    told.clear()
    marker.unlink() if content is None else marker.write_text(content)
    assert go_on(again, 12, 2, told.append) == again
    [line] = told
    assert line == (
        f"warning: start 3 of this job, and {marker}, which tells its checkpoints from those of other jobs, "
        "is missing or damaged: the configuration alone says whether the training goes on"
    )
    assert count_idle_starts(again, 12, 2) == 1


def test_a_memory_that_cannot_be_read_is_left_as_it_is(project: Path, again: Task) -> None:
    marker = project / "logs" / "again" / "slurm-12.json"
    go_on(again, 12, 0, print)
    _save(project, "own", 5)
    whole = marker.read_text()
    marker.unlink()
    marker.mkdir()  # reading it fails, as in a storage that does not answer
    with pytest.raises(DataError, match=f"cannot read {marker}"):
        go_on(again, 12, 1, print)
    assert count_idle_starts(again, 12, 0) == 0
    marker.rmdir()
    marker.write_text(whole)
    assert go_on(again, 12, 1, print).options[-2:] == ("--set", RESUME)


def test_a_warning_that_was_ignored_at_the_start_is_heard_and_ignored_by_no_child() -> None:
    program = (
        "import os, signal, subprocess; from sequifier_ray.deploy.slurm.job import Requests\n"
        "assert signal.getsignal(signal.SIGUSR1) == signal.SIG_IGN; requests = Requests()\n"
        "os.kill(os.getpid(), signal.SIGUSR1); print(requests.is_made, flush=True)\n"
        "subprocess.run(['grep', 'SigIgn', '/proc/self/status'])\n"
    )
    words = ["bash", "-c", "trap '' USR1; exec \"$@\"", "bash", sys.executable, "-c", program]
    done = subprocess.run(words, capture_output=True, text=True, timeout=180, check=True)
    heard, ignored = done.stdout.splitlines()
    assert heard == "True"
    assert not int(ignored.split()[1], 16) >> (signal.SIGUSR1 - 1) & 1


def test_loopback_addresses_are_no_way_to_another_node() -> None:
    with pytest.raises(ClusterError, match=r"node a sees b at the loopback address 127\.0\.0\.2"):
        network.address_between("a", [("b", "127.0.0.2")])
    assert network.address_between("a", [])
    assert network.interface_of("127.0.0.1") == "lo"
    assert network.interface_of("192.0.2.77") is None


def test_a_node_whose_address_nobody_knows() -> None:
    with pytest.raises(ClusterError, match=r"cannot find the address of no-such-node\.invalid"):
        network.resolve("no-such-node.invalid")


def test_ports_in_use_are_passed_over_and_jobs_have_places_of_their_own() -> None:
    first = network.free_ports(70001, 4)
    assert network.LOWEST_PORT <= first[0] < first[-1] < network.HIGHEST_PORT
    with socket.create_server(("127.0.0.1", first[2])):
        second = network.free_ports(70001, 4)
    assert set(first).isdisjoint(second)
    assert set(first).isdisjoint(network.free_ports(70002, 4))
    assert network.free_ports(70001, 4) == first


def test_a_job_folder_is_its_user_s_alone_and_short() -> None:
    folder = plan.job_folder(99999999, 9999)
    # Ray adds session_<date>_<time>_<microseconds>_<pid>/sockets/plasma_store to it.
    assert len(str(folder)) + 64 + len("4294967295") <= 107
    plan.make_job_folder(folder)
    try:
        (folder / "left-over").touch()
        plan.make_job_folder(folder)
        assert list(folder.iterdir()) == []
        token = plan.write_token(folder, "secret")
        assert stat.S_IMODE(token.stat().st_mode) == 0o600
        assert stat.S_IMODE(folder.stat().st_mode) == stat.S_IMODE(folder.parent.stat().st_mode) == 0o700
    finally:
        plan.remove_job_folder(folder)
    assert not folder.exists()


def test_a_job_folder_in_a_place_that_others_can_enter(tmp_path: Path) -> None:
    (tmp_path / "open").mkdir(mode=0o755)
    with pytest.raises(ClusterError, match=r"open is not this user's alone \(owner \d+, mode 755\)"):
        plan.make_job_folder(tmp_path / "open" / "1-0")


def test_job_folders_of_jobs_that_begin_and_end_at_the_same_time(tmp_path: Path) -> None:
    program = (
        "import sys; from pathlib import Path; from sequifier_ray.deploy.slurm import plan\n"
        "for _ in range(3000):\n"
        "    plan.make_job_folder(Path(sys.argv[1]))\n"
        "    plan.remove_job_folder(Path(sys.argv[1]))\n"
    )
    jobs = [
        subprocess.Popen(
            [sys.executable, "-c", program, str(tmp_path / "jobs" / name)], stderr=subprocess.PIPE, text=True
        )
        for name in ("1-0", "2-0")
    ]
    assert [(job.communicate(timeout=300)[1], job.returncode) for job in jobs] == [("", 0)] * 2
    assert not (tmp_path / "jobs").exists()


def test_ray_gets_the_job_s_memory_and_the_rest_of_nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    store, memory = ray_node.memory_shares(1000, 2)
    assert store + memory == 1000 << 20
    monkeypatch.setenv("RAY_ADDRESS", "10.0.0.1:6379")
    monkeypatch.setenv("RAY_AUTH_TOKEN", "another's")
    environment = ray_node.ray_environment(Path("/tmp/token"))
    assert "RAY_ADDRESS" not in environment
    assert "RAY_AUTH_TOKEN" not in environment
    assert (environment["RAY_AUTH_MODE"], environment["RAY_AUTH_TOKEN_PATH"]) == ("token", "/tmp/token")


def test_a_request_to_stop_waits_until_it_can_be_heard_and_comes_once() -> None:
    program = (
        "import signal, sys, time; sys.stdin.readline(); heard = [];"
        "signal.signal(signal.SIGUSR1, lambda *_: heard.append(1)); print('ready', flush=True);"
        "sys.stdin.readline(); print(len(heard))"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as child:
        assert child.stdin is not None
        assert child.stdout is not None
        request = StopRequest()
        request.is_made = True
        assert not catches_stop(child.pid)
        request.pass_on([child.pid])
        child.stdin.write("\n")
        child.stdin.flush()
        assert child.stdout.readline() == "ready\n"
        for _ in range(3):
            request.pass_on([child.pid])
        child.stdin.write("\n")
        child.stdin.flush()
        assert child.stdout.readline() == "1\n"
    assert child.returncode == 0
    assert not catches_stop(child.pid)


@pytest.mark.parametrize(("codes", "code"), [([5, 3], 3), ([75, 75], 75), ([75, -signal.SIGKILL], 5)])
def test_one_exit_code_for_several_ranks(codes: list[int], code: int) -> None:
    assert elastic.exit_code(codes) == code


def test_missing_nodes_are_named() -> None:
    words = [sys.executable, "-m", "sequifier_ray.launch.ray_nodes", "127.0.0.1:1", "1", "node1", "node2"]
    done = subprocess.run(words, capture_output=True, text=True, timeout=300, check=False, env={**os.environ})
    assert done.returncode == 4
    assert done.stderr.splitlines()[-1] == (
        "error: not in the Ray cluster at 127.0.0.1:1 after 1 s: node1, node2 (of node1, node2)"
    )
