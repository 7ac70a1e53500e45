"""Whether a configuration's processes fit on a job's nodes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sequifier_ray.config.resources import not_offered, worker_needs, workers_fitting
from sequifier_ray.config.train import TrainConfig
from sequifier_ray.errors import ClusterError, ConfigError

_ASK = (
    "ask for more with `#SBATCH --nodes`, `--gpus-per-node` and `--cpus-per-task`, or lower "
    "global_training.world_size"
)


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


def room(config: TrainConfig, launcher: str, nodes: Sequence[NodeSize]) -> list[int]:
    """Processes that each node has room for, as the launcher places them; those that ask for nothing fit
    anywhere.

    Raises:
        ConfigError: they train on GPUs and ask for none, or for what nodes of a job do not offer.
    """
    needs = {"CPU": 1.0, "GPU": 1.0} if config.device == "cuda" else {"CPU": 1.0}
    strategy = None
    if launcher == "ray":
        needs, strategy = worker_needs(config), config.ray.placement_strategy
        missing, allowed = not_offered(config)
        if missing:
            raise ConfigError(
                f"ray.resources_per_worker: found {missing[0]}, which nodes of a job do not offer {allowed}"
            )
    if needs.get("GPU") == 0 and config.device == "cuda":
        raise ConfigError(
            "ray.resources_per_worker.GPU: found 0 with device: cuda; allowed: more than 0, as in GPU: 1"
        )
    rooms = []
    for node in nodes:
        fitting = workers_fitting(needs, {"CPU": node.cpus, "GPU": node.gpus})
        rooms.append(config.global_training.world_size if fitting is None else fitting)
    if strategy == "STRICT_SPREAD":
        return [min(has, 1) for has in rooms]
    if strategy == "STRICT_PACK":
        largest = rooms.index(max(rooms))
        return [has if i == largest else 0 for i, has in enumerate(rooms)]
    return rooms


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
    rooms = room(config, launcher, nodes)
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
        each += _strictly(config)
        raise ClusterError(
            f"{fewest} worker{'s' * (fewest > 1)} must run (global_training.world_size "
            f"{settings.world_size}) and the job has room for {sum(rooms)} ({each}); {_ASK}"
        )
    if config.device == "cuda" and settings.world_size < sum(rooms):
        return f"world_size is {settings.world_size} and the job has room for {sum(rooms)}: GPUs stay idle"
    return None


def _strictly(config: TrainConfig) -> str:
    strategy = config.ray.placement_strategy
    return f"; ray.placement_strategy: {strategy}" if strategy.startswith("STRICT") else ""
