"""Killed workers and drivers: the run goes on, every sample counts once, and the weights are those of an
unbroken run."""

from __future__ import annotations

import os
import resource
import signal
import socket
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parent))
from conftest import Run, end, n_samples, wait_until, weights


def assert_equal_weights(found: dict[str, Any], wanted: dict[str, Any]) -> None:
    assert found.keys() == wanted.keys()
    for name, value in wanted.items():
        torch.testing.assert_close(found[name], value, rtol=0, atol=1e-6)


@pytest.fixture(scope="module")
def unbroken(flights: Any) -> dict[str, Any]:
    """Weights after two epochs of two processes that nothing happens to."""
    from conftest import SMALL

    from sequifier_ray.launch.choose import train

    assert train(flights.train_config(model_name="unbroken-two", **SMALL), "spawn", None) == 0
    return weights(flights, "unbroken-two")


def test_two_killed_ray_workers_in_one_epoch(
    flights: Any, new_run: Callable[..., Run], unbroken: dict[str, Any]
) -> None:
    run = new_run("killed-twice")
    process = run.start()
    recoveries_s = []
    for update in (6, 15):
        run.wait_for_update(update)
        before, legs = run.updates(), run.legs()
        os.kill(run.pid_of(1), signal.SIGKILL)
        started_s = time.monotonic()
        run.wait_for_leg(legs)
        recoveries_s.append(time.monotonic() - started_s)
        resumed = min(
            line["update"] for line in run.lines() if line["leg"] == max(x["leg"] for x in run.lines())
        )
        # A step is saved every 4 updates, beside training; the next waits for it.
        assert before - (resumed - 1) <= 2 * 4, "lost work is at most the interval and the one being saved"
    code, _, err = end(process)
    assert code == 0, err
    print("recoveries", recoveries_s)
    assert flights.summary("killed-twice")["restarts"] == 2
    run.check_ledger(2, n_samples(flights))
    assert_equal_weights(weights(flights, "killed-twice"), unbroken)


def test_torchrun_starts_killed_ranks_again(
    flights: Any, new_run: Callable[..., Run], unbroken: dict[str, Any]
) -> None:
    run = new_run("torchrun-killed", global_training__resume__policy="never")
    process = run.start(torchrun=("--standalone", "--nproc-per-node", "2", "--max-restarts", "2"))
    for update in (6, 15):
        run.wait_for_update(update)
        legs = run.legs()
        os.kill(run.pid_of(1), signal.SIGKILL)
        run.wait_for_leg(legs)
    code, _, err = end(process)
    assert code == 0, err
    assert flights.summary("torchrun-killed")["restarts"] == 2
    run.check_ledger(2, n_samples(flights))
    assert_equal_weights(weights(flights, "torchrun-killed"), unbroken)


@pytest.mark.parametrize("launcher", ["ray", "spawn"])
def test_killed_driver_and_the_same_command_again(
    flights: Any, new_run: Callable[..., Run], unbroken: dict[str, Any], launcher: str
) -> None:
    name = f"driver-{launcher}"
    run = new_run(name)
    for update in (6, 15):
        process = run.start(launcher=launcher)
        run.wait_for_update(update)
        process.send_signal(signal.SIGKILL)
        ranks = [run.pid_of(rank) for rank in (0, 1)]
        process.communicate()
        # Nobody of theirs trains on beside the next start.
        wait_until(lambda pids=ranks: not any(Path(f"/proc/{pid}").exists() for pid in pids), 120)
    code, out, err = end(run.start(launcher=launcher))
    assert code == 0, err
    assert "resuming from step" in out
    run.check_ledger(2, n_samples(flights))
    assert_equal_weights(weights(flights, name), unbroken)


@pytest.mark.parametrize(("launcher", "rank"), [("spawn", 0), ("spawn", 1), ("ray", 1), ("torchrun", 0)])
def test_a_stopped_rank_is_named(flights: Any, new_run: Callable[..., Run], launcher: str, rank: int) -> None:
    """A process that hangs ends the run within the time limit, with its rank, node, update and phase."""
    run = new_run(
        f"hangs-{launcher}-{rank}", global_training__collective_timeout_s=10.0, training_plan__epochs=200
    )
    torchrun = ("--standalone", "--nproc-per-node", "2") if launcher == "torchrun" else ()
    process = run.start(launcher=launcher, torchrun=torchrun)
    # Words are a second old at most; the run must be well past its start.
    run.wait_for_update(100)
    pid = run.pid_of(rank)
    os.kill(pid, signal.SIGSTOP)
    try:
        code, out, err = end(process, 200)
    finally:
        if Path(f"/proc/{pid}").exists():
            os.kill(pid, signal.SIGKILL)
    assert code == (1 if launcher == "torchrun" else 5), out + err
    # Under torchrun and Ray rank 0 holds the store: if it hangs, nobody can be asked.
    name = f"on node {socket.gethostname()} (last heard of at update "
    if rank == 0 and launcher != "spawn":
        name = "(which cannot even be asked what it does)"
    assert f"error: rank {rank} {name}" in err, err
    assert " did not answer for 10 s (global_training.collective_timeout_s)" in err
    # torchrun adds a traceback of its own.
    assert launcher == "torchrun" or "Traceback" not in err


@pytest.mark.parametrize("launcher", ["spawn", "ray", "torchrun"])
def test_a_rank_that_raises_ends_all(flights: Any, new_run: Callable[..., Run], launcher: str) -> None:
    """An error that nobody foresaw, on one rank alone: all end soon, and its traceback is shown once."""
    run = new_run(f"raises-{launcher}", training_plan__epochs=200)
    torchrun = ("--standalone", "--nproc-per-node", "2") if launcher == "torchrun" else ()
    process = run.start("--verbose", launcher=launcher, torchrun=torchrun)
    run.wait_for_update(10)
    pid, other = run.pid_of(1), run.pid_of(0)
    # From now on whatever it writes down fails.
    resource.prlimit(pid, resource.RLIMIT_FSIZE, (0, 0))
    started_s = time.monotonic()
    code, out, err = end(process, 200)
    print(f"{launcher}: ended {time.monotonic() - started_s:.1f} s after the error")
    assert code == (1 if launcher == "torchrun" else 5), out + err
    assert err.count("error: rank 1 failed: OSError: [Errno 27] File too large") == 1, err
    assert err.count("self._file.write(") == 1, "one traceback"
    wait_until(lambda: not any(Path(f"/proc/{number}").exists() for number in (pid, other)), 60)
