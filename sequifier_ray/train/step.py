"""One optimizer update, from micro-batches to new weights."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from sequifier_ray.data.batch import SequenceBatch
from sequifier_ray.model.objectives import CausalObjective
from sequifier_ray.train.parallel import Strategy


@dataclass(frozen=True)
class UpdateResult:
    """Figures of one update; tensors stay on the device until somebody needs them.

    ``local_loss`` (T,) float32 is this rank's part of the loss per target; its sum over ranks is the
    loss of the update. ``flags`` (F,) are the ranks' flags, summed. ``n_target_tokens`` is global.
    ``is_applied``: the weights changed; they do not without a target, nor by a gradient that is not finite.
    """

    local_loss: Tensor
    grad_norm: Tensor
    flags: Tensor
    n_target_tokens: int
    is_finite: bool

    @property
    def is_applied(self) -> bool:
        return self.is_finite and self.n_target_tokens > 0


def announce(
    objective: CausalObjective, strategy: Strategy, micro_batches: Sequence[SequenceBatch], flags: Tensor
) -> Callable[[], Tensor]:
    """Start to sum valid target tokens (T,) and ``flags`` (F,) over ranks; call the answer for (T + F,).

    The counts need only masks, which lie in host memory, so the sums travel while the update before is
    computed. What one rank wants by its flags, all ranks learn at the same update.
    """
    counts = torch.stack([objective.count_targets(batch) for batch in micro_batches]).sum(0)  # (T,)
    return strategy.start_sum(torch.cat([counts.double(), flags.double()]))


def update(
    model: nn.Module,
    objective: CausalObjective,
    optimizer: torch.optim.Optimizer,
    strategy: Strategy,
    micro_batches: Sequence[SequenceBatch],
    announced: Callable[[], Tensor],
    max_norm: float | None,
) -> UpdateResult:
    """Take one optimizer step on the sum of the losses of all ranks' micro-batches.

    The loss is Σ_t weight_t · (Σ of target t's loss over valid tokens) / (number of valid tokens), both
    over all ranks and micro-batches, so that padding, accumulation and strategy change only rounding.
    ``announced`` gives the global counts, see ``announce``. A gradient that is not finite changes nothing;
    as it is the global one, all ranks see it alike.
    """
    counts, flags = announced().tensor_split([len(objective.target_columns)])  # (T,), (F,)
    n_target_tokens = int(counts.sum())
    per_token = (1.0 / counts.clamp(min=1)).float().to(strategy.device)  # (T,)
    # Both DDP and FSDP average gradients over ranks; the factor turns that average back into a sum.
    scale = objective.weights.to(strategy.device) * per_token * strategy.world_size  # (T,)

    local_loss = torch.zeros_like(scale)
    for i, host_batch in enumerate(micro_batches):
        batch = host_batch.to(strategy.device, non_blocking=True)
        # Gradients are added up locally; only the last backward pass exchanges them.
        with strategy.accumulate(model, is_last=i == len(micro_batches) - 1):
            with strategy.autocast():
                outputs = model(batch.inputs, batch.is_real)  # {target: (B, P, classes)}
            sums = objective.loss_sums(outputs, batch)  # (T,)
            (sums * scale).sum().backward()  # type: ignore[no-untyped-call]
        local_loss += sums.detach() * per_token

    grad_norm = strategy.clip_gradients(model, max_norm)
    is_finite = bool(torch.isfinite(grad_norm))  # the one wait for the device
    if is_finite and n_target_tokens > 0:  # equal on all ranks, so all of them step or none
        optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    return UpdateResult(local_loss, grad_norm, flags, n_target_tokens, is_finite)
