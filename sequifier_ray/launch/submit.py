"""`submit`: one of our commands as a job of a Ray cluster; configuration files go along, data never."""

from __future__ import annotations

import os
import shlex
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from sequifier_ray import storage
from sequifier_ray.errors import ClusterError, ConfigError
from sequifier_ray.launch.job_files import Command, write_files
from sequifier_ray.launch.signals import EXIT_INTERRUPTED, EXIT_STOPPED, StopSignals

# Ray kills a job this long after it asked it to stop: a checkpoint must fit in.
_STOP_WAIT_S = "600"
_POLL_S = 2.0
# A job of days must not be lost sight of for a network that fails for a minute.
_SILENCE_S = 120.0
_TOKENS = ("RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH")
_STOPPED_LINE = "stopped on request at step"


def submit(command: Command, address: str | None, variables: Sequence[str], job_id: str | None) -> int:
    """Run a command as a job, show its log, return the exit code that it ended with.

    Started in the project's folder: it sends the one configuration that the command reads.
    ``variables`` are names of environment variables to pass on. A first ^C or SIGTERM stops the job, which
    saves a checkpoint; a second one ends only this process.

    Raises:
        ConfigError: the command cannot work on a cluster.
        ClusterError: the cluster's job service cannot be reached, refuses, or lost the job.
    """
    environment = _environment(variables)
    with tempfile.TemporaryDirectory() as folder:
        words = write_files(command, Path(folder))
        client = _connect(address)
        with _telling("submit the job"):
            job = client.submit_job(
                entrypoint=shlex.join(["sequifier-ray", *words]),
                submission_id=job_id,
                runtime_env={"working_dir": folder, "env_vars": environment},
            )
    _show(f"job {job}: {shlex.join(words)}\n")
    return _follow(client, job)


def _environment(names: Sequence[str]) -> dict[str, str]:
    """What the job's processes get from here: the variables asked for, and where object stores are."""
    missing = [name for name in names if name not in os.environ]
    if missing:
        raise ConfigError(f"--env: {', '.join(missing)} is not set here; set it, or leave it out")
    wanted = [*names, *(name for name in storage.ENVIRONMENT if name in os.environ)]
    return {"RAY_JOB_STOP_WAIT_TIME_S": _STOP_WAIT_S, **{name: os.environ[name] for name in wanted}}


def _connect(address: str | None) -> Any:
    """The cluster's job service. A token that is at hand is used: Ray itself waits to be told."""
    home_token = Path.home() / ".ray" / "auth_token"
    if any(name in os.environ for name in _TOKENS) or home_token.exists():
        os.environ.setdefault("RAY_AUTH_MODE", "token")
    from ray.job_submission import JobSubmissionClient

    with _telling("reach Ray's job service"):
        return JobSubmissionClient(address)


@contextmanager
def _telling(action: str) -> Iterator[None]:
    """Turn what Ray's job client raises into an error that says what to look at."""
    from ray.exceptions import RayError

    try:
        yield
    except (RuntimeError, ValueError, OSError, RayError) as error:
        first = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise ClusterError(
            f"cannot {action} ({first}); check --address (http://head:8265) or RAY_ADDRESS, and "
            "RAY_AUTH_MODE and RAY_AUTH_TOKEN_PATH if the cluster wants a token"
        ) from error


def _follow(client: Any, job: str) -> int:
    """Show the job's log to its end.

    Raises:
        ClusterError: nobody answers for a while; the job itself may go on.
    """
    shown, asked = 0, False
    heard_s = time.monotonic()
    with StopSignals() as signals:
        while True:
            try:
                with _telling(f"follow the job {job}"):
                    if signals.requested and not asked:
                        _show(f"stopping the job {job} (a second signal leaves it alone)\n")
                        client.stop_job(job)
                        asked = True
                    status = client.get_job_info(job)
                    log = client.get_job_logs(job)
                    heard_s = time.monotonic()
            except ClusterError:
                if time.monotonic() - heard_s > _SILENCE_S:
                    raise
            else:
                _show(log[shown:])
                shown = len(log)
                if status.status.is_terminal():
                    return _exit_code(status, log)
            time.sleep(_POLL_S)


def _show(text: str) -> None:
    sys.stdout.write(text)
    sys.stdout.flush()


def _exit_code(status: Any, log: str) -> int:
    if status.driver_exit_code is not None:
        return int(status.driver_exit_code)
    if status.status == "STOPPED":
        return EXIT_STOPPED if _STOPPED_LINE in log else EXIT_INTERRUPTED
    if status.status == "SUCCEEDED":
        return 0
    raise ClusterError(f"the job failed before it began: {(status.message or 'no message').strip()}")
