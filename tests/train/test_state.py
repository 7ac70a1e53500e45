"""Where a run stands."""

from __future__ import annotations

import math

from sequifier_ray.train.state import OrderKey, TrainState


def test_a_validation_loss_that_is_not_finite_is_no_best() -> None:
    state = TrainState(OrderKey(0, 1, 1, "name", ""), 1).after_validation(math.nan)
    assert (state.best_loss, state.stale_epochs) == (None, 1)
    assert state.after_validation(1.0).best_loss == 1.0
