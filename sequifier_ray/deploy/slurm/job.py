"""The batch step of a job: it starts every node's part, runs the command, and clears away what it started."""

from __future__ import annotations

import secrets
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from types import FrameType
from typing import Any

from sequifier_ray.deploy.slurm.allocation import (
    Allocation,
    binds_cpus,
    may_requeue,
    node_address,
    read_allocation,
    scontrol,
)
from sequifier_ray.deploy.slurm.elastic import EXIT_STOPPED, exit_code
from sequifier_ray.deploy.slurm.network import address_between, free_ports
from sequifier_ray.deploy.slurm.nodes import Nodes
from sequifier_ray.deploy.slurm.plan import Plan, job_folder, make_job_folder, remove_job_folder, write_token
from sequifier_ray.deploy.slurm.ray_node import ray_environment
from sequifier_ray.deploy.slurm.signals import StopRequest
from sequifier_ray.deploy.slurm.sizes import NodeSize, check_room, processes_per_node
from sequifier_ray.deploy.slurm.starts import RESUME, count_idle_starts, go_on
from sequifier_ray.deploy.slurm.task import Task, read_task
from sequifier_ray.errors import ClusterError, ConfigError

_POLL_S = 0.3
# After one node has failed, how long the others may take to notice.
_FAILED_S = 60.0
# So many starts in a row without an update, and the next one would bring none either.
_IDLE_STARTS = 2
_RAY_PORTS, _TORCHRUN_PORTS = 4, 1


@dataclass(frozen=True)
class Limits:
    """How long nodes may take to come, in seconds, and how often a job may put itself back in the queue."""

    wait_s: float
    max_requeues: int


class Requests(StopRequest):
    """Signals to this process: Slurm's warning of the time limit (SIGUSR1), or SIGTERM."""

    def __init__(self) -> None:
        super().__init__()
        self.is_final = False
        for number in (signal.SIGUSR1, signal.SIGTERM):
            signal.signal(number, self._note)

    def _note(self, number: int, frame: FrameType | None) -> None:
        self.is_made = True
        self.is_final |= number == signal.SIGTERM


def run(launcher: str, words: list[str], limits: Limits, program: Any) -> int:
    """Run a command of ``program`` on the nodes of this job; returns its exit code.

    Raises:
        ConfigError: see read_task.
        ClusterError: the nodes do not come together, or lack what the configuration needs.
    """
    if launcher not in ("ray", "torchrun"):
        raise ConfigError(f'--launcher: "{launcher}" is none of ray, torchrun')
    requests = Requests()
    allocation = read_allocation()
    task = read_task(words, launcher, program)
    task = go_on(task, allocation.job_id, allocation.restarts, tell)
    with Nodes(allocation.nodes, binds_cpus()) as nodes:
        code = _work(launcher, task, allocation, nodes, requests, limits)
    if code == EXIT_STOPPED:
        _put_back(task, allocation, requests, limits.max_requeues)
    return code


def tell(text: str) -> None:
    """A line of the job's log."""
    print(f"slurm: {text}", flush=True)


def _work(
    launcher: str, task: Task, allocation: Allocation, nodes: Nodes, requests: Requests, limits: Limits
) -> int:
    peers = [(name, node_address(name)) for name in allocation.nodes[1:]]
    address = address_between(allocation.head, peers)
    nodes.wait_until_ready(limits.wait_s, lambda: requests.is_made)
    if requests.is_made:
        return EXIT_STOPPED
    sizes = [
        NodeSize(node.name, cpus, (node.facts or {}).get("gpus", 0))
        for node, cpus in zip(nodes.all, allocation.cpus, strict=True)
    ]
    if task.config is not None and (warning := check_room(task.config, launcher, sizes)):
        tell(f"warning: {warning}")
    n_processes = 1
    if task.config is not None and launcher == "torchrun":
        n_processes = processes_per_node(task.config, len(sizes))
    folder = job_folder(allocation.job_id, "batch")
    ports = tuple(free_ports(allocation.job_id, _RAY_PORTS if launcher == "ray" else _TORCHRUN_PORTS))
    token = secrets.token_hex(32)
    plans = {
        size.name: Plan(
            launcher=launcher,
            job_id=allocation.job_id,
            place=place,
            n_nodes=len(sizes),
            n_cpus=size.cpus,
            memory_mb=memory_mb,
            head_address=address,
            ports=ports,
            token=token,
            n_processes=n_processes,
            words=tuple(task.words),
            wait_s=limits.wait_s,
        )
        for place, (size, memory_mb) in enumerate(zip(sizes, allocation.memory_mb, strict=True))
    }
    each = ", ".join(f"{size.name}: {size.cpus} CPUs {size.gpus} GPUs" for size in sizes)
    tell(
        f"{launcher} on {each}; head {allocation.head} at {address}, ports {ports[0]} to {ports[-1]}, "
        f"files in {folder.parent}/{allocation.job_id}-*"
    )
    make_job_folder(folder)
    try:
        nodes.send_all(plans)
        if launcher == "torchrun":
            return _follow_ranks(nodes, requests)
        environment = ray_environment(write_token(folder, token))
        environment["RAY_ADDRESS"] = f"{address}:{ports[0]}"
        if not _wait_for_cluster(allocation, nodes, requests, environment, limits.wait_s):
            return EXIT_STOPPED
        return _drive(task, nodes, requests, environment)
    finally:
        remove_job_folder(folder)


