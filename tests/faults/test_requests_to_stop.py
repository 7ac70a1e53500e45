"""Asked to stop, a run saves at the next update on all ranks together, and says by its exit code who
asked."""

from __future__ import annotations

import json
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parent))
from conftest import Run, end, n_samples


@pytest.mark.parametrize(
    ("launcher", "number", "expected"),
    [
        ("spawn", signal.SIGTERM, 75),
        ("spawn", signal.SIGUSR1, 75),
        ("spawn", signal.SIGINT, 130),
        ("ray", signal.SIGINT, 130),
        ("ray", signal.SIGUSR1, 75),
    ],
)
def test_a_signal_saves_and_the_next_start_goes_on(
    flights: Any, new_run: Callable[..., Run], launcher: str, number: int, expected: int
) -> None:
    name = f"signal-{launcher}-{int(number)}"
    # So large an interval that only the request can have saved; it comes within a window of micro-batches.
    window = {"global_training__batch_size": 4, "global_training__accumulation_steps": 4}
    run = new_run(name, global_training__save_interval_batches=10_000, training_plan__epochs=3, **window)
    process = run.start(launcher=launcher)
    run.wait_for_update(7)
    process.send_signal(number)
    code, out, err = end(process)
    assert code == expected, err
    assert "Traceback" not in err
    stopped = run.updates()
    assert f"stopped on request at step {stopped}" in out
    state = json.loads((Path(flights.summary(name)["checkpoints"][-1]) / "state.json").read_text())
    assert state["update"] == stopped
    code, out, err = end(run.start(launcher="spawn"))
    assert code == 0, err
    assert f"resuming from step {stopped}" in out
    run.check_ledger(3, n_samples(flights))
    assert run.legs() == 2


def test_during_validation_too(flights: Any, new_run: Callable[..., Run]) -> None:
    """A validation of hundreds of batches ends after the one in which the request came."""
    fields = {"evaluation": True, "global_training__inference_batch_size": 1, "training_plan__epochs": 1}
    run = new_run("signal-validation", global_training__batch_size=64, **fields)
    process = run.start(launcher="spawn")
    per_epoch = -(-n_samples(flights) // 128)
    run.wait_for_update(per_epoch)
    process.send_signal(signal.SIGTERM)
    code, _, err = end(process)
    assert code == 75, err
    summary = flights.summary("signal-validation")
    state = json.loads((Path(summary["checkpoints"][-1]) / "state.json").read_text())
    assert (state["update"], state["epoch"], state["validation_due"]) == (per_epoch, 1, True)
    assert end(run.start(launcher="spawn"))[0] == 0
    assert len(flights.metrics("signal-validation", "validation")) == 1
    run.check_ledger(1, n_samples(flights))
