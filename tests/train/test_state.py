"""Where a run stands."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from sequifier_ray.errors import DataError
from sequifier_ray.train.checkpoint import StepFolders
from sequifier_ray.train.state import OrderKey, TrainState


def test_a_validation_loss_that_is_not_finite_is_no_best() -> None:
    state = TrainState(OrderKey(0, 1, 1, "name", ""), 1).after_validation(math.nan)
    assert (state.best_loss, state.stale_epochs) == (None, 1)
    assert state.after_validation(1.0).best_loss == 1.0


def test_a_step_that_cannot_be_looked_at_is_neither_free_nor_damaged(tmp_path: Path) -> None:
    state = TrainState(OrderKey(0, 1, 1, "name", ""), 1, run_id="other-run")
    step = tmp_path / "step-00000007"
    step.mkdir()
    manifest = step / "state.json"
    manifest.write_text(json.dumps({**state.to_json(), "files": {}}))
    folders = StepFolders(str(tmp_path), 2)
    assert folders.path_of(7, "0123456789") == f"{step}-01234567"
    manifest.write_text("{}")
    assert folders.path_of(7, "0123456789") == str(step)
    assert folders.complete(str) == []
    manifest.unlink()
    manifest.mkdir()  # what even root cannot read
    assert folders.path_of(7, "0123456789") == f"{step}-01234567"
    assert folders.complete() == []
    with pytest.raises(DataError, match=f"^cannot read {manifest}: "):
        folders.complete(str)
