"""Several processes on this machine, without Ray and without torchrun."""

from __future__ import annotations

import multiprocessing
import os
import queue
import signal
import tempfile
import time
import traceback
from multiprocessing.process import BaseProcess
from typing import Any

from sequifier_ray.config.train import TrainConfig
from sequifier_ray.errors import SequifierRayError, TrainingError
from sequifier_ray.launch.console import Console
from sequifier_ray.launch.context import device_for, open_process_group, usable_cores, use_threads
from sequifier_ray.launch.failures import Failure, describe
from sequifier_ray.launch.ledger import keep_ledger, ledger_folder
from sequifier_ray.launch.ranks import leave
from sequifier_ray.launch.signals import StopSignals
from sequifier_ray.parent import end_with
from sequifier_ray.train import engine
from sequifier_ray.train.worker import WorkerContext

_ECHO_WAIT_S = 2.0


def run(config: TrainConfig, console: Console) -> dict[str, Any]:
    """Start ``world_size`` processes, wait for all, return rank 0's summary.

    Raises:
        SequifierRayError: what the first failing rank raised.
        TrainingError: a process died without a word.
    """
    world_size = config.global_training.world_size
    processes = multiprocessing.get_context("spawn")
    messages = processes.Queue()
    stop = processes.Event()
    with tempfile.TemporaryDirectory(prefix="sequifier-ray-") as folder, StopSignals(stop.set) as signals:
        parcel = {
            "config": config.model_dump(mode="json"),
            "meeting_point": f"file://{folder}/ranks",
            "launched_at_s": time.time(),
            "parent": os.getpid(),
        }
        workers: list[BaseProcess] = [
            processes.Process(target=_work, args=(rank, parcel, messages, stop), daemon=True)
            for rank in range(world_size)
        ]
        for worker in workers:
            worker.start()
        try:
            return signals.mark(_follow(workers, messages, console))
        finally:
            _end(workers)


def _follow(workers: list[BaseProcess], messages: Any, console: Console) -> dict[str, Any]:
    """Show events until rank 0's summary has come and all processes have ended, or one failed."""
    summary: dict[str, Any] | None = None
    echo: Failure | None = None
    echo_until_s = 0.0
    while True:
        try:
            event = messages.get(timeout=0.2)
        except queue.Empty:
            event = None
        if event is None:
            _check_exits(workers, None if echo is None else echo.rank)
            if echo is not None and time.monotonic() >= echo_until_s:
                echo.raise_again()
            if summary is not None and all(worker.exitcode == 0 for worker in workers):
                return summary
        elif event["kind"] == "failed":
            # Of two failures the one that is no echo of the other is the one to tell.
            if not event["failure"].is_collateral:
                event["failure"].raise_again()
            echo, echo_until_s = event["failure"], time.monotonic() + _ECHO_WAIT_S
        elif event["kind"] == "finished":
            summary = event["summary"]
        else:
            console.show(event)


def _check_exits(workers: list[BaseProcess], known_rank: int | None) -> None:
    """Raise TrainingError if a process other than the one that told its failure died."""
    for rank, worker in enumerate(workers):
        if worker.exitcode not in (None, 0) and rank != known_rank:
            raise TrainingError(
                f"process {rank} (pid {worker.pid}) ended with exit code {worker.exitcode} without a word; a "
                "negative code is the signal that killed it, -9 is often the kernel for lack of memory"
            )


def _end(workers: list[BaseProcess]) -> None:
    """End what still runs. After a failure nothing of theirs is worth waiting for."""
    for worker in workers:
        if worker.is_alive():
            worker.kill()
        worker.join()


def _work(rank: int, parcel: dict[str, Any], messages: Any, stop: Any) -> None:
    """The life of one rank."""
    end_with(parcel["parent"], signal.SIGKILL)
    # A signal to the whole group (^C, a batch system's time limit) asks each process as it asks the parent.
    signals = StopSignals(ends_on_second=False)
    signals.__enter__()
    config = TrainConfig.model_validate(parcel["config"])
    world_size = config.global_training.world_size
    use_threads(usable_cores() // world_size)
    try:
        device = device_for(config, rank)
        open_process_group(config, rank, world_size, parcel["meeting_point"])
        context = WorkerContext(
            rank=rank,
            world_size=world_size,
            device=device,
            launcher="spawn",
            launched_at_s=parcel["launched_at_s"],
            report=messages.put,
            stop_requested=lambda: signals.requested or stop.is_set(),
            applied=keep_ledger(rank, ledger_folder()),
        )
        summary = engine.run(config, context)
        if rank == 0:
            messages.put({"kind": "finished", "summary": summary})
        code = 0
    except Exception as error:  # noqa: BLE001 - told to the parent, whatever it is
        messages.put({"kind": "failed", "failure": describe(error, rank, traceback.format_exc())})
        code = error.exit_code if isinstance(error, SequifierRayError) else 5
    messages.close()
    messages.join_thread()
    leave(code)
