"""What runs inside each Ray Train worker. Imports little: its import time is the restart time."""

from __future__ import annotations

import time
import traceback
from collections.abc import Callable
from typing import Any

import ray
import torch
import torch.distributed as dist

from sequifier_ray.config.train import TrainConfig
from sequifier_ray.launch.context import device_for
from sequifier_ray.launch.failures import describe
from sequifier_ray.launch.hub import HubLink
from sequifier_ray.launch.ledger import keep_ledger
from sequifier_ray.launch.preemption import PreemptionNotice
from sequifier_ray.train import engine
from sequifier_ray.train.worker import WorkerContext


def train_worker(parcel: dict[str, Any]) -> None:
    """One rank. A mistake of the user's is told once and not tried again; a lost peer is."""
    import ray.train

    place = ray.train.get_context()
    rank, world_size = place.get_world_rank(), place.get_world_size()
    link = HubLink(parcel["hub"], ray.wait, time.monotonic)
    restarts, has_failed = _enter(parcel["hub"], rank)
    if has_failed:
        return
    try:
        config = TrainConfig.model_validate(parcel["config"])
        notice = PreemptionNotice(lambda text: link.report({"kind": "line", "text": text}))
        stop, save = _requests(config, rank, link, notice)
        context = WorkerContext(
            rank=rank,
            world_size=world_size,
            device=_device(config, place.get_local_rank()),
            launcher="ray",
            launched_at_s=parcel["launched_at_s"],
            restarts=restarts,
            launch_id=parcel["launch_id"],
            report=link.report,
            stop_requested=stop,
            save_requested=save,
            applied=keep_ledger(rank, parcel["ledger"]),
        )
        summary = engine.run(config, context)
        if rank == 0:
            link.flush({"kind": "finished", "summary": summary})
    except Exception as error:
        failure = describe(error, rank, traceback.format_exc())
        link.flush({"kind": "lost" if failure.is_collateral else "failed", "failure": failure})
        # Raising ends all workers, also those that wait for this one in a collective. Started again after a
        # failure that was told, they return at once.
        raise


def _device(config: TrainConfig, local_rank: int) -> torch.device:
    """On GPUs the one that Ray gave this worker."""
    if config.device == "cpu":
        return device_for(config, local_rank)
    import ray.train.torch

    device: torch.device = ray.train.torch.get_device()
    torch.cuda.set_device(device)
    return device


def _requests(
    config: TrainConfig, rank: int, link: HubLink, notice: PreemptionNotice
) -> tuple[Callable[[], bool], Callable[[], bool]]:
    """What asks a rank to stop, and what asks it to save; rank 0 speaks for all."""
    if rank != 0:
        return _never, _never
    if config.ray.min_world_size is not None:
        return link.stop_requested, notice.came_just_now
    # A run that is not elastic could only wait for the node.
    return lambda: link.stop_requested() or notice.came(), _never


def _never() -> bool:
    return False


def _enter(hub: Any, rank: int) -> tuple[int, bool]:
    """How often this run was started before, and whether it already failed; rank 0 asks, all know."""
    answer = list(ray.get(hub.enter.remote())) if rank == 0 else [0, False]
    values = torch.tensor(answer, dtype=torch.int64)
    dist.broadcast(values, src=0)
    return int(values[0]), bool(values[1])
