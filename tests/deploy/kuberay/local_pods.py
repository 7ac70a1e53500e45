"""A Ray cluster of processes that stand for pods."""

from __future__ import annotations

import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[3]
# Bounds for a machine with much else to do; seconds are the rule.
START_S, JOB_S, END_S = 120.0, 240.0, 20.0
ENDED = ("SUCCEEDED", "FAILED", "STOPPED")


class Pods:
    """What the operator would start for a cluster: ``ray start`` with each container's environment and
    working folder, the claim's mount path replaced by a folder here, and a token as ``authOptions`` makes."""

    def __init__(self, claim: Path, temp: Path) -> None:
        self._claim, self._temp = claim, temp
        self._token = secrets.token_hex(32)
        self._gcs, self._dashboard, self._client, *self._agents = free_ports(5)
        self.processes: list[subprocess.Popen[bytes]] = []

    def start(self, cluster: dict[str, Any]) -> None:
        """Start the head, then the workers."""
        assert cluster["authOptions"] == {"mode": "token"}
        head, [workers] = cluster["headGroupSpec"], cluster["workerGroupSpecs"]
        cpus = int(workers["template"]["spec"]["containers"][0]["resources"]["limits"]["cpu"])
        self._start(
            head,
            *(
                "--head",
                f"--port={self._gcs}",
                f"--temp-dir={self._temp}",
                f"--ray-client-server-port={self._client}",
            ),
            *("--include-dashboard=true", f"--dashboard-port={self._dashboard}"),
            f"--dashboard-agent-listen-port={self._agents[0]}",
        )
        wait(self._answers, START_S, "the head")
        # One process for all worker pods: it offers what they have together.
        self._start(
            workers,
            *(f"--address=127.0.0.1:{self._gcs}", f"--num-cpus={cpus * workers['replicas']}"),
            f"--dashboard-agent-listen-port={self._agents[1]}",
        )
        from ray.job_submission import JobSubmissionClient

        headers = {"Authorization": f"Bearer {self._token}"}
        self.client = JobSubmissionClient(f"http://127.0.0.1:{self._dashboard}", headers=headers)

    def submit(self, job: dict[str, Any]) -> str:
        """Submit a RayJob's entrypoint as it stands."""
        name: str = self.client.submit_job(entrypoint=job["spec"]["entrypoint"])
        return name

    def status(self, job: str) -> str:
        return str(self.client.get_job_status(job).value)

    def logs(self, job: str) -> str:
        text: str = self.client.get_job_logs(job)
        return text

    def end_of(self, job: str) -> str:
        """Wait for a job's end; its status."""
        wait(lambda: self.status(job) in ENDED, JOB_S, f"job {job}")
        return self.status(job)

    def stop(self) -> None:
        for process in reversed(self.processes):
            process.terminate()
        for process in self.processes:
            with suppress(subprocess.TimeoutExpired):
                process.wait(END_S)
        # What outlived its parent has the folder of this cluster in its words.
        for folder in Path("/proc").glob("[0-9]*"):
            with suppress(OSError):
                if os.fsencode(self._temp) in (folder / "cmdline").read_bytes():
                    os.kill(int(folder.name), signal.SIGKILL)
        for process in self.processes:
            process.kill()
            process.wait()
        shutil.rmtree(self._temp, ignore_errors=True)

    def _start(self, group: dict[str, Any], *words: str) -> None:
        [container] = group["template"]["spec"]["containers"]
        [mount] = container["volumeMounts"]
        folder = container["workingDir"].replace(mount["mountPath"], str(self._claim))
        parameters = [f"--{name}={value}" for name, value in group["rayStartParams"].items()]
        command = [sys.executable, "-m", "ray.scripts.scripts", "start", "--block", "--disable-usage-stats"]
        ports = ["--min-worker-port=0", "--max-worker-port=0", "--node-ip-address=127.0.0.1"]
        log = self._claim.parent / f"{container['name']}.log"
        self.processes.append(
            subprocess.Popen(
                [*command, *ports, *parameters, *words],
                cwd=folder,
                env=self._environment(container),
                stdout=log.open("wb"),
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        )

    def _environment(self, container: dict[str, Any]) -> dict[str, str]:
        """Nothing of Ray's that this process happens to have; what the image and the operator set."""
        kept = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
        own = {variable["name"]: variable["value"] for variable in container.get("env", [])}
        return {
            **kept,
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
            "PYTHONPATH": str(ROOT),
            "RAY_AUTH_MODE": "token",
            "RAY_AUTH_TOKEN": self._token,
            "RAY_GRACEFUL_SHUTDOWN_DRAIN_TIMEOUT_S": "0",
            **own,
        }

    def _answers(self) -> bool:
        assert self.processes[0].poll() is None, (self._claim.parent / "ray-head.log").read_text()
        with suppress(OSError):
            socket.create_connection(("127.0.0.1", self._dashboard), timeout=1.0).close()
            return True
        return False


def free_ports(n: int) -> list[int]:
    sockets = [socket.socket() for _ in range(n)]
    for each in sockets:
        each.bind(("127.0.0.1", 0))
    ports = [each.getsockname()[1] for each in sockets]
    for each in sockets:
        each.close()
    return ports


def wait(condition: Callable[[], bool], limit_s: float, what: str) -> None:
    deadline_s = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < deadline_s, f"{what} took more than {limit_s} s"
        time.sleep(0.2)
