"""Checkpoints are written beside the training: it stands still only while its state is copied."""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable
from types import TracebackType
from typing import Any

import torch
from torch import nn
from torch.distributed.checkpoint.staging import DefaultStager, StagingOptions
from torch.distributed.checkpoint.state_dict import get_state_dict

from sequifier_ray.errors import TrainingError
from sequifier_ray.train import checkpoint
from sequifier_ray.train.checkpoint import StepFolders
from sequifier_ray.train.parallel import Strategy
from sequifier_ray.train.state import TrainState

# Plain copies in host memory: pinned and shared memory would stay taken between saves.
_COPIES = StagingOptions(False, False, False, False)


class Saver:
    """Writes one checkpoint at a time, in a thread of its own on every rank; use as a context manager.

    A save that fails costs nothing but itself: training goes on, ``warn`` is told (on rank 0), ``failures``
    counts it, and the checkpoints before stay. All ranks call the same methods in the same order.
    """

    def __init__(self, folders: StepFolders, strategy: Strategy, warn: Callable[[str], None]) -> None:
        self.failures = 0
        self._folders = folders
        self._strategy = strategy
        self._group = strategy.own_host_group()
        self._warn = warn
        self._thread: threading.Thread | None = None
        self._error: BaseException | None = None
        self._notes: list[str] = []

    def __enter__(self) -> Saver:
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        # After an error of this rank the others may wait for it in vain, and so might this thread.
        if error is None and self._thread is not None:
            self._thread.join()

    def start(self, state: TrainState, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        """Copy weights and optimizer state of this moment and begin to write them; waits for a save that is
        under way.

        Raises:
            RuntimeError: another rank is gone.
        """
        self.wait()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            plain = self._strategy.unwrap(model)
            if not optimizer.state:
                # torch fills an empty state by a step without effect, which would count as one.
                get_state_dict(plain, optimizer)
                for values in optimizer.state.values():
                    if "step" in values:
                        values["step"].zero_()
            weights, moments = get_state_dict(plain, optimizer)
            stager = DefaultStager(_COPIES)
            contents = stager.stage({"model": weights, "optimizer": moments})
            stager.close()
        self._thread = threading.Thread(target=self._write, args=(state, contents), name="checkpoint-saver")
        self._thread.daemon = True
        self._thread.start()

    def poll(self) -> None:
        """Tell what a save that has ended had to tell; never waits."""
        if self._thread is not None and not self._thread.is_alive():
            self.wait()

    def wait(self) -> bool:
        """Wait for the save under way; whether the last one succeeded on this rank.

        Raises:
            RuntimeError: another rank is gone.
        """
        if self._thread is not None:
            self._thread.join()
            self._thread = None
            for note in self._notes:
                self._warn(note)
            self._notes = []
            if isinstance(self._error, TrainingError):
                self.failures += 1
                self._warn(f"{self._error}; training goes on")
            elif self._error is not None:
                raise self._error
        return self._error is None

    def finish(self) -> None:
        """Wait for the last save, which the run ends with.

        Raises:
            TrainingError: it failed; on every rank.
        """
        self.wait()
        # Rank 0 alone knows whether the folder got its name.
        error = self._strategy.from_lead(self._error)
        if error is not None:
            raise TrainingError(
                f"{error}. Mend the storage and run again with resume: {{policy: if_exists}}"
            ).on_every_rank()

    def _write(self, state: TrainState, contents: dict[str, Any]) -> None:
        self._error = None
        try:
            checkpoint.write(self._folders, state, contents, self._strategy, self._group, self._notes.append)
        except Exception as error:  # noqa: BLE001 - belongs to the thread that trains
            self._error = error
