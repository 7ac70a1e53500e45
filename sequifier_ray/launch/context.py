"""From a launcher's facts (rank, device, threads) to the context that training sees.

With ``ranks.py`` the only module that reads RANK-like variables.
"""

from __future__ import annotations

import os
import time
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.rendezvous import rendezvous

from sequifier_ray.config.train import TrainConfig
from sequifier_ray.errors import ClusterError, ConfigError

_ADDRESS_KEY = "sequifier-ray/store-port"
_LAUNCH_KEY = "sequifier-ray/launch"
_CONNECT_TIMEOUT = timedelta(seconds=3)
_NEEDED = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT")


@dataclass(frozen=True)
class TorchrunRanks:
    """What torchrun tells each of its processes."""

    rank: int
    world_size: int
    local_rank: int
    local_world_size: int
    restarts: int


def torchrun_ranks(environment: Mapping[str, str] = os.environ) -> TorchrunRanks:
    """The ranks from torchrun's variables.

    Raises:
        ConfigError: some are missing or no numbers; all of them are named at once.
    """
    missing = [name for name in _NEEDED if name not in environment]
    if missing:
        raise ConfigError(
            f"the torchrun launcher needs the variables {', '.join(_NEEDED)}, and {', '.join(missing)} "
            f"{'is' if len(missing) == 1 else 'are'} missing; start with "
            "`torchrun --nproc-per-node N -m sequifier_ray train ...`, or use --launcher ray"
        )
    numbers = {}
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "TORCHELASTIC_RESTART_COUNT"):
        text = environment.get(name, "1" if name == "LOCAL_WORLD_SIZE" else "0")
        if not text.isdecimal():
            raise ConfigError(f'the variable {name} must be a number of 0 or more, found "{text}"')
        numbers[name] = int(text)
    if numbers["RANK"] >= numbers["WORLD_SIZE"]:
        raise ConfigError(
            f"RANK must be below WORLD_SIZE, found {numbers['RANK']} and {numbers['WORLD_SIZE']}"
        )
    return TorchrunRanks(
        numbers["RANK"],
        numbers["WORLD_SIZE"],
        numbers["LOCAL_RANK"],
        numbers["LOCAL_WORLD_SIZE"],
        numbers["TORCHELASTIC_RESTART_COUNT"],
    )


def device_for(config: TrainConfig, local_rank: int) -> torch.device:
    """This process's device.

    Raises:
        ClusterError: the config wants a GPU that this node does not have.
    """
    if config.device == "cpu":
        return torch.device("cpu")
    n_devices = torch.cuda.device_count()
    if local_rank >= n_devices:
        raise ClusterError(
            f"device: cuda, but this node has {n_devices} usable GPUs and process {local_rank} on it "
            "needs one of its own; "
            "start fewer processes per node, or set device: cpu"
        )
    if config.global_training.enforce_determinism:
        # cuBLAS reads it when it starts.
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    device = torch.device("cuda", local_rank)
    torch.cuda.set_device(device)
    return device


def group_backend(config: TrainConfig) -> str:
    """The process group's backend; beside nccl a gloo one carries counts and flags in host memory."""
    return "gloo" if config.global_training.backend == "gloo" else "cpu:gloo,cuda:nccl"


def open_process_group(config: TrainConfig, rank: int, world_size: int, init_method: str) -> None:
    """Join the process group of all ranks."""
    dist.init_process_group(
        group_backend(config),
        init_method=init_method,
        rank=rank,
        world_size=world_size,
        timeout=timedelta(seconds=config.global_training.collective_timeout_s),
    )


def join_torchrun_group(config: TrainConfig, ranks: TorchrunRanks) -> str:
    """Join the process group of torchrun's ranks, over a store that is as new as they are; returns a name for
    all starts of these agents.

    The agents keep theirs when they start the ranks again, and addresses of the dead in it make some wait
    for ever (torch 2.13): so rank 0 opens another one, and leaves its address in theirs.
    """
    timeout = timedelta(seconds=config.global_training.collective_timeout_s)
    kinds: Any = dist  # the stubs lack these names
    agents, _, _ = next(rendezvous("env://", ranks.rank, ranks.world_size, timeout=timeout))
    host = os.environ["MASTER_ADDR"]
    launch_id: bytes = agents.compare_set(_LAUNCH_KEY, "", uuid.uuid4().hex)
    if ranks.rank == 0:
        store = kinds.TCPStore(host, 0, ranks.world_size, True, timeout, wait_for_workers=False)
        agents.set(_ADDRESS_KEY, str(store.port))
    else:
        store = _connect(agents, host, ranks.world_size, timeout)
    dist.init_process_group(
        group_backend(config), store=store, rank=ranks.rank, world_size=ranks.world_size, timeout=timeout
    )
    return launch_id.decode()


def _connect(agents: Any, host: str, world_size: int, timeout: timedelta) -> Any:
    """The store of this start's rank 0: an earlier one's is closed, so that its address leads nowhere."""
    kinds: Any = dist
    deadline_s = time.monotonic() + timeout.total_seconds()
    while True:
        port = int(agents.get(_ADDRESS_KEY))
        try:
            store = kinds.TCPStore(host, port, world_size, False, _CONNECT_TIMEOUT)
        except (RuntimeError, OSError):
            if time.monotonic() > deadline_s:
                raise
            time.sleep(0.2)
            continue
        store.set_timeout(timeout)
        return store


def use_threads(n_threads: int) -> None:
    """Let torch use ``n_threads`` threads: more than the process's share of cores slows all ranks down."""
    torch.set_num_threads(max(1, n_threads))


def usable_cores() -> int:
    """Cores that this process may run on."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
