"""Where a run stands: everything but tensors, small enough for one JSON file."""

from __future__ import annotations

import math
import platform
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from sequifier_ray import __version__
from sequifier_ray.data.order import Plan

STATE_FORMAT = "sequifier_ray.checkpoint"
STATE_VERSION = 1


@dataclass(frozen=True)
class OrderKey:
    """What the order of samples within an epoch depends on; equal keys give equal orders."""

    seed: int
    n_samples: int
    shuffle_shards: int
    file_order: str
    fingerprint: str


@dataclass(frozen=True)
class TrainState:
    """Progress of a run after ``update`` optimizer updates.

    ``epoch`` counts finished epochs. ``plan`` holds what is left of the epoch that is under way; None
    between epochs. ``data_streams`` is the number of streams the next epoch starts with, ``learning_rate``
    the configured one, from which the schedule in ``scheduler`` goes out.
    ``best_loss`` is the lowest validation loss so far, ``best_update`` the update it was measured at.
    ``validation_due``: the epoch has ended, its validation has not. ``epoch_samples`` counts the real and the
    repeated samples of the last epoch that ended.
    """

    order: OrderKey
    data_streams: int
    learning_rate: float | None = None
    update: int = 0
    epoch: int = 0
    samples_seen: int = 0
    plan: Plan | None = None
    best_loss: float | None = None
    best_update: int | None = None
    stale_epochs: int = 0
    train_seconds: float = 0.0
    validation_due: bool = False
    epoch_samples: tuple[int, int] | None = None
    run_id: str = ""
    run_started_s: float = 0.0
    scheduler: dict[str, Any] = field(default_factory=dict)

    def of_new_run(self, run_id: str, run_started_s: float) -> TrainState:
        """The same progress as the beginning of another run, which has its own best still to find."""
        return replace(
            self, run_id=run_id, run_started_s=run_started_s, best_loss=None, best_update=None, stale_epochs=0
        )

    def after_validation(self, loss: float) -> TrainState:
        """The state with a new best, or with one more epoch that brought none; NaN is no best."""
        if math.isfinite(loss) and (self.best_loss is None or loss < self.best_loss):
            return replace(self, best_loss=loss, best_update=self.update, stale_epochs=0)
        return replace(self, stale_epochs=self.stale_epochs + 1)

    @property
    def is_best(self) -> bool:
        return self.best_update == self.update

    def to_json(self) -> dict[str, Any]:
        """Plain values, with the format and the versions that wrote them."""
        values = dict(vars(self))
        values["order"] = dict(vars(self.order))
        values["plan"] = None if self.plan is None else self.plan.to_json()
        versions = {
            "sequifier_ray": __version__,
            "torch": torch.__version__,
            "python": platform.python_version(),
        }
        return {"format": STATE_FORMAT, "version": STATE_VERSION, "versions": versions, **values}

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> TrainState:
        """The state that ``to_json`` wrote."""
        values = {k: v for k, v in values.items() if k in cls.__dataclass_fields__}
        plan = values["plan"]
        values["plan"] = None if plan is None else Plan.from_json(plan)
        values["order"] = OrderKey(**values["order"])
        if values.get("epoch_samples") is not None:
            values["epoch_samples"] = tuple(values["epoch_samples"])
        return cls(**values)
