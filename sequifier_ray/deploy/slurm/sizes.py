"""Whether a configuration's processes fit on a job's nodes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sequifier_ray.config.train import TrainConfig
from sequifier_ray.errors import ClusterError, ConfigError

_ASK = (
    "ask for more with `#SBATCH --nodes`, `--gpus-per-node` and `--cpus-per-task`, or lower "
    "global_training.world_size"
)
# Ray counts resources in steps of this size.
_SMALLEST_AMOUNT = 1e-4


@dataclass(frozen=True)
class NodeSize:
    """What a job has of one node."""

    name: str
    cpus: int
    gpus: int


def processes_per_node(config: TrainConfig, n_nodes: int) -> int:
    """torchrun's processes on every node.

    Raises:
        ConfigError: world_size is no multiple of the number of nodes.
    """
    world_size = config.global_training.world_size
    if world_size % n_nodes:
        raise ConfigError(
            f"global_training.world_size is {world_size} and torchrun starts equally many processes on each "
            f"of {n_nodes} nodes; set a multiple of {n_nodes}, or use the ray launcher"
        )
    return world_size // n_nodes


def room(config: TrainConfig, launcher: str, node: NodeSize) -> int:
    """Processes that a node has room for; those that ask for nothing fit anywhere.

    Raises:
        ConfigError: they train on GPUs and ask for none.
    """
    needs = {"CPU": 1.0, "GPU": 1.0} if config.device == "cuda" else {"CPU": 1.0}
    if launcher == "ray":
        needs |= {k: v for k, v in config.ray.resources_per_worker.items() if k in ("CPU", "GPU")}
    if needs.get("GPU") == 0 and config.device == "cuda":
        raise ConfigError(
            "ray.resources_per_worker.GPU: found 0 with device: cuda; allowed: more than 0, as in GPU: 1"
        )
    there = {"CPU": node.cpus, "GPU": node.gpus}
    fitting = [int(there[name] / amount) for name, amount in needs.items() if amount >= _SMALLEST_AMOUNT]
    return min(fitting, default=config.global_training.world_size)


def check_room(config: TrainConfig, launcher: str, nodes: Sequence[NodeSize]) -> str | None:
    """A warning if GPUs stay idle.

    Raises:
        ClusterError: the processes do not fit.
        ConfigError: world_size cannot be spread over the nodes, or the run is for one process.
    """
    settings = config.global_training
    if not settings.distributed:
        raise ConfigError(
            "global_training.distributed is false and a job starts world_size processes; set "
            "distributed: true, data_parallelism: ddp (or fsdp) and world_size"
        )
    gpus = sum(node.gpus for node in nodes)
    if config.device == "cuda" and gpus == 0:
        raise ClusterError(
            "device: cuda, and Slurm gave this job no GPUs; add `#SBATCH --gpus-per-node=N`, or set "
            "device: cpu"
        )
    rooms = [room(config, launcher, node) for node in nodes]
    if launcher == "torchrun":
        wanted = processes_per_node(config, len(nodes))
        for node, has in zip(nodes, rooms, strict=True):
            if wanted > has:
                raise ClusterError(
                    f"global_training.world_size {settings.world_size} puts {wanted} processes on each node, "
                    f"and {node.name} gives the job {node.cpus} CPUs and {node.gpus} GPUs; {_ASK}"
                )
    elif (fewest := settings.world_size if (m := config.ray.min_world_size) is None else m) > sum(rooms):
        each = ", ".join(f"{node.name}: {node.cpus} CPUs, {node.gpus} GPUs" for node in nodes)
        raise ClusterError(
            f"{fewest} worker{'s' * (fewest > 1)} must run (global_training.world_size "
            f"{settings.world_size}) and the job has room for {sum(rooms)} ({each}); {_ASK}"
        )
    if config.device == "cuda" and settings.world_size < sum(rooms):
        return f"world_size is {settings.world_size} and the job has room for {sum(rooms)}: GPUs stay idle"
    return None
