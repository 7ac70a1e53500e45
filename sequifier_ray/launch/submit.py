"""`submit`: one of our commands as a job of a Ray cluster; its configuration goes along, data never."""

from __future__ import annotations

import os
import re
import secrets
import shlex
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sequifier_ray import storage
from sequifier_ray.errors import ClusterError, ConfigError
from sequifier_ray.launch.job_files import Command, write_files
from sequifier_ray.launch.job_service import connect, first_line, telling
from sequifier_ray.launch.signals import EXIT_INTERRUPTED, EXIT_STOPPED, StopSignals

if TYPE_CHECKING:
    from sequifier_ray.launch.job_client import BoundedClient

# Ray kills a job this long after it asked it to stop: a checkpoint must fit in.
_STOP_WAIT_S = "600"
_POLL_S = 2.0
# A job of days must not be lost sight of for a network that fails for a minute.
_SILENCE_S = 120.0
# A log is always fetched whole: the longer that takes, the less often.
_LOG_PATIENCE = 50
_LOG_LONGEST_S = 60.0
_JOB_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,99}")
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
    if job_id is not None and not _JOB_ID.fullmatch(job_id):
        allowed = "at most 100 letters, digits, dots, dashes and underscores, a letter or digit first"
        raise ConfigError(f'--job-id: found "{job_id}"; allowed: {allowed}')
    job = job_id or f"{command.words[0]}_{secrets.token_hex(8)}"
    environment = _environment(variables)
    with tempfile.TemporaryDirectory() as folder:
        words = write_files(command, Path(folder))
        client = connect(address)
        with StopSignals(on_first=partial(_tell_stopping, job)) as signals:
            _show(f"job {job}: {shlex.join(words)}\n")
            _send(client, job, words, {"working_dir": folder, "env_vars": environment})
            return _follow(client, job, signals)


def _send(client: BoundedClient, job: str, words: Sequence[str], runtime_env: dict[str, Any]) -> None:
    try:
        with telling(f"submit the job {job}", "the dashboard shows whether it began all the same"):
            client.submit_job(
                entrypoint=shlex.join(["sequifier-ray", *words]), submission_id=job, runtime_env=runtime_env
            )
    except ClusterError as error:
        if f"{job} already exists" in str(error):
            raise ConfigError(f'--job-id: the cluster has a job "{job}" already; choose another') from error
        raise


def _environment(names: Sequence[str]) -> dict[str, str]:
    """What the job's processes get from here: the variables asked for, and where object stores are."""
    missing = [name for name in names if name not in os.environ]
    if missing:
        raise ConfigError(f"--env: {', '.join(missing)} is not set here; set it, or leave it out")
    wanted = [*names, *(name for name in storage.ENVIRONMENT if name in os.environ)]
    return {"RAY_JOB_STOP_WAIT_TIME_S": _STOP_WAIT_S, **{name: os.environ[name] for name in wanted}}


def _follow(client: BoundedClient, job: str, signals: StopSignals) -> int:
    """Show the job's log to its end; a signal stops the job.

    Raises:
        ClusterError: nobody answers for a while; the job itself may go on.
    """
    shown, asked, log, log_due_s = 0, False, "", 0.0
    heard_s = time.monotonic()
    has_ended = False
    while True:
        try:
            with telling(f"follow the job {job}", "it may go on all the same: look at the dashboard"):
                if signals.requested and not asked:
                    client.stop_job(job)
                    asked = True
                status = client.get_job_info(job)
                has_ended = status.status.is_terminal()
            with telling(f"fetch the log of the job {job}", "look at the dashboard"):
                if has_ended or time.monotonic() >= log_due_s:
                    began_s = time.monotonic()
                    log = client.get_job_logs(job) or log
                    took_s = time.monotonic() - began_s
                    log_due_s = began_s + min(_LOG_PATIENCE * took_s, _LOG_LONGEST_S)
                heard_s = time.monotonic()
        except ClusterError as error:
            if time.monotonic() - heard_s > _SILENCE_S:
                if not has_ended:
                    raise
                sys.stderr.write(f"warning: {error}\n")  # the log's node may be gone, and the end is known
                return _exit_code(status, log)
        else:
            _show(log[shown:])
            shown = len(log)
            if has_ended:
                return _exit_code(status, log)
        time.sleep(_POLL_S)


def _tell_stopping(job: str) -> None:
    """At once, in the midst of whatever is waited for: a stream could be in use."""
    with suppress(OSError):
        os.write(2, f"stopping the job {job} (a second signal leaves it alone)\n".encode())


def _show(text: str) -> None:
    sys.stdout.write(text)
    sys.stdout.flush()


def _exit_code(status: Any, log: str) -> int:
    """That of the command; of a command that a signal ended what a shell makes of it."""
    if status.driver_exit_code is not None:
        code = int(status.driver_exit_code)
        return code if code >= 0 else 128 - code
    if status.status == "STOPPED":
        return EXIT_STOPPED if _STOPPED_LINE in log else EXIT_INTERRUPTED
    if status.status == "SUCCEEDED":
        return 0
    message = (status.message or "no message").strip()
    if not log.strip():
        raise ClusterError(f"the job failed before it began: {message}")
    raise ClusterError(
        f"the cluster lost the job, which had begun ({first_line(message)}); see the dashboard for what "
        "became of its node, and submit it again: a training goes on from its newest checkpoint with `--set "
        "global_training.resume.policy=if_exists`"
    )
