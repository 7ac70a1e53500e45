"""The batch script for a user's own numbers."""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass

from sequifier_ray.config.train import TrainConfig
from sequifier_ray.deploy.slurm.sizes import NodeSize, check_room, processes_per_node, room
from sequifier_ray.errors import ConfigError

LAUNCHERS = ("ray", "torchrun")
_CPUS_PER_GPU = 8
_CPUS_WITHOUT_CONFIG = 2
_TIME = re.compile(r"(\d+-)?\d+(:\d+){0,2}")
_WORD = re.compile(r"[\w.,@:+/=-]+")
_MEMORY = re.compile(r"\d+[KMGT]?")

_SCRIPT = """\
#!/bin/bash
# {what}
#     cd PROJECT && sbatch {name} configs/train.yaml
# `sequifier-ray` must be on the PATH where sbatch is typed, and PROJECT seen by all nodes. Words after the
# file go to `sequifier-ray train`, as in --set training_plan.epochs=3.{verbs}
# Only the #SBATCH lines are for changing; options of sbatch win over them. Made by:
#     {command}
#SBATCH --job-name=sequifier-ray
#SBATCH --nodes={nodes}
#SBATCH --ntasks-per-node=1
#SBATCH --cpus-per-task={cpus}
{gpus}
{memory}
#SBATCH --time={time}
{place}#SBATCH --output=slurm-%j.out
#SBATCH --open-mode=append
# Two minutes before the time limit the training saves a checkpoint, and the job goes back into the queue.
#SBATCH --signal=B:USR1@120
#SBATCH --requeue

# A warning that comes before anyone listens must not end the job; what follows sets its own handler.
trap '' USR1
command -v sequifier-ray > /dev/null || {{
    echo "error: $SLURMD_NODENAME has no sequifier-ray on its PATH; activate its environment, then sbatch" >&2
    exit 2
}}
exec sequifier-ray slurm run --launcher {launcher} -- "$@"
"""
_WHAT = {
    "ray": "Trains on a Ray cluster that lives as long as this Slurm job:",
    "torchrun": "Trains under torchrun in a Slurm job, without Ray:",
}
_VERBS = {
    "ray": "\n# `sbatch {name} preprocess configs/preprocess.yaml` preprocesses on all nodes.",
    "torchrun": "",
}


@dataclass(frozen=True)
class Wishes:
    """What a user asks Slurm for; ``cpus`` and ``gpus`` are per node, ``time`` and ``memory`` as sbatch
    writes them."""

    launcher: str
    nodes: int
    gpus: int
    time: str
    cpus: int | None = None
    memory: str | None = None
    partition: str | None = None
    account: str | None = None


def render(wishes: Wishes, config: TrainConfig | None) -> str:
    """The script; the configuration's world_size is held against nodes × GPUs, or CPUs where there are none.

    Raises:
        ConfigError: a wish that sbatch would not take, or that does not agree with the configuration.
        ClusterError: the configuration's processes do not fit on what is asked for.
    """
    _check_words(wishes)
    cpus = _cpus(wishes, config)
    if config is not None:
        _check_world(wishes, cpus, config)
    gpus = f"#SBATCH --gpus-per-node={wishes.gpus}" if wishes.gpus else "##SBATCH --gpus-per-node=4"
    memory = f"#SBATCH --mem={wishes.memory}" if wishes.memory else "##SBATCH --mem=64G"
    place = "".join(
        f"#SBATCH --{name}={value}\n"
        for name, value in (("partition", wishes.partition), ("account", wishes.account))
        if value
    )
    name = f"train-{wishes.launcher}.sbatch"
    return _SCRIPT.format(
        what=_WHAT[wishes.launcher],
        verbs=_VERBS[wishes.launcher].format(name=name),
        name=name,
        command=_command(wishes),
        nodes=wishes.nodes,
        cpus=cpus,
        gpus=gpus,
        memory=memory,
        time=wishes.time,
        place=place,
        launcher=wishes.launcher,
    )


def _check_words(wishes: Wishes) -> None:
    if wishes.launcher not in LAUNCHERS:
        raise ConfigError(f'--launcher: "{wishes.launcher}" is none of {", ".join(LAUNCHERS)}')
    smallest = (
        ("--nodes", wishes.nodes, 1),
        ("--gpus-per-node", wishes.gpus, 0),
        ("--cpus-per-node", wishes.cpus, 1),
    )
    for option, value, least in smallest:
        if value is not None and value < least:
            raise ConfigError(f"{option}: found {value}; allowed: {least} or more")
    if not _TIME.fullmatch(wishes.time):
        raise ConfigError(
            f'--time: found "{wishes.time}"; allowed: minutes, hours:minutes:seconds or '
            "days-hours:minutes:seconds, as in 24:00:00"
        )
    if wishes.memory is not None and not _MEMORY.fullmatch(wishes.memory):
        raise ConfigError(f'--mem: found "{wishes.memory}"; allowed: a number and K, M, G or T, as in 64G')
    for option, word in (("--partition", wishes.partition), ("--account", wishes.account)):
        if word is not None and not _WORD.fullmatch(word):
            raise ConfigError(
                f'{option}: found "{word}"; allowed: one word, as `sinfo` and `sacctmgr` show it'
            )


def _cpus(wishes: Wishes, config: TrainConfig | None) -> int:
    """CPUs of a node where none are asked for: a few a GPU, else one a process."""
    if wishes.cpus is not None:
        return wishes.cpus
    if wishes.gpus:
        return wishes.gpus * _CPUS_PER_GPU
    if config is None:
        return _CPUS_WITHOUT_CONFIG
    return -(-config.global_training.world_size // wishes.nodes)


def _check_world(wishes: Wishes, cpus: int, config: TrainConfig) -> None:
    if config.device == "cpu" and wishes.gpus:
        raise ConfigError(
            f"device is cpu in the configuration and --gpus-per-node {wishes.gpus} would stay idle; set "
            "device: cuda and global_training.backend: nccl, or --gpus-per-node 0"
        )
    nodes = [NodeSize(f"node {i + 1}", cpus, wishes.gpus) for i in range(wishes.nodes)]
    if config.device == "cuda" and wishes.gpus == 0:
        raise ConfigError(
            "device is cuda in the configuration and --gpus-per-node is 0; give the nodes' GPUs"
        )
    world_size = config.global_training.world_size
    has_room = room(config, wishes.launcher, nodes[0]) * wishes.nodes
    if config.device == "cuda" and world_size != has_room and config.ray.min_world_size is None:
        raise ConfigError(
            f"global_training.world_size is {world_size} and {wishes.nodes} × {wishes.gpus} GPUs have room "
            f"for {has_room} processes; set world_size: {has_room}, or other --nodes and --gpus-per-node"
        )
    check_room(config, wishes.launcher, nodes)
    if wishes.launcher == "torchrun":
        processes_per_node(config, wishes.nodes)


def _command(wishes: Wishes) -> str:
    options = {
        "launcher": wishes.launcher,
        "nodes": wishes.nodes,
        "gpus-per-node": wishes.gpus,
        "cpus-per-node": wishes.cpus,
        "mem": wishes.memory,
        "time": wishes.time,
        "partition": wishes.partition,
        "account": wishes.account,
    }
    words = [f"--{name} {shlex.quote(str(value))}" for name, value in options.items() if value is not None]
    return f"sequifier-ray slurm render {' '.join(words)}"
