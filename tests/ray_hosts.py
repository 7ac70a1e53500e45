"""A Ray cluster on hosts of their own."""

from __future__ import annotations

import os
import secrets
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from hosts import Hosts, address, wait_until


class Cluster:
    """A head without CPUs on host 1, a worker node with one CPU on every other host."""

    def __init__(self, folder: Path, **variables: str) -> None:
        self.hosts = Hosts(3, folder)
        self._folder = folder
        (folder / "token").write_text(secrets.token_hex(32))
        (folder / "token").chmod(0o600)
        self.environment = {
            **os.environ,
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
            "RAY_AUTH_MODE": "token",
            "RAY_AUTH_TOKEN_PATH": str(folder / "token"),
            "RAY_USAGE_STATS_ENABLED": "0",
            "RAY_GRACEFUL_SHUTDOWN_DRAIN_TIMEOUT_S": "0",
            **variables,
        }
        self.address = f"{address(1)}:6379"
        self.head = self._boot(1, "--head", "--port=6379", "--num-cpus=0", "--include-dashboard=false")
        wait_until(self._answers)
        self.nodes: dict[int, subprocess.Popen[str]] = {}

    def join(self, number: int, hidden: Sequence[Path] = (), **variables: str) -> None:
        """Host ``number`` comes, with one CPU; on it the ``hidden`` folders are empty."""
        words = (f"--address={self.address}", "--num-cpus=1")
        self.nodes[number] = self._boot(number, *words, hidden=hidden, **variables)

    def run(self, command: Sequence[str]) -> subprocess.CompletedProcess[str]:
        """A command on the head."""
        words = [*self.hosts.inside(self.head), *command]
        return subprocess.run(
            words, env=self.environment, capture_output=True, text=True, timeout=200, check=False
        )

    def _boot(
        self, number: int, *words: str, hidden: Sequence[Path] = (), **variables: str
    ) -> subprocess.Popen[str]:
        command = ["ray", "start", "--block", f"--node-ip-address={address(number)}", *words]
        command += ["--object-store-memory=100000000"]
        log = self._folder / f"node{number}.log"
        return self.hosts.boot(number, command, {**self.environment, **variables}, log, hidden)

    def _answers(self) -> bool:
        probe = [sys.executable, "-c", f"import socket; socket.create_connection(('{address(1)}', 6379), 1)"]
        try:
            words = self.hosts.inside(self.head)
        except (IndexError, FileNotFoundError):
            return False
        return subprocess.run([*words, *probe], capture_output=True, check=False).returncode == 0
