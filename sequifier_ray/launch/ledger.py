"""A record of every sample whose gradient was applied, for audits of interrupted runs.

Kept where the variable SEQUIFIER_RAY_LEDGER names a folder: one JSON object a line for each update of each
rank.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from sequifier_ray.data.batch import SequenceBatch
from sequifier_ray.train.worker import keep_nothing

VARIABLE = "SEQUIFIER_RAY_LEDGER"
Applied = Callable[[int, int, int, Sequence[SequenceBatch]], None]


def ledger_folder(environment: Mapping[str, str] = os.environ) -> str | None:
    """The folder to keep a ledger in, if one is wanted."""
    return environment.get(VARIABLE) or None


class Ledger:
    """One rank's file. Lines hold leg, epoch, update, and the positions in the epoch's order with True for
    real samples and False for those that only fill up a batch."""

    def __init__(self, folder: str, rank: int) -> None:
        Path(folder).mkdir(parents=True, exist_ok=True)
        name = f"{time.time_ns()}-{os.getpid()}-{rank}.jsonl"
        self._file = open(Path(folder) / name, "a", buffering=1)  # noqa: SIM115 - as long as the process
        self._rank = rank

    def __call__(self, leg: int, epoch: int, update: int, micro_batches: Sequence[SequenceBatch]) -> None:
        """Write down one update."""
        positions = [int(p) for batch in micro_batches for p in batch.positions]
        is_real = [bool(real) for batch in micro_batches for real in batch.sample_is_real.tolist()]
        line = {"leg": leg, "rank": self._rank, "epoch": epoch, "update": update}
        self._file.write(json.dumps({**line, "positions": positions, "is_real": is_real}) + "\n")


def keep_ledger(rank: int, folder: str | None) -> Applied:
    """What a rank tells its applied samples to: a ledger in the folder, or nothing."""
    return keep_nothing if folder is None else Ledger(folder, rank)
