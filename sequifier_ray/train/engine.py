"""The training loop, the same for every launcher: load → step → report → validate → save."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any, NoReturn

import torch

from sequifier_ray.config.train import TrainConfig
from sequifier_ray.data.loader import ShardLoader, Update
from sequifier_ray.data.order import EpochOrder, Plan
from sequifier_ray.errors import TrainingError
from sequifier_ray.train.evaluate import evaluate
from sequifier_ray.train.export import export_model, withdraw_model
from sequifier_ray.train.heartbeat import Heartbeat
from sequifier_ray.train.optim import schedule_state, step_on_epoch
from sequifier_ray.train.preflight import samples_per_update
from sequifier_ray.train.recorder import Recorder
from sequifier_ray.train.saving import SaveClock
from sequifier_ray.train.setup import Session, set_up
from sequifier_ray.train.step import announce, update
from sequifier_ray.train.worker import WorkerContext, is_timeout


def run(config: TrainConfig, context: WorkerContext) -> dict[str, Any]:
    """Train as ``config`` says, as one rank of ``context``; returns the summary.

    Its ``status`` is "done", or "stopped" when the run was asked to stop and has saved.

    Raises:
        SequifierRayError: a mistake of the user's, or a loss that is not finite; on every rank.
    """
    with Heartbeat(context.rank, context.world_size) as heartbeat:
        try:
            return _run(set_up(config, context, heartbeat))
        except RuntimeError as error:
            if is_timeout(error):
                _name_the_silent(heartbeat, context, config.global_training.collective_timeout_s, error)
            raise


def _run(session: Session) -> dict[str, Any]:
    clock = SaveClock(session.config.global_training)
    with Recorder(session) as recorder, session.saver:
        if train(session, recorder, clock):
            return finish(session, recorder)
        save(session, recorder)
        session.saver.finish()
        how = _how_to_go_on(session.config)
        session.context.line(f"stopped on request at step {session.state.update}; {how}")
        return recorder.summary("stopped")


def _name_the_silent(
    heartbeat: Heartbeat, context: WorkerContext, timeout_s: float, error: RuntimeError
) -> None:
    """Raise TrainingError naming the ranks that do not answer; one of those that do tells it for all."""
    silent = heartbeat.silent_ranks()
    speaking = [rank for rank in range(context.world_size) if rank not in {s.rank for s in silent}]
    if silent and context.rank == speaking[0]:
        raise TrainingError(
            f"{' and '.join(map(str, silent))} did not answer for {timeout_s:g} s "
            "(global_training.collective_timeout_s): the process hangs, or its node is lost. Look at that "
            "node, and "
            "run again with resume: {policy: if_exists} to go on from the last checkpoint"
        ) from error


def train(session: Session, recorder: Recorder, clock: SaveClock) -> bool:
    """Do all epochs that are left; False if the run was asked to stop before their end."""
    config = session.config
    looks_first = config.evaluation and config.global_training.calculate_validation_loss_on_initialization
    if session.state.update == 0 and looks_first and validate(session, recorder) is None:
        return False
    if session.state.validation_due and not close_epoch(session, recorder):
        return False
    while session.state.epoch < config.training_plan.epochs and not _is_stale(session):
        if not train_epoch(session, recorder, clock):
            return False
        end_epoch(session, recorder)
        if not close_epoch(session, recorder):
            return False
    return True


def train_epoch(session: Session, recorder: Recorder, clock: SaveClock) -> bool:
    """Do what is left of the current epoch; False if the run was asked to stop before its end."""
    settings = session.config.global_training
    with _open_loader(session) as loader:
        recorder.throughput.start()
        session.heartbeat.note("training", session.state.update + 1)
        updates = _Announced(session, loader, clock)
        for batches, announced in updates:
            number = session.state.update + 1
            _seed_dropout(session.config.seed, number, session.context.rank)
            result = update(
                session.model,
                session.objective,
                session.optimizer,
                session.strategy,
                batches.micro_batches,
                announced,
                settings.gradient_clip,
            )
            if not result.is_finite and settings.non_finite == "stop":
                updates.finish()
                stop_at_last_good(session, recorder, number)
            if result.is_applied:
                session.context.applied(session.leg, session.state.epoch, number, batches.micro_batches)
            if settings.scheduler_step_on == "batch":
                session.scheduler.step()
            session.state = replace(
                session.state,
                update=number,
                samples_seen=session.state.samples_seen + batches.n_real,
                plan=batches.plan_after,
            )
            session.heartbeat.note("training", number + 1)
            recorder.after_update(result, batches)
            session.saver.poll()
            stop, save_now = (value > 0 for value in result.flags.tolist())
            if stop:
                updates.finish()
                return False
            if save_now:
                save(session, recorder)
    recorder.throughput.pause()
    return True


def stop_at_last_good(session: Session, recorder: Recorder, number: int) -> NoReturn:
    """Save what the update before has left, which a gradient that is not finite has not changed, and end.

    Raises:
        TrainingError: always, on every rank.
    """
    save(session, recorder)
    session.saver.finish()
    raise TrainingError(
        f"the gradient of update {number} is not finite and training stopped (global_training.non_finite: "
        f"stop). "
        f"The checkpoint of step {session.state.update} holds the last good weights; lower learning_rate, "
        f"set gradient_clip, look for extreme values, or set non_finite: skip"
    ).on_every_rank()


class _Announced:
    """Every update with its token counts, which travel between ranks while the update before is computed.

    Rank 0's wishes (stop, save) travel with them, so that all ranks act on them at the same update.
    """

    def __init__(self, session: Session, loader: ShardLoader, clock: SaveClock) -> None:
        self._session, self._loader, self._clock = session, loader, clock
        self._waiting: tuple[Update, Callable[[], torch.Tensor]] | None = None

    def __iter__(self) -> Iterator[tuple[Update, Callable[[], torch.Tensor]]]:
        session, number = self._session, self._session.state.update
        for batches in self._loader:
            number += 1
            save_now = session.context.save_requested() or (
                session.context.is_lead and self._clock.is_due(number)
            )
            if save_now:
                self._clock.saved()
            flags = torch.tensor([session.context.stop_requested(), save_now])
            following = (batches, announce(session.objective, session.strategy, batches.micro_batches, flags))
            ready, self._waiting = self._waiting, following
            if ready is not None:
                yield ready
        if self._waiting is not None:
            ready, self._waiting = self._waiting, None
            yield ready

    def finish(self) -> None:
        """Wait for what was announced and will not be done: a run that stops leaves no collective half done.

        Not for a run that fails: its peers may be gone, and what failed shall be told at once.
        """
        if self._waiting is not None:
            self._waiting[1]()


def end_epoch(session: Session, recorder: Recorder) -> None:
    """Close the books of the epoch that was trained; what follows it is due."""
    counts = recorder.end_epoch()
    epoch = session.state.epoch + 1
    session.state = replace(session.state, epoch=epoch, plan=None, validation_due=True, epoch_samples=counts)


def close_epoch(session: Session, recorder: Recorder) -> bool:
    """Validate, advance the schedule, and save where it is due; False if the run was asked to stop
    meanwhile."""
    config, settings = session.config, session.config.global_training
    loss = None
    if config.evaluation:
        loss = validate(session, recorder)
        if loss is None:
            return False
        session.state = session.state.after_validation(loss)
    if settings.scheduler_step_on == "epoch":
        step_on_epoch(session.scheduler, loss)
    session.state = replace(session.state, validation_due=False)
    epoch = session.state.epoch
    is_last = epoch == config.training_plan.epochs or _is_stale(session)
    if is_last or epoch % settings.save_interval_epochs == 0 or (loss is not None and session.state.is_best):
        save(session, recorder)
    return True


def validate(session: Session, recorder: Recorder) -> float | None:
    """The validation loss now, written down; None if the run was asked to stop meanwhile."""
    dataset = session.ground.validation
    assert dataset is not None
    started_s = time.perf_counter()
    session.heartbeat.note("validating", session.state.update)
    validation = evaluate(
        session.model,
        session.objective,
        dataset,
        session.strategy,
        session.config.global_training.inference_batch_size,
        session.context.stop_requested,
    )
    if validation is None:
        return None
    recorder.validated(validation, time.perf_counter() - started_s)
    return validation.loss


def save(session: Session, recorder: Recorder) -> None:
    """Begin a checkpoint of this moment; a loss that is not finite is never saved."""
    recorder.throughput.pause()
    recorder.log_interval()
    recorder.publish()
    session.state = replace(session.state, scheduler=schedule_state(session.scheduler))
    session.saver.start(session.state, session.model, session.optimizer)
    recorder.throughput.start()


def finish(session: Session, recorder: Recorder) -> dict[str, Any]:
    """Export the last and the best model from their checkpoints, and sum up."""
    recorder.throughput.pause()
    session.heartbeat.note("exporting the model", session.state.update)
    session.saver.finish()
    return recorder.summary("done", lambda: _export(session))


def _export(session: Session) -> dict[str, str]:
    """The folders of the models of this run; those of an earlier one are gone."""
    own = [s for s in session.folders.complete() if s.state.run_id == session.state.run_id]
    best = [s for s in own if s.state.update == own[-1].state.best_update]
    models = {}
    for suffix, step in (("last", own[-1]), *(("best", step) for step in best)):
        models[suffix] = export_model(session.config, session.ground.description, step, suffix)
    if not best:
        withdraw_model(session.config, "best")
        if session.config.evaluation:
            session.context.warn("the checkpoint of the best validation loss is not there: no best model")
    session.folders.delete_other_runs(session.state.run_id, session.context.warn)
    return models


def _open_loader(session: Session) -> ShardLoader:
    """The rest of the epoch for this rank, cut for the present world size."""
    state, context, settings = session.state, session.context, session.config.global_training
    n_samples = samples_per_update(session.config)
    if state.plan is None:
        plan = Plan.start(state.order.n_samples, state.data_streams, n_samples)
    else:
        plan = replace(state.plan, samples_per_update=n_samples)
    plan = plan.for_world_size(context.world_size)
    # Every stream of this rank reads in a block of its own, and now and then in two.
    n_blocks = 2 * len(plan.streams) // context.world_size
    order = EpochOrder(
        state.order.seed,
        state.epoch,
        session.ground.train.shard_sample_counts,
        state.order.shuffle_shards,
        state.order.file_order,
        cache_blocks=n_blocks,
    )
    return ShardLoader(
        session.ground.train,
        order,
        plan,
        context.rank,
        context.world_size,
        settings.batch_size,
        pin_memory=context.device.type == "cuda",
        open_shards=n_blocks * state.order.shuffle_shards,
    )


def _seed_dropout(seed: int, number: int, rank: int) -> None:
    """Randomness of update ``number`` on ``rank``, whatever came before: no generator state is saved."""
    digest = hashlib.sha256(f"{seed}:{number}:{rank}".encode()).digest()
    torch.manual_seed(int.from_bytes(digest[:8], "big") >> 1)


def _how_to_go_on(config: TrainConfig) -> str:
    if config.global_training.resume.policy == "never":
        return "run again with global_training.resume: {policy: if_exists} to go on"
    return "run again to go on"


def _is_stale(session: Session) -> bool:
    """Whether the validation loss has not improved for ``early_stopping_epochs`` epochs."""
    patience = session.config.global_training.early_stopping_epochs
    return patience is not None and session.state.stale_epochs >= patience
