"""What the training loop knows of the process it runs in."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from sequifier_ray.data.batch import SequenceBatch

Event = dict[str, Any]

# What torch says on a rank whose peer is gone: the peer's own failure is the one to tell.
_PEER_SIGNS = (
    "Connection closed by peer",
    "Connection reset by peer",
    "Timed out waiting",
    "timeout caused pair closure",
    "ncclRemoteError",
    "communicator was aborted",
    "Broken pipe",
)

_TIMEOUT_SIGNS = ("timed out waiting", "timeout")


def is_peer_loss(error: BaseException) -> bool:
    """Whether an exception is only the echo of another rank's end."""
    return isinstance(error, RuntimeError) and any(sign in str(error) for sign in _PEER_SIGNS)


def is_timeout(error: BaseException) -> bool:
    """Whether a collective waited in vain for a rank that is there but does not answer."""
    return isinstance(error, RuntimeError) and any(sign in str(error).lower() for sign in _TIMEOUT_SIGNS)


def _ignore(event: Event) -> None:
    """For ranks and tests that show nothing."""


def _never() -> bool:
    return False


def keep_nothing(leg: int, epoch: int, update: int, micro_batches: Sequence[SequenceBatch]) -> None:
    """For runs that keep no ledger."""


@dataclass(frozen=True)
class WorkerContext:
    """One rank of a run, as its launcher started it.

    ``report`` takes events of rank 0 (``{"kind": "line" | "progress" | "warning", ...}``) and never
    blocks; ``stop_requested`` is true once somebody asked the run to save and end; ``save_requested`` is true
    once for every request to save and go on. ``applied`` is told the
    samples of every update that changed the weights: the leg of the run (the time it began, the same on all
    ranks), epoch, update, and this rank's micro-batches. ``is_restart`` says that the same run was started
    before and lost a process; ``launch_id`` is the same for all those starts and no others. Times are Unix
    times in seconds.
    """

    rank: int = 0
    world_size: int = 1
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))
    launcher: str = "local"
    launched_at_s: float = 0.0
    restarts: int = 0
    launch_id: str = ""
    report: Callable[[Event], None] = _ignore
    stop_requested: Callable[[], bool] = _never
    save_requested: Callable[[], bool] = _never
    applied: Callable[[int, int, int, Sequence[SequenceBatch]], None] = keep_nothing

    @property
    def is_lead(self) -> bool:
        """Only rank 0 writes figures, manifests and exports."""
        return self.rank == 0

    @property
    def is_restart(self) -> bool:
        return self.restarts > 0

    def line(self, text: str) -> None:
        """One line of the run's log, from rank 0."""
        if self.is_lead:
            self.report({"kind": "line", "text": text})

    def warn(self, text: str) -> None:
        """One warning, from rank 0."""
        if self.is_lead:
            self.report({"kind": "warning", "text": text})
