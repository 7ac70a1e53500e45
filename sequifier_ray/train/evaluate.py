"""Validation: every real sample once, whatever the number of ranks and the batch size."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import nn

from sequifier_ray.data.loader import ShardLoader, SplitDataset
from sequifier_ray.data.order import EpochOrder, Plan
from sequifier_ray.model.objectives import CausalObjective
from sequifier_ray.train.parallel import Strategy


@dataclass(frozen=True)
class Validation:
    """Figures of one pass over the validation split; all are means over all real target tokens.

    ``naive`` is the same figure for the rule "the next value is the previous one": the loss for real
    targets, the share of hits for categorical ones, to be held against ``accuracy``.
    """

    loss: float
    loss_by_target: dict[str, float]
    accuracy: dict[str, float]
    naive: dict[str, float]
    n_samples: int


def evaluate(
    model: nn.Module,
    objective: CausalObjective,
    dataset: SplitDataset,
    strategy: Strategy,
    batch_size: int,
    stop_requested: Callable[[], bool],
) -> Validation | None:
    """Loss, accuracy and the naive baseline over ``dataset``; all ranks run the same number of forwards.

    None once any rank was asked to stop: all of them leave after the same batch.
    """
    # The "name" and "identity" orders need no shuffling, so validation reads shards front to back.
    order = EpochOrder(0, 0, dataset.shard_sample_counts, shuffle_shards=1, file_order="identity")
    plan = Plan.start(dataset.n_samples, strategy.world_size, batch_size * strategy.world_size)
    loader = ShardLoader(dataset, order, plan, strategy.rank, strategy.world_size, batch_size)
    n_targets = len(objective.target_columns)
    # Rows of the first: valid tokens, naive sums, naive tokens; of the second: summed loss, hits. (rows, T)
    on_host = torch.zeros(3, n_targets, dtype=torch.float64)
    on_device = torch.zeros(2, n_targets, dtype=torch.float64, device=strategy.device)
    model.eval()
    try:
        with torch.no_grad(), loader:
            asked = strategy.start_sum(torch.tensor([float(stop_requested())]))
            for batches in loader:
                # One batch late, so that nobody waits for the answer.
                if float(asked()) > 0:
                    return None
                asked = strategy.start_sum(torch.tensor([float(stop_requested())]))
                for host_batch in batches.micro_batches:
                    batch = host_batch.to(strategy.device, non_blocking=True)
                    with strategy.autocast():
                        outputs = model(batch.inputs, batch.is_real)
                    naive_sums, naive_counts = objective.naive_sums(host_batch)
                    counts = objective.count_targets(host_batch)
                    on_host += torch.stack([counts, naive_sums, naive_counts]).double()
                    losses, hits = (
                        objective.loss_sums(outputs, batch),
                        objective.accuracy_sums(outputs, batch),
                    )
                    on_device += torch.stack([losses, hits]).double()
            if float(asked()) > 0:
                return None
    finally:
        model.train()
    sums = strategy.sum_over_ranks(torch.cat([on_host, on_device.cpu()]))
    return _summarise(sums, objective, dataset.n_samples)


def _summarise(sums: torch.Tensor, objective: CausalObjective, n_samples: int) -> Validation:
    names = objective.target_columns
    tokens, naive_sums, naive_tokens, loss_sums, hit_sums = sums  # each (T,)
    losses = (loss_sums / tokens.clamp(min=1)).tolist()
    hits = (hit_sums / tokens.clamp(min=1)).tolist()
    naive = (naive_sums / naive_tokens.clamp(min=1)).tolist()
    weights = objective.weights.cpu().tolist()
    return Validation(
        loss=sum(weight * loss for weight, loss in zip(weights, losses, strict=True)),
        loss_by_target=dict(zip(names, losses, strict=True)),
        accuracy={n: h for n, h in zip(names, hits, strict=True) if objective.is_categorical(n)},
        naive={n: v for n, v, count in zip(names, naive, naive_tokens.tolist(), strict=True) if count > 0},
        n_samples=n_samples,
    )
