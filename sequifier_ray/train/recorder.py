"""What a run tells: log lines, progress, metrics.jsonl, summary.json. All ranks reduce, rank 0 speaks."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from types import TracebackType
from typing import Any

import torch

from sequifier_ray import storage
from sequifier_ray.data.loader import Update
from sequifier_ray.data.order import Plan
from sequifier_ray.errors import TrainingError
from sequifier_ray.train.evaluate import Validation
from sequifier_ray.train.metrics import MetricsFile, Throughput, peak_rss_bytes
from sequifier_ray.train.preflight import samples_per_update
from sequifier_ray.train.setup import Session
from sequifier_ray.train.step import UpdateResult

# The first updates of a process touch new memory and find their kernels; the summary's rate leaves them out.
WARM_UP_UPDATES = 10


class Recorder:
    """Collects the figures of one session; use as a context manager."""

    def __init__(self, session: Session) -> None:
        self.session = session
        self.throughput = Throughput()
        self.final_loss: float | None = None
        self.startup_seconds: float | None = None
        self._started_s = time.time()
        self._folder = session.config.resolve(f"logs/{session.config.model_name}")
        self._file = MetricsFile(self._folder, session.resumed_at) if session.context.is_lead else None
        self._losses = torch.zeros(len(session.objective.target_columns), device=session.strategy.device)
        self._n_updates = 0
        self._n_since_start = 0
        # Real and repeated samples of the epoch under way, this rank's share.
        self._samples_of_epoch = [_done_before(session), 0]
        self.skipped_updates = 0
        self._lost_figures = False
        self._updates_per_epoch = Plan.start(
            session.ground.train.n_samples, session.state.data_streams, samples_per_update(session.config)
        ).updates_left

    def __enter__(self) -> Recorder:
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._file is not None:
            self._file.close()

    def after_update(self, result: UpdateResult, batches: Update) -> None:
        """Count one update; at a log step reduce the loss and write it down."""
        session = self.session
        if self.startup_seconds is None:
            self.startup_seconds = time.time() - session.context.launched_at_s
        self.throughput.add(batches.n_real)
        self._n_since_start += 1
        if self._n_since_start == WARM_UP_UPDATES:
            self.throughput.forget()
        real = sum(int(batch.sample_is_real.sum()) for batch in batches.micro_batches)
        slots = sum(len(batch.sample_is_real) for batch in batches.micro_batches)
        self._samples_of_epoch[0] += real
        self._samples_of_epoch[1] += slots - real
        if result.is_finite:
            self._losses += result.local_loss
            self._n_updates += 1
        else:
            self.skipped_updates += 1
            session.context.warn(
                f"the gradient of update {session.state.update} is not finite: it was skipped"
            )
        if result.n_target_tokens == 0:
            session.context.warn(f"update {session.state.update} has no target to learn from and was skipped")
        if session.state.update % session.config.global_training.log_interval == 0:
            self.log_interval(result)

    def log_interval(self, result: UpdateResult | None = None) -> None:
        """Reduce the mean loss since the last call over all ranks, check it, write and show it.

        Raises:
            TrainingError: it is not finite; on all ranks, as the value is the reduced one.
        """
        if self._n_updates == 0:
            return
        session = self.session
        losses = session.strategy.sum_over_ranks(self._losses.double()) / self._n_updates  # (T,)
        loss = float((losses * session.objective.weights.cpu().double()).sum())
        self._losses.zero_()
        self._n_updates = 0
        update = session.state.update
        if not torch.isfinite(losses).all():
            raise TrainingError(
                f"the loss became {loss} at or before update {update} and training stopped "
                "(global_training.non_finite: "
                "stop). The last checkpoint is intact; lower learning_rate, set gradient_clip, or look "
                "for extreme values"
            ).on_every_rank()
        self.final_loss = loss
        rate = self.throughput.interval_rate()
        names = session.objective.target_columns
        values: dict[str, Any] = {
            "step": update,
            "epoch": session.state.epoch,
            "samples": session.state.samples_seen,
            "loss": loss,
            **{f"loss_{name}": value for name, value in zip(names, losses.tolist(), strict=True)},
            "learning_rate": session.optimizer.param_groups[0]["lr"],
            "samples_per_s": round(rate, 1),
        }
        if result is not None:
            values["grad_norm"] = float(result.grad_norm)
        self._write("train", **values)
        total = self._updates_per_epoch * session.config.training_plan.epochs
        event = {"kind": "progress", "update": update, "updates_total": max(total, update), "loss": loss}
        if session.context.is_lead:
            session.context.report({**event, "samples_per_s": rate, "epoch": session.state.epoch})

    def end_epoch(self) -> tuple[int, int]:
        """How many samples of the epoch were real and how many repeated, over all ranks."""
        counts = self.session.strategy.sum_over_ranks(torch.tensor(self._samples_of_epoch, dtype=torch.int64))
        self._samples_of_epoch = [0, 0]
        return int(counts[0]), int(counts[1])

    def validated(self, validation: Validation, seconds: float) -> None:
        """Write and show one validation."""
        state = self.session.state
        self._write(
            "validation",
            step=state.update,
            epoch=state.epoch,
            samples=state.samples_seen,
            loss=validation.loss,
            **{f"loss_{name}": value for name, value in validation.loss_by_target.items()},
            **{f"accuracy_{name}": value for name, value in validation.accuracy.items()},
            **{f"naive_{name}": value for name, value in validation.naive.items()},
            seconds=round(seconds, 3),
        )
        parts = []
        for name, loss in validation.loss_by_target.items():
            if name in validation.accuracy:
                parts.append(
                    f"{name} {loss:.4f}, hit rate {validation.accuracy[name]:.4f}{_naive(validation, name)}"
                )
            else:
                parts.append(f"{name} {loss:.4f}{_naive(validation, name)}")
        self.session.context.line(
            f"epoch {state.epoch} step {state.update}: validation loss {validation.loss:.4f} "
            f"({'; '.join(parts)})"
        )

    def summary(self, status: str, export: Callable[[], dict[str, str]] = dict) -> dict[str, Any]:
        """The figures of the whole run; written to summary.json by rank 0. All ranks take part, and rank 0
        exports models last: nobody waits for that."""
        session = self.session
        state = session.state
        peaks = session.strategy.gather_objects(peak_rss_bytes())
        models = export() if session.context.is_lead else {}
        real, padded = state.epoch_samples or (None, None)
        rate = self.throughput.rate()
        summary = {
            "status": status,
            "launcher": session.context.launcher,
            "strategy": session.strategy.name,
            "world_size": session.context.world_size,
            "updates": state.update,
            "epochs": state.epoch,
            "samples": state.samples_seen,
            "real_samples_per_epoch": real,
            "padded_samples_per_epoch": padded,
            "final_loss": self.final_loss,
            "best_loss": state.best_loss,
            "train_seconds": round(time.time() - self._started_s, 3),
            "startup_seconds": None if self.startup_seconds is None else round(self.startup_seconds, 3),
            "samples_per_s": None if rate is None else round(rate, 1),
            "peak_rss_bytes": peaks,
            "checkpoints": [step.path for step in session.folders.complete()]
            if session.context.is_lead
            else [],
            "restarts": session.context.restarts,
            "failed_saves": session.saver.failures,
            "skipped_updates": self.skipped_updates,
            "models": models,
        }
        if session.context.is_lead:
            storage.write_atomic(storage.join(self._folder, "summary.json"), json.dumps(summary, indent=1))
        return summary

    def publish(self) -> None:
        """Let others see what was written down so far."""
        if self._file is not None:
            self._file.publish()

    def _write(self, kind: str, **values: Any) -> None:
        if self._file is None:
            return
        try:
            self._file.write(kind, **values)
        except OSError as error:
            if not self._lost_figures:
                self.session.context.warn(f"metrics.jsonl misses figures from here on ({error})")
            self._lost_figures = True


def _done_before(session: Session) -> int:
    """Samples of the epoch that earlier legs of the run took; counted once, by rank 0."""
    plan = session.state.plan
    if plan is None or not session.context.is_lead:
        return 0
    return session.ground.train.n_samples - plan.n_remaining


def _naive(validation: Validation, name: str) -> str:
    return f" (previous value: {validation.naive[name]:.4f})" if name in validation.naive else ""
