"""Several hosts on one machine: each has a network, processes, a name and a /tmp/ray of its own."""

from __future__ import annotations

import itertools
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

NETWORK = "10.77.0"
_counter = itertools.count()


def wait_until(condition: Callable[[], Any], timeout_s: float = 240) -> None:
    deadline_s = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline_s, "waited too long"
        time.sleep(0.05)


def address(number: int) -> str:
    return f"{NETWORK}.{10 + number}"


def needs_hosts() -> pytest.MarkDecorator:
    """Skips where hosts cannot be made."""
    has_tools = all(shutil.which(name) for name in ("ip", "nsenter", "unshare"))
    return pytest.mark.skipif(
        os.geteuid() != 0 or not has_tools, reason="needs root, ip, nsenter and unshare for hosts of its own"
    )


class Hosts:
    """Hosts 1 to ``n``, joined by a bridge in a namespace of its own; nothing of it reaches the machine's
    network. ``folder`` holds their hosts file. What files they see is what the machine has."""

    def __init__(self, n: int, folder: Path) -> None:
        prefix = f"sqr{os.getpid()}-{next(_counter)}"
        self._folder = folder
        self._running: list[subprocess.Popen[str]] = []
        self._names = [f"{prefix}-{i}" for i in range(n + 1)]
        lines = ["127.0.0.1 localhost", *(f"{address(i)} node{i}" for i in range(1, n + 1))]
        (folder / "hosts").write_text("\n".join(lines) + "\n")
        (folder / "resolv.conf").write_text("")
        for name in self._names:
            _ip("netns", "add", name)
            _ip("-n", name, "link", "set", "lo", "up")
        bridge = self._names[0]
        _ip("-n", bridge, "link", "add", "br0", "type", "bridge")
        _ip("-n", bridge, "addr", "add", f"{NETWORK}.1/24", "dev", "br0")
        _ip("-n", bridge, "link", "set", "br0", "up")
        for i, name in enumerate(self._names[1:], start=1):
            _ip("-n", bridge, "link", "add", f"v{i}", "type", "veth", "peer", "name", "eth0", "netns", name)
            _ip("-n", bridge, "link", "set", f"v{i}", "master", "br0", "up")
            _ip("-n", name, "addr", "add", f"{address(i)}/24", "dev", "eth0")
            _ip("-n", name, "link", "set", "eth0", "up")
            # Ray finds a node's own address by routing towards the internet; no packet leaves.
            _ip("-n", name, "route", "add", "default", "via", f"{NETWORK}.1")

    def boot(
        self,
        number: int,
        command: Sequence[str],
        environment: dict[str, str],
        log: Path,
        hidden: Sequence[Path] = (),
    ) -> subprocess.Popen[str]:
        """Start host ``number`` with one service; killing the answered process loses the whole host. It sees
        empty folders in the place of the ``hidden`` ones."""
        # The first process of a host reaps orphans, which services do not.
        script = (
            'hostname "node$0"; mount --bind "$1/hosts" /etc/hosts; '
            'mount --bind "$1/resolv.conf" /etc/resolv.conf; '
            "mkdir -p /tmp/ray; mount -t tmpfs none /tmp/ray; mount -t tmpfs none /dev/shm; "
            'for folder in $HIDDEN; do mount -t tmpfs none "$folder"; done; '
            'shift; "$@" & p=$!; trap "kill $p" TERM; while kill -0 $p 2>/dev/null; do wait; done'
        )
        with log.open("a") as out:
            process = subprocess.Popen(
                [
                    "nsenter",
                    f"--net=/run/netns/{self._names[number]}",
                    *("unshare", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc", "--uts"),
                    *("--", "bash", "-c", script, str(number), str(self._folder), *command),
                ],
                env={**environment, "HIDDEN": " ".join(map(str, hidden))},
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                text=True,
            )
        self._running.append(process)
        return process

    def inside(self, host: subprocess.Popen[str]) -> list[str]:
        """The words before a command that runs on a host."""
        return ["nsenter", "-t", str(child_of(host)), "--net", "--mount", "--pid", "--uts", "--"]

    def on_bridge(self) -> list[str]:
        """The words before a command that is on no host and reaches all of them."""
        # Without a resolver look-ups fail at once; with one that cannot be reached they take long.
        script = 'mount --bind "$0/resolv.conf" /etc/resolv.conf; exec "$@"'
        place = ["nsenter", f"--net=/run/netns/{self._names[0]}", "unshare", "--mount"]
        return [*place, "--", "bash", "-c", script, str(self._folder)]

    def set_link(self, number: int, state: str) -> None:
        """Plug the network of a host in or out: up or down."""
        _ip("-n", self._names[0], "link", "set", f"v{number}", state)

    def pids(self, number: int) -> list[int]:
        """All processes of a host, those that make it up included."""
        found = subprocess.run(
            ["ip", "netns", "pids", self._names[number]], capture_output=True, text=True, check=True
        )
        return [int(word) for word in found.stdout.split()]

    def close(self) -> None:
        """End all hosts and take their network away."""
        for process in self._running:
            if process.poll() is None:
                process.kill()
            process.wait()
        for number, name in enumerate(self._names):
            for pid in self.pids(number):
                with suppress(ProcessLookupError):  # it ends by itself
                    os.kill(pid, signal.SIGKILL)
            _ip("netns", "del", name)


def child_of(process: subprocess.Popen[str]) -> int:
    """What ``unshare`` and ``nsenter`` wait for: a host's first process, or the command put onto it."""
    return int(Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()[0])


def _ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True, text=True)
