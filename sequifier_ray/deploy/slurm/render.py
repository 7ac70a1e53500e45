"""The batch script for a user's own numbers."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable
from dataclasses import dataclass

from sequifier_ray.config.resources import STEPS_PER_UNIT, in_steps, worker_needs
from sequifier_ray.config.train import TrainConfig
from sequifier_ray.deploy.slurm.sizes import NodeSize, check_room, processes_per_node, room
from sequifier_ray.errors import ConfigError

LAUNCHERS = ("ray", "torchrun")
_CPUS_PER_GPU = 8
_CPUS_WITHOUT_CONFIG = 2
_TIME = re.compile(r"(?:([0-9]{1,5})-)?([0-9]{1,9})(?::([0-9]{1,9}))?(?::([0-9]{1,9}))?")
_WORD = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.,@:+/=-]*")
_MEMORY = re.compile(r"([0-9]{1,12})([KMGT]?)")
_KIBI = {"K": 1, "M": 1 << 10, "": 1 << 10, "G": 1 << 20, "T": 1 << 30}
# More than any machine or cluster has.
_MOST_NODES, _MOST_CPUS, _MOST_GPUS, _MOST_TERABYTES = 10_000, 4096, 64, 1024
# So that only GPUs count.
_ENOUGH_CPUS = 10**12
# The warning comes two minutes before the limit, and a training needs some to start and to get on.
_SHORTEST_MIN, _LONGEST_MIN = 10, 365 * 24 * 60

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
    config_path: str | None = None


def render(wishes: Wishes, config: TrainConfig | None, warn: Callable[[str], None]) -> str:
    """The script; the configuration's world_size is held against nodes × GPUs, or CPUs where there are none.
    ``warn`` hears of GPUs that stay idle.

    Raises:
        ConfigError: a wish that sbatch would not take, or that does not agree with the configuration.
        ClusterError: the configuration's processes do not fit on what is asked for.
    """
    _check_words(wishes)
    cpus = _cpus(wishes, config)
    if config is not None and (warning := _check_world(wishes, cpus, config)):
        warn(warning)
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
    numbers = (
        ("--nodes", wishes.nodes, 1, _MOST_NODES),
        ("--gpus-per-node", wishes.gpus, 0, _MOST_GPUS),
        ("--cpus-per-node", wishes.cpus, 1, _MOST_CPUS),
    )
    for option, value, least, most in numbers:
        if value is not None and value < least:
            raise ConfigError(f"{option}: found {value}; allowed: {least} or more")
        if value is not None and value > most:
            raise ConfigError(f"{option}: found {value}; allowed: {most} or less")
    _check_time(wishes.time)
    _check_memory(wishes.memory)
    for option, word in (("--partition", wishes.partition), ("--account", wishes.account)):
        if word is not None and not _WORD.fullmatch(word):
            raise ConfigError(
                f'{option}: found "{word}"; allowed: one word, as `sinfo` and `sacctmgr` show it'
            )


def _check_time(time: str) -> None:
    found = _TIME.fullmatch(time)
    if found is None:
        raise ConfigError(
            f'--time: found "{time}"; allowed: minutes, hours:minutes:seconds or '
            "days-hours:minutes:seconds, as in 24:00:00"
        )
    minutes = _minutes(found)
    if minutes < _SHORTEST_MIN:
        raise ConfigError(
            f"--time: found {time}, which is {minutes:g} minutes; allowed: {_SHORTEST_MIN} minutes or more: "
            "the training is stopped two minutes before the end"
        )
    if minutes > _LONGEST_MIN:
        raise ConfigError(f"--time: found {time}; allowed: at most 365 days, as in 365-00:00:00")


def _minutes(found: re.Match[str]) -> float:
    """Minutes of a time as sbatch reads it: a number alone is minutes, or hours after days; two are minutes
    and seconds, or hours and minutes after days."""
    days, *rest = found.groups()
    numbers = [int(number) for number in rest if number is not None]
    if days is None and len(numbers) < 3:
        numbers = [0, *numbers]
    hours, minutes, seconds = (*numbers, 0, 0)[:3]
    return (int(days or 0) * 24 + hours) * 60 + minutes + seconds / 60


def _check_memory(memory: str | None) -> None:
    if memory is None:
        return
    found = _MEMORY.fullmatch(memory)
    if found is None:
        raise ConfigError(f'--mem: found "{memory}"; allowed: a number and K, M, G or T, as in 64G')
    kibibytes = int(found[1]) * _KIBI[found[2]]
    # 0 is Slurm's word for all that a node has.
    if kibibytes > _MOST_TERABYTES << 30 or 0 < kibibytes < _KIBI["G"]:
        raise ConfigError(
            f"--mem: found {memory}; allowed: from 1G to {_MOST_TERABYTES}T, or 0 for all that a node has"
        )


def _cpus(wishes: Wishes, config: TrainConfig | None) -> int:
    """CPUs of a node where none are asked for: a few a GPU, or what its processes take if that is more."""
    if wishes.cpus is not None:
        return wishes.cpus
    if config is None:
        return wishes.gpus * _CPUS_PER_GPU or _CPUS_WITHOUT_CONFIG
    each = worker_needs(config)["CPU"] if wishes.launcher == "ray" else 1.0
    if config.device == "cuda":
        [has_room] = room(config, wishes.launcher, [NodeSize("", _ENOUGH_CPUS, wishes.gpus)])
        processes = min(has_room, config.global_training.world_size)
    else:
        together = config.ray.placement_strategy == "STRICT_PACK" and wishes.launcher == "ray"
        processes = -(-config.global_training.world_size // (1 if together else wishes.nodes))
    least = -(-processes * in_steps(each) // STEPS_PER_UNIT)
    if least > _MOST_CPUS:
        raise ConfigError(
            f"a node's processes ({processes}) take {least} CPUs, and no machine has more than {_MOST_CPUS}; "
            "lower CPU in ray.resources_per_worker or global_training.world_size, or give more --nodes"
        )
    return max(wishes.gpus * _CPUS_PER_GPU, least, 1)


def _check_world(wishes: Wishes, cpus: int, config: TrainConfig) -> str | None:
    if config.device == "cpu" and wishes.gpus:
        raise ConfigError(
            f"device is cpu in the configuration and --gpus-per-node {wishes.gpus} would stay idle; set "
            "device: cuda and global_training.backend: nccl, or --gpus-per-node 0"
        )
    if config.device == "cuda" and wishes.gpus == 0:
        raise ConfigError(
            "device is cuda in the configuration and --gpus-per-node is 0; give the nodes' GPUs"
        )
    world_size = config.global_training.world_size

    def room_with(n_cpus: int) -> int:
        nodes = [NodeSize(f"node {i + 1}", n_cpus, wishes.gpus) for i in range(wishes.nodes)]
        return sum(room(config, wishes.launcher, nodes))

    on_gpus, has_room = room_with(_ENOUGH_CPUS), room_with(cpus)
    if config.device == "cuda" and has_room < min(world_size, on_gpus):
        raise ConfigError(
            f"--cpus-per-node: {wishes.nodes} × {cpus} CPUs have room for {has_room} processes, and "
            f"{wishes.nodes} × {wishes.gpus} GPUs for {on_gpus}; leave it out, or lower CPU in "
            "ray.resources_per_worker"
        )
    if config.device == "cuda" and world_size != has_room and config.ray.min_world_size is None:
        remedy = f"set world_size: {has_room}, or other --nodes and --gpus-per-node"
        if has_room == 0:
            remedy = "give more --gpus-per-node, or lower GPU in ray.resources_per_worker"
        raise ConfigError(
            f"global_training.world_size is {world_size} and {wishes.nodes} × {wishes.gpus} GPUs have room "
            f"for {has_room} processes; {remedy}"
        )
    nodes = [NodeSize(f"node {i + 1}", cpus, wishes.gpus) for i in range(wishes.nodes)]
    if wishes.launcher == "torchrun":
        processes_per_node(config, wishes.nodes)
    return check_room(config, wishes.launcher, nodes)


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
        "config-path": wishes.config_path,
    }
    words = [f"--{name} {shlex.quote(str(value))}" for name, value in options.items() if value is not None]
    return f"sequifier-ray slurm render {' '.join(words)}"