def _wait_for_cluster(
    allocation: Allocation, nodes: Nodes, requests: Requests, environment: dict[str, str], wait_s: float
) -> bool:
    """Whether the cluster is there; False if a stop was asked for meanwhile.

    Raises:
        ClusterError: a node's part ended, or nodes are missing; they are named.
    """
    begin_s = time.monotonic()
    words = [sys.executable, "-m", "sequifier_ray.launch.ray_nodes", environment["RAY_ADDRESS"], str(wait_s)]
    with tempfile.TemporaryFile("w+", errors="replace") as errors:  # a pipe that nobody empties fills up
        waiter = subprocess.Popen(
            [*words, *allocation.nodes], env=environment, stdin=subprocess.DEVNULL, stderr=errors
        )
        try:
            while waiter.poll() is None:
                nodes.raise_if_ended()
                if requests.is_made:
                    return False
                time.sleep(_POLL_S)
        finally:
            waiter.kill()
            waiter.wait()
        errors.seek(0)
        said = errors.read().strip().splitlines()
    if waiter.returncode:
        raise ClusterError(said[-1].removeprefix("error: ") if said else "the Ray cluster did not form")
    n_nodes = len(allocation.nodes)
    plural = "s" * (n_nodes > 1)
    tell(f"the Ray cluster of {n_nodes} node{plural} is up after {time.monotonic() - begin_s:.0f} s")
    return True


def _drive(task: Task, nodes: Nodes, requests: Requests, environment: dict[str, str]) -> int:
    """Run the driver beside the head."""
    words = [*task.words, *(["--launcher", "ray"] if task.verb == "train" else [])]
    driver = subprocess.Popen(
        [sys.executable, "-m", "sequifier_ray", *words], env=environment, stdin=subprocess.DEVNULL
    )
    said = False
    try:
        while driver.poll() is None:
            if requests.is_made and not said:
                said = True
                tell(_on_request(task))
            requests.pass_on([driver.pid])
            for node in nodes.newly_ended():
                tell(f"warning: {node.name} has left the Ray cluster (exit code {node.code})")
            time.sleep(_POLL_S)
    finally:
        driver.kill()
        driver.wait()
    return driver.returncode if driver.returncode >= 0 else 128 - driver.returncode


def _follow_ranks(nodes: Nodes, requests: Requests) -> int:
    """Wait for every node's torchrun; returns the code that tells most of what happened."""
    has_passed_on = False
    deadline_s = None
    while any(node.code is None for node in nodes.all):
        if requests.is_made and not has_passed_on:
            has_passed_on = True
            tell("stop asked for: the ranks save a checkpoint and end")
            nodes.request_stop()
        if deadline_s is None and any(node.code for node in nodes.newly_ended()):
            deadline_s = time.monotonic() + _FAILED_S
        if deadline_s is not None and time.monotonic() > deadline_s:
            break
        time.sleep(_POLL_S)
    codes = [node.code for node in nodes.all if node.code]
    # 1 is srun's own, and above 128 the node's process was killed: by itself it gives sequifier-ray's codes.
    codes = [ClusterError.exit_code if code == 1 or code > 128 else code for code in codes]
    return exit_code(codes) if codes else 0


def _on_request(task: Task) -> str:
    if task.verb == "train":
        return "stop asked for: the training saves a checkpoint and ends"
    return f"stop asked for, and `{task.verb}` saves nothing midway: it goes on until Slurm ends the job"


def _put_back(task: Task, allocation: Allocation, requests: Requests, max_requeues: int) -> None:
    """Put a job that stopped with a checkpoint back in the queue, where it may."""
    again = f"submit again with `--set '{RESUME}'` to go on" if task.verb == "train" else "submit it again"
    if requests.is_final:
        tell(f"stopped by SIGTERM, so not put back in the queue; {again}")
    elif not may_requeue(allocation.job_id):
        tell(f"the job may not be put back in the queue (sbatch --requeue); {again}")
    elif allocation.restarts >= max_requeues:
        tell(f"put back in the queue {allocation.restarts} times already (--max-requeues); {again}")
    elif (idle := count_idle_starts(task, allocation.job_id, allocation.restarts)) >= _IDLE_STARTS:
        tell(
            f"{idle} starts in a row have saved nothing new, so not put back in the queue: the warning comes "
            "before the first update; give `#SBATCH --time` more, or fewer seconds in `--signal=B:USR1@120`; "
            f"{again}"
        )
    else:
        tell(f"putting the job back in the queue (so far {allocation.restarts} times)")
        scontrol("requeue", str(allocation.job_id))
