"""A plain PyTorch loop over the same model with every window in memory: what training could cost at best.

    python tests/benchmarks/bare_loop.py CONFIG --strategy none|ddp|fsdp --updates N --device cpu|cuda

Prints one JSON line with samples per second, the first 10 updates left out. No loader, no checkpoints,
no figures: batches are slices of tensors that lie ready.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import time
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

from sequifier_ray.config.load import load_train
from sequifier_ray.data.loader import ShardLoader
from sequifier_ray.data.metadata import read_description
from sequifier_ray.data.order import EpochOrder, Plan
from sequifier_ray.model.initialization import initialize
from sequifier_ray.model.network import build_model
from sequifier_ray.train.optim import build_optimizer
from sequifier_ray.train.preflight import survey

WARM_UP = 10


def all_windows(
    config: Any,
) -> tuple[dict[str, torch.Tensor], torch.Tensor, dict[str, torch.Tensor], torch.Tensor]:
    """Every training sample as one tensor a column: inputs (N, C), their mask, targets (N, P), their mask."""
    dataset = survey(config).train
    order = EpochOrder(1, 0, dataset.shard_sample_counts, 8, "shuffled")
    plan = Plan.start(dataset.n_samples, 1, dataset.n_samples)
    with ShardLoader(dataset, order, plan, 0, 1, dataset.n_samples) as loader:
        batch = next(iter(loader)).micro_batches[0]
    return batch.inputs, batch.is_real, batch.targets, batch.target_is_real


def work(
    rank: int,
    world_size: int,
    path: str,
    strategy: str,
    updates: int,
    meeting: str,
    answer: str,
    device: str,
) -> None:
    torch.set_num_threads(max(1, (os.cpu_count() or 1) // world_size))
    config = load_train(path)
    settings = config.global_training
    size = settings.batch_size * settings.world_size // world_size
    inputs, is_real, targets, target_is_real = all_windows(config)
    inputs = {name: column.to(device) for name, column in inputs.items()}
    targets = {name: column.to(device) for name, column in targets.items()}
    is_real, target_is_real = is_real.to(device), target_is_real.to(device)
    description = read_description(config.resolve(config.dataset.part.metadata_config_path))
    model: Any = build_model(config.model, description, settings.context_length)
    initialize(model, config.seed)
    model.to(device)
    if strategy != "none":
        dist.init_process_group("gloo", init_method=meeting, rank=rank, world_size=world_size)
    if strategy == "ddp":
        model = DistributedDataParallel(model, gradient_as_bucket_view=True)
    if strategy == "fsdp":
        mesh = init_device_mesh("cpu", (world_size,))
        for module in (*model.blocks, model):
            fully_shard(module, mesh=mesh)
    optimizer = build_optimizer(config, list(model.parameters()))
    n = len(is_real)
    started_s = 0.0
    for update in range(WARM_UP + updates):
        if update == WARM_UP:
            if device == "cuda":
                torch.cuda.synchronize()
            started_s = time.perf_counter()
        start = (update * world_size + rank) * size % (n - size)
        part = slice(start, start + size)
        with torch.autocast(device, torch.bfloat16, enabled=settings.layer_autocast):
            outputs = model({name: column[part] for name, column in inputs.items()}, is_real[part])
        valid = target_is_real[part]
        loss = torch.zeros((), device=device)
        for name, predicted in outputs.items():
            target = targets[name][part]
            if target.is_floating_point():
                each = torch.nn.functional.mse_loss(predicted.squeeze(-1), target, reduction="none")
                loss = loss + (each * valid).sum() / valid.sum()
            else:
                wanted = torch.where(valid & (target >= 3), target - 3, -100)
                loss = loss + torch.nn.functional.cross_entropy(predicted.flatten(0, 1), wanted.flatten())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
    if device == "cuda":
        torch.cuda.synchronize()
    seconds = time.perf_counter() - started_s
    if rank == 0:
        with open(answer, "w") as file:
            json.dump({"strategy": strategy, "samples_per_s": updates * size * world_size / seconds}, file)
    if strategy != "none":
        # Taking a gloo group apart can wait for ever (torch 2.13).
        os._exit(0)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("config")
    parser.add_argument("--strategy", choices=["none", "ddp", "fsdp"], default="none")
    parser.add_argument("--updates", type=int, default=150)
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    options = parser.parse_args()
    world_size = 1 if options.strategy == "none" else 2
    with tempfile.TemporaryDirectory() as folder:
        answer = f"{folder}/answer.json"
        arguments = (
            world_size,
            options.config,
            options.strategy,
            options.updates,
            f"file://{folder}/ranks",
            answer,
            options.device,
        )
        if world_size == 1:
            work(0, *arguments)
        else:
            mp.spawn(work, args=arguments, nprocs=world_size)
        with open(answer) as file:
            print(file.read())


if __name__ == "__main__":
    main()
