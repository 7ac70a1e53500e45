"""A node's torchrun: its agent starts this node's ranks and meets those of the other nodes at the head."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from functools import partial
from pathlib import Path

from sequifier_ray.deploy.slurm.network import address_towards, interface_of
from sequifier_ray.deploy.slurm.plan import Plan
from sequifier_ray.deploy.slurm.signals import StopRequest, children_of
from sequifier_ray.parent import end_with


class TorchrunNode:
    """``torchrun`` with c10d rendezvous at the head."""

    def __init__(self, plan: Plan, folder: Path) -> None:
        self._plan, self._folder = plan, folder
        self._request = StopRequest()
        self._agent: subprocess.Popen[bytes] | None = None

    def start(self) -> subprocess.Popen[bytes]:
        """Start the agent."""
        plan = self._plan
        address = plan.head_address if plan.is_head else address_towards(plan.head_address)
        environment = dict(os.environ)
        # c10d warns that addresses have no names, which nobody needs.
        environment.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")
        environment.setdefault("OMP_NUM_THREADS", str(max(1, plan.n_cpus // plan.n_processes)))
        if (interface := interface_of(address)) is not None:
            environment.setdefault("GLOO_SOCKET_IFNAME", interface)
        command = [
            *(sys.executable, "-m", "sequifier_ray.deploy.slurm.elastic"),
            f"--nnodes={plan.n_nodes}",
            f"--nproc-per-node={plan.n_processes}",
            f"--rdzv-id=sequifier-ray-{plan.job_id}",
            "--rdzv-backend=c10d",
            f"--rdzv-endpoint={plan.head_address}:{plan.ports[0]}",
            f"--rdzv-conf=is_host={str(plan.is_head).lower()},join_timeout={plan.wait_s:.0f}",
            f"--local-addr={address}",
            f"--log-dir={self._folder / 'torchrun'}",
            *("-m", "sequifier_ray", *plan.words),
        ]
        self._agent = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            env=environment,
            preexec_fn=partial(end_with, os.getpid(), signal.SIGTERM),  # srun would wait for it
        )
        return self._agent

    def watch(self) -> None:
        """Pass a request to stop on to the ranks: the agent itself would die of it."""
        if self._agent is not None:
            self._request.pass_on(children_of(self._agent.pid))

    def stop(self) -> None:
        """Let the ranks save a checkpoint and end."""
        self._request.is_made = True

    def exit_code(self, code: int) -> int:
        """The code of this node's ranks."""
        return code
