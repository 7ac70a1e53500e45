"""One rank of a gloo group that runs configurations one after the other.

engine_ranks.py RANK WORLD_SIZE STORE UPDATES CONFIG... stops each run after UPDATES updates, counted from its
start."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable

import torch
import torch.distributed as dist

from sequifier_ray.config.load import load_train
from sequifier_ray.train import engine
from sequifier_ray.train.worker import WorkerContext


def stop_after(updates: int) -> Callable[[], bool]:
    calls = 0

    def requested() -> bool:
        nonlocal calls
        calls += 1
        return calls >= updates

    return requested


def main(rank: int, world_size: int, store: str, updates: int, configs: list[str]) -> None:
    torch.set_num_threads(1)
    if world_size > 1:
        dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=world_size)
    for path in configs:
        context = WorkerContext(rank=rank, world_size=world_size, stop_requested=stop_after(updates))
        engine.run(load_train(path), context)
    sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], int(sys.argv[4]), sys.argv[5:])
