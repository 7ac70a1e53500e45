"""What Slurm gave this job, from the batch step's environment and from scontrol."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass

from sequifier_ray.errors import ClusterError, ConfigError

_SCONTROL_S = 60.0


@dataclass(frozen=True)
class Allocation:
    """One job. ``nodes`` begins with the one that the batch step runs on, which is the head; ``cpus`` and
    ``memory_mb`` are per node in the same order, memory None where Slurm does not count it."""

    job_id: int
    nodes: tuple[str, ...]
    cpus: tuple[int, ...]
    memory_mb: tuple[int | None, ...]
    restarts: int

    @property
    def head(self) -> str:
        """Name of the head node."""
        return self.nodes[0]


def read_allocation(environment: Mapping[str, str] = os.environ) -> Allocation:
    """The job that this process is the batch step of.

    Raises:
        ConfigError: it is not in a job.
        ClusterError: scontrol fails, or the batch step is not on the job's first node.
    """
    if not environment.get("SLURM_JOB_ID", "").isdecimal() or "SLURM_JOB_NODELIST" not in environment:
        raise ConfigError(
            "`sequifier-ray slurm run` is for the inside of a Slurm job and SLURM_JOB_ID is not set; "
            "submit with `sbatch train-ray.sbatch configs/train.yaml`; `sequifier-ray slurm render` prints "
            "that script"
        )
    nodes = scontrol("show", "hostnames", environment["SLURM_JOB_NODELIST"]).split()
    here = environment.get("SLURMD_NODENAME", nodes[0])
    if environment.get("SLURM_NODEID", "0") != "0" or here != nodes[0]:
        raise ClusterError(
            f"the head belongs on the job's first node {nodes[0]}, and this process runs on {here} as node "
            f"{environment.get('SLURM_NODEID', '0')}; start `sequifier-ray slurm run` in the batch script "
            "itself, not under srun"
        )
    cpus = _per_node(environment.get("SLURM_JOB_CPUS_PER_NODE", "1"), len(nodes))
    return Allocation(
        job_id=int(environment["SLURM_JOB_ID"]),
        nodes=tuple(nodes),
        cpus=cpus,
        memory_mb=tuple(_memory_mb(environment, n) for n in cpus),
        restarts=int(environment.get("SLURM_RESTART_COUNT") or 0),
    )


def node_address(node: str) -> str:
    """The address by which Slurm reaches a node: a name or a number."""
    found = re.search(r"\bNodeAddr=(\S+)", scontrol("show", "node", node))
    return found.group(1) if found else node


def may_requeue(job_id: int) -> bool:
    """Whether the job was submitted with --requeue."""
    return re.search(r"\bRequeue=1\b", scontrol("show", "job", str(job_id))) is not None


def binds_cpus() -> bool:
    """Whether this Slurm binds tasks to CPUs; one that does not complains when told not to."""
    return (
        re.search(r"^TaskPlugin\s*=.*(affinity|cgroup)", scontrol("show", "config"), re.MULTILINE) is not None
    )


def scontrol(*words: str) -> str:
    """What ``scontrol`` prints.

    Raises:
        ClusterError: it cannot be run or fails.
    """
    try:
        done = subprocess.run(
            ["scontrol", *words], capture_output=True, text=True, timeout=_SCONTROL_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise ClusterError(f"`scontrol {' '.join(words)}` does not run on this node ({error})") from error
    if done.returncode:
        cause = (done.stderr or done.stdout).strip()
        raise ClusterError(f"`scontrol {' '.join(words)}` failed: {cause}")
    return done.stdout


def _per_node(text: str, n_nodes: int) -> tuple[int, ...]:
    """Slurm's short form of one number a node.

    >>> _per_node("2(x2),4", 3)
    (2, 2, 4)
    """
    numbers: list[int] = []
    for part in text.split(","):
        number, _, times = part.partition("(x")
        numbers += [int(number)] * int(times.rstrip(")") or 1)
    return tuple((numbers + [numbers[-1]] * n_nodes)[:n_nodes])


def _memory_mb(environment: Mapping[str, str], n_cpus: int) -> int | None:
    per_node, per_cpu = environment.get("SLURM_MEM_PER_NODE"), environment.get("SLURM_MEM_PER_CPU")
    megabytes = int(per_node) if per_node else int(per_cpu) * n_cpus if per_cpu else 0
    return megabytes or None
