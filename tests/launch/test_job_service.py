"""Submitting to a job service that freezes, refuses, or is none: a server that answers as it is told to."""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import ray

from sequifier_ray.cli import main
from sequifier_ray.launch import job_client
from sequifier_ray.launch import submit as submitting
from sequifier_ray.project import make_project

TRACE = 'Traceback (most recent call last):\n  File "x.py", line 1, in y\n    z()\n'


class Dashboard(ThreadingHTTPServer):
    """Answers as Ray's does; ``answers`` may replace the answer to a kind of request."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.address = f"http://127.0.0.1:{self.server_port}"
        self.asked: list[str] = []
        self.job = ""
        self.end: dict[str, Any] = {"status": "SUCCEEDED", "driver_exit_code": 0}
        self.answers: dict[str, Callable[[], tuple[int, Any]]] = {}
        self.over = threading.Event()

    def freeze(self, *kinds: str) -> None:
        for kind in kinds:
            self.answers[kind] = lambda: (200, self.over.wait(60))

    def usual(self, kind: str) -> Any:
        return {
            "version": {"ray_version": ray.__version__},
            "package": "",
            "submit": {"job_id": None, "submission_id": self.job},
            "stop": {"stopped": True},
            "logs": {"logs": "its log\n"},
            "info": {"type": "SUBMISSION", "submission_id": self.job, "entrypoint": "x", **self.end},
        }[kind]


class _Handler(BaseHTTPRequestHandler):
    server: Dashboard

    def do_GET(self) -> None:
        kinds = {"/api/version": "version", "/api/packages": "package"}
        kind = next((kinds[start] for start in kinds if self.path.startswith(start)), "info")
        self._answer("logs" if self.path.endswith("/logs") else kind)

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        kind = "stop" if self.path.endswith("/stop") else "submit"
        if kind == "submit":
            self.server.job = json.loads(body)["submission_id"]
        self._answer(kind)

    def _answer(self, kind: str) -> None:
        self.server.asked.append(kind)
        usual = lambda: (200, self.server.usual(kind))  # noqa: E731
        code, answer = self.server.answers.get(kind, usual)()
        content = (answer if isinstance(answer, str) else json.dumps(answer)).encode()
        self.send_response(code)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *words: Any) -> None:
        pass


@pytest.fixture
def dashboard(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Dashboard]:
    """A dashboard, a project to stand in, and short waits."""
    make_project(str(tmp_path / "project"), demo=True)
    monkeypatch.chdir(tmp_path / "project")
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in ("RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH", "RAY_AUTH_MODE"):
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)
    for name in ("RAY_ADDRESS", "RAY_API_SERVER_ADDRESS"):
        monkeypatch.setenv(name, "")
    monkeypatch.setattr(job_client, "ANSWER_S", 0.5)
    monkeypatch.setattr(submitting, "_SILENCE_S", 1.0)
    monkeypatch.setattr(submitting, "_POLL_S", 0.05)
    server = Dashboard()
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield server
    server.over.set()
    server.shutdown()
    server.server_close()


@pytest.fixture
def submitted(dashboard: Dashboard, capfd: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str, str]]:
    """Exit code, stdout and stderr of a submitted training."""

    def run(*options: str, address: str | None = dashboard.address) -> tuple[int, str, str]:
        where = [] if address is None else ["--address", address]
        code = main(["submit", *where, *options, "--", "train", "--set", "project_root=/shared"])
        captured = capfd.readouterr()
        return code, captured.out, captured.err

    return run


Submitted = Callable[..., tuple[int, str, str]]


def test_a_job_is_followed_to_its_end(submitted: Submitted, dashboard: Dashboard) -> None:
    code, out, err = submitted("--job-id", "a.job-1")
    assert code == 0, err
    assert out.splitlines()[0].startswith("job a.job-1: train")
    assert out.endswith("its log\n")


@pytest.mark.timeout(60)
@pytest.mark.parametrize("kind", ["version", "info"])
def test_one_that_never_answers_is_given_up(kind: str, submitted: Submitted, dashboard: Dashboard) -> None:
    dashboard.freeze(kind)
    code, _, err = submitted()
    assert code == 4
    assert "no answer within 0.5 s" in err


@pytest.mark.timeout(60)
def test_a_submission_that_is_never_answered(
    submitted: Submitted, dashboard: Dashboard, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(job_client, "TAKE_S", 0.5)
    dashboard.freeze("submit")
    code, _, err = submitted("--job-id", "mine")
    assert code == 4
    assert "cannot submit the job mine (no answer within 0.5 s); the dashboard shows whether" in err


def test_an_interrupt_while_it_is_submitted_stops_the_job_and_is_told_once(
    submitted: Submitted, dashboard: Dashboard
) -> None:
    failures = iter(range(3))
    dashboard.end = {"status": "STOPPED"}

    def submit() -> tuple[int, Any]:
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(0.2)
        return 200, dashboard.usual("submit")

    def stop() -> tuple[int, Any]:
        return (503, "later") if next(failures, None) is not None else (200, dashboard.usual("stop"))

    dashboard.answers = {"submit": submit, "stop": stop}
    code, out, err = submitted()
    assert code == 130
    assert dashboard.asked.count("stop") == 4
    assert err.count(f"stopping the job {dashboard.job}") == 1
    assert out.startswith(f"job {dashboard.job}: ")


@pytest.mark.timeout(60)
def test_an_interrupt_is_heard_while_nobody_answers(submitted: Submitted, dashboard: Dashboard) -> None:
    def info() -> tuple[int, Any]:
        if dashboard.asked.count("info") == 1:
            os.kill(os.getpid(), signal.SIGINT)
            dashboard.over.wait(60)
        return 200, dashboard.usual("info")

    dashboard.answers["info"] = info
    dashboard.end = {"status": "STOPPED"}
    assert submitted()[0] == 130
    assert "stop" in dashboard.asked


@pytest.mark.parametrize("address", ["127.0.0.1:8265", "ray://127.0.0.1:10001", "https://", "head", "[::1"])
def test_what_is_no_dashboard_is_refused_at_once(address: str, submitted: Submitted) -> None:
    code, _, err = submitted(address=address)
    assert code == 2
    assert f'--address: found "{address}"; allowed: the dashboard, such as http://' in err


def test_rays_variable_is_named_and_the_option_wins_over_it(
    submitted: Submitted, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RAY_ADDRESS", "10.0.0.1:6379")
    code, _, err = submitted(address=None)
    assert code == 2
    assert 'RAY_ADDRESS: found "10.0.0.1:6379"; allowed: the dashboard, such as http://10.0.0.1:8265' in err
    assert submitted()[0] == 0


def test_a_password_in_the_address_is_not_shown(submitted: Submitted) -> None:
    for address in ("http://user:secret@127.0.0.1:1", "ray://user:secret@127.0.0.1:1"):
        code, out, err = submitted(address=address)
        assert code in (2, 4)
        assert "127.0.0.1" in err
        assert "secret" not in out + err


def test_a_job_that_is_lost_before_and_after_it_began(submitted: Submitted, dashboard: Dashboard) -> None:
    message = "Unexpected error: the actor died.\n\tclass_name: JobSupervisor\n\tactor_id: 1"
    dashboard.end = {"status": "FAILED", "driver_exit_code": None, "message": message}
    code, _, err = submitted()
    assert code == 4
    assert err.startswith(
        "error: the cluster lost the job, which had begun (Unexpected error: the actor died.)"
    )
    assert "submit it again: a training goes on from its newest checkpoint with `--set global_training" in err
    dashboard.answers["logs"] = lambda: (200, {"logs": ""})
    code, _, err = submitted()
    assert code == 4
    assert err.startswith("error: the job failed before it began: Unexpected error: the actor died.")


def test_of_a_job_whose_log_is_lost_the_end_is_told_all_the_same(
    submitted: Submitted, dashboard: Dashboard
) -> None:
    dashboard.end = {"status": "FAILED", "driver_exit_code": 5}
    dashboard.freeze("logs")
    code, _, err = submitted("--job-id", "a.job-1")
    assert code == 5
    assert err == (
        "warning: cannot fetch the log of the job a.job-1 (no answer within 0.5 s); look at the dashboard\n"
    )


def test_a_log_that_is_there_no_more_was_there(submitted: Submitted, dashboard: Dashboard) -> None:
    def forget() -> tuple[int, Any]:
        dashboard.end = {"status": "FAILED", "driver_exit_code": None, "message": "the node died"}
        dashboard.answers["logs"] = lambda: (200, {"logs": ""})
        return 200, {"logs": "its log\n"}

    dashboard.end = {"status": "RUNNING", "driver_exit_code": None}
    dashboard.answers["logs"] = forget
    code, out, err = submitted()
    assert code == 4
    assert out.endswith("its log\n")
    assert err.startswith("error: the cluster lost the job, which had begun (the node died)")


def test_a_web_server_that_is_not_rays(submitted: Submitted, dashboard: Dashboard) -> None:
    for answer in ("<html>", {"hello": 1}):
        dashboard.answers["version"] = lambda answer=answer: (200, answer)  # type: ignore[misc]
        code, _, err = submitted()
        assert code == 4
        assert "cannot reach Ray's job service (the answer is not one of Ray's dashboard)" in err


@pytest.mark.parametrize("name", ["a b", "../x", "a/b", "", "-x", "ä", "x" * 101])
def test_a_name_of_odd_characters_is_refused(name: str, submitted: Submitted) -> None:
    code, _, err = submitted(f"--job-id={name}")
    assert code == 2
    assert f'--job-id: found "{name}"; allowed: at most 100 letters' in err


def test_a_name_that_is_taken_and_other_failures(submitted: Submitted, dashboard: Dashboard) -> None:
    taken = (
        TRACE
        + "ValueError: Job with submission_id mine already exists. Please use a different submission_id.\n"
    )
    dashboard.answers["submit"] = lambda: (500, taken)
    code, _, err = submitted("--job-id", "mine")
    assert (code, err) == (2, 'error: --job-id: the cluster has a job "mine" already; choose another\n')
    dashboard.answers["submit"] = lambda: (500, TRACE + "KeyError: 'no agent'\n")
    code, _, err = submitted("--job-id", "mine")
    assert code == 4
    assert "cannot submit the job mine (KeyError: 'no agent'); the dashboard" in err
    assert "TOKEN" not in err


@pytest.mark.parametrize("content", [None, "", "two words", "a\nb", "tök"])
def test_a_token_that_cannot_be_sent(
    content: str | None, submitted: Submitted, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "token"
    if content is not None:
        path.write_text(content)
    monkeypatch.setenv("RAY_AUTH_TOKEN_PATH", str(path))
    code, _, err = submitted()
    reason = "cannot be read (No such file or directory)" if content is None else "is no token"
    assert code == 4
    assert err.startswith(f"error: RAY_AUTH_TOKEN_PATH: {path} {reason}")
    assert err.count("\n") == 1


def test_a_command_that_a_signal_ended(submitted: Submitted, dashboard: Dashboard) -> None:
    dashboard.end = {"status": "FAILED", "driver_exit_code": -9}
    assert submitted()[0] == 137


def test_a_log_that_takes_long_is_fetched_seldom(submitted: Submitted, dashboard: Dashboard) -> None:
    def info() -> tuple[int, Any]:
        if dashboard.asked.count("info") < 20:
            return 200, {**dashboard.usual("info"), "status": "RUNNING", "driver_exit_code": None}
        return 200, dashboard.usual("info")

    def logs() -> tuple[int, Any]:
        time.sleep(0.2)
        return 200, dashboard.usual("logs")

    dashboard.answers = {"info": info, "logs": logs}
    code, out, _ = submitted()
    assert code == 0
    assert dashboard.asked.count("logs") == 2
    assert out.count("its log") == 1
