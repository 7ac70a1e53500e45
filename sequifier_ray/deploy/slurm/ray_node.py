"""A node of a job's own Ray cluster."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

from sequifier_ray.deploy.slurm.network import address_towards, free_ports, interface_of
from sequifier_ray.deploy.slurm.plan import Plan, write_token
from sequifier_ray.errors import ClusterError
from sequifier_ray.parent import end_with

_MEGABYTE = 1 << 20
_STORE_SHARE = 0.2
_SMALLEST_STORE = 80 * _MEGABYTE
_TAIL_LINES = 15


class RayNode:
    """``ray start --block`` with the job's share of this node."""

    def __init__(self, plan: Plan, folder: Path, name: str) -> None:
        self._plan, self._folder, self._name = plan, folder, name
        self._log = folder / "ray-start.log"

    def start(self) -> subprocess.Popen[bytes]:
        """Start it; a worker waits for the head first.

        Raises:
            ClusterError: the head does not answer in time.
        """
        plan = self._plan
        address = plan.head_address
        if not plan.is_head:
            self._wait_for_head()
            address = address_towards(plan.head_address)
        token = write_token(self._folder, plan.token)
        environment = ray_environment(token)
        if (interface := interface_of(address)) is not None:
            environment.setdefault("GLOO_SOCKET_IFNAME", interface)
        with open(self._log, "wb") as log:
            return subprocess.Popen(
                self._command(address),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=environment,
                preexec_fn=partial(end_with, os.getpid(), signal.SIGTERM),  # srun would wait for it
            )

    def watch(self) -> None:
        """Nothing to do while it runs."""

    def stop(self) -> None:
        """The driver in the batch step hears requests to stop; the cluster stays for it."""

    def exit_code(self, code: int) -> int:
        """A cluster's node never ends by itself: tell its last words."""
        print(
            f"error: {self._name}: `ray start` ended with exit code {code}; its last lines:", file=sys.stderr
        )
        for line in self._log.read_text(errors="replace").splitlines()[-_TAIL_LINES:]:
            print(f"  {self._name}: {line}", file=sys.stderr)
        sys.stderr.flush()
        return ClusterError.exit_code

    def _command(self, address: str) -> list[str]:
        plan = self._plan
        store, memory = memory_shares(plan.memory_mb, plan.n_cpus)
        command = [
            *(sys.executable, "-m", "ray.scripts.scripts", "start", "--block", "--disable-usage-stats"),
            f"--node-ip-address={address}",
            f"--node-name={self._name}",
            f"--num-cpus={plan.n_cpus}",
            f"--num-gpus={gpus_here()}",
            f"--memory={memory}",
            f"--object-store-memory={store}",
            "--min-worker-port=0",
            "--max-worker-port=0",
            f"--temp-dir={self._folder}",
        ]
        if not plan.is_head:
            [agent_port] = free_ports(plan.job_id, 1)
            return [
                *command,
                f"--address={plan.head_address}:{plan.ports[0]}",
                f"--dashboard-agent-listen-port={agent_port}",
            ]
        gcs, dashboard, client, agent_port = plan.ports
        return [
            *command,
            "--head",
            f"--port={gcs}",
            f"--dashboard-port={dashboard}",
            f"--ray-client-server-port={client}",
            f"--dashboard-agent-listen-port={agent_port}",
            "--include-dashboard=true",
        ]

    def _wait_for_head(self) -> None:
        place = (self._plan.head_address, self._plan.ports[0])
        deadline_s = time.monotonic() + self._plan.wait_s
        while True:
            try:
                socket.create_connection(place, timeout=3.0).close()
                return
            except OSError as error:
                if time.monotonic() > deadline_s:
                    raise ClusterError(
                        f"the head at {place[0]}:{place[1]} does not answer after {self._plan.wait_s:g} s "
                        f"({error}); is there a firewall between the nodes?"
                    ) from error
                time.sleep(0.5)


def ray_environment(token: Path) -> dict[str, str]:
    """The environment of every part of the cluster: token mode on, and no other cluster's address."""
    others = ("RAY_ADDRESS", "RAY_AUTH_TOKEN", "RAY_TMPDIR", "RAY_NAMESPACE")
    return {
        **{name: value for name, value in os.environ.items() if name not in others},
        "RAY_AUTH_MODE": "token",
        "RAY_AUTH_TOKEN_PATH": str(token),
        # On SIGTERM nodes would drain for 30 s, as long as Slurm waits before it kills.
        "RAY_GRACEFUL_SHUTDOWN_DRAIN_TIMEOUT_S": "0",
        "RAY_USAGE_STATS_ENABLED": "0",
        "NO_COLOR": "1",
    }


def memory_shares(memory_mb: int | None, n_cpus: int) -> tuple[int, int]:
    """Bytes for Ray's object store and for its tasks: of the job's memory, or, where Slurm does not count
    memory, of a share of the node's that goes by CPUs."""
    if memory_mb is None:
        physical = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
        total = int(physical * min(1.0, n_cpus / (os.cpu_count() or 1)))
    else:
        total = memory_mb * _MEGABYTE
    room = int(shutil.disk_usage("/dev/shm").free * 0.9)
    store = max(_SMALLEST_STORE, min(int(total * _STORE_SHARE), room))
    return store, max(total - store, _SMALLEST_STORE)


def gpus_here() -> int:
    """GPUs that Slurm gave the job on this node."""
    counted = os.environ.get("SLURM_GPUS_ON_NODE", "")
    if counted.isdecimal():
        return int(counted)
    return len([name for name in os.environ.get("SLURM_STEP_GPUS", "").split(",") if name])
