"""One rank of a run that torchrun started: for clusters without Ray."""

from __future__ import annotations

import time
import traceback
from typing import Any

import torch.distributed as dist

from sequifier_ray.config.train import TrainConfig
from sequifier_ray.errors import SequifierRayError
from sequifier_ray.launch.console import Console
from sequifier_ray.launch.context import device_for, join_torchrun_group, torchrun_ranks
from sequifier_ray.launch.failures import describe
from sequifier_ray.launch.ledger import keep_ledger, ledger_folder
from sequifier_ray.launch.signals import StopSignals
from sequifier_ray.train import engine
from sequifier_ray.train.worker import WorkerContext


def with_world_size(config: TrainConfig, world_size: int) -> TrainConfig:
    """The same configuration for another number of processes."""
    settings = config.global_training.model_copy(update={"world_size": world_size})
    return config.model_copy(update={"global_training": settings})


def _same_on_all(config: TrainConfig) -> TrainConfig:
    """Rank 0's configuration: a random seed, or a file that differs between nodes, must not split the run."""
    box = [config.model_dump(mode="json")]
    dist.broadcast_object_list(box, src=0)
    return TrainConfig.model_validate(box[0])


def run(config: TrainConfig, console: Console) -> dict[str, Any]:
    """Train as the rank that torchrun's variables name; returns the summary.

    Raises:
        ConfigError: variables are missing.
        SequifierRayError: see engine.run.
    """
    launched_at_s = time.time()
    ranks = torchrun_ranks()
    wanted = config.global_training.world_size
    if ranks.world_size != wanted:
        config = with_world_size(config, ranks.world_size)
        if ranks.rank == 0:
            console.warn(
                f"torchrun started {ranks.world_size} processes and global_training.world_size says "
                f"{wanted}: "
                f"{ranks.world_size} it is, and an update takes {ranks.world_size} × batch_size samples"
            )
    # The batch system signals every process, and torchrun passes its own signal on: two are one request.
    with StopSignals(ends_on_second=False) as signals:
        device = device_for(config, ranks.local_rank)
        launch_id = join_torchrun_group(config, ranks)
        try:
            context = WorkerContext(
                rank=ranks.rank,
                world_size=ranks.world_size,
                device=device,
                launcher="torchrun",
                launched_at_s=launched_at_s,
                restarts=ranks.restarts,
                launch_id=launch_id,
                report=console.show,
                stop_requested=signals.is_requested,
                applied=keep_ledger(ranks.rank, ledger_folder()),
            )
            return signals.mark(engine.run(_same_on_all(config), context))
        except SequifierRayError:
            raise
        except Exception as error:
            raise describe(error, ranks.rank, traceback.format_exc()).as_error() from error
