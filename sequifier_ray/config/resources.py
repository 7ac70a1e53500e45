"""What a worker takes of a node, counted as Ray counts: in whole ten-thousandths."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sequifier_ray.config.train import TrainConfig

STEPS_PER_UNIT = 10_000
SMALLEST_AMOUNT = 1 / STEPS_PER_UNIT


def in_steps(amount: float) -> int:
    """An amount of a resource as Ray keeps it; 0.1 three times is 0.3 only in these.

    >>> in_steps(0.3) == 3 * in_steps(0.1), 0.3 == 3 * 0.1
    (True, False)
    """
    return round(amount * STEPS_PER_UNIT)


def worker_needs(config: TrainConfig) -> dict[str, float]:
    """Ray resources of one worker, by name."""
    default = {"CPU": 1.0, "GPU": 1.0} if config.device == "cuda" else {"CPU": 1.0}
    return {**default, **config.ray.resources_per_worker}


def not_offered(config: TrainConfig) -> tuple[list[str], str]:
    """Resources of a worker that nodes of a cluster made for it do not have, and which they do: without GPUs
    neither those nor Ray's name for their kind."""
    has_gpus = config.device == "cuda"
    offered = ["CPU", "GPU", "memory"] if has_gpus else ["CPU", "memory"]
    missing = [
        name
        for name, amount in config.ray.resources_per_worker.items()
        if amount and name not in offered and not (has_gpus and name.startswith("accelerator_type:"))
    ]
    return missing, f"with device: {config.device}; allowed: {', '.join(offered)}"


def workers_fitting(needs: Mapping[str, float], there: Mapping[str, int]) -> int | None:
    """How many workers a node has room for, by the resources that it counts; None if they take none of them.

    A share of a GPU lies on one GPU: of 0.3 each takes three, not ten on three.
    """
    counts = []
    for name, amount in there.items():
        each = in_steps(needs.get(name, 0.0))
        if each and name == "GPU" and each < STEPS_PER_UNIT:
            counts.append(amount * (STEPS_PER_UNIT // each))
        elif each:
            counts.append(amount * STEPS_PER_UNIT // each)
    return min(counts, default=None)
