"""From a configuration and a rank to a session that is ready for its next update."""

from __future__ import annotations

import json
import time
import uuid
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn
from torch.optim.lr_scheduler import LRScheduler

from sequifier_ray import storage
from sequifier_ray.config.train import TrainConfig
from sequifier_ray.errors import ConfigError, SequifierRayError
from sequifier_ray.model.network import build_model
from sequifier_ray.model.objectives import CausalObjective
from sequifier_ray.train import checkpoint
from sequifier_ray.train.checkpoint import SavedStep, StepFolders
from sequifier_ray.train.handshake import survey_together
from sequifier_ray.train.heartbeat import Heartbeat
from sequifier_ray.train.optim import build_optimizer, build_scheduler, scale_rates
from sequifier_ray.train.parallel import Strategy, choose_strategy
from sequifier_ray.train.preflight import Ground, choose_resume, folders
from sequifier_ray.train.saver import Saver
from sequifier_ray.train.state import OrderKey, TrainState
from sequifier_ray.train.worker import WorkerContext


@dataclass
class Session:
    """All that a run holds in one process. ``state`` is replaced after every update; ``leg`` is the time in
    nanoseconds at which this start of the run began, the same on all ranks."""

    config: TrainConfig
    context: WorkerContext
    ground: Ground
    strategy: Strategy
    model: nn.Module
    objective: CausalObjective
    optimizer: torch.optim.Optimizer
    scheduler: LRScheduler
    folders: StepFolders
    saver: Saver
    state: TrainState
    resumed_at: int | None
    leg: int
    heartbeat: Heartbeat


def set_up(config: TrainConfig, context: WorkerContext, heartbeat: Heartbeat) -> Session:
    """Build model, optimizer and schedule on this rank and restore the checkpoint to go on from.

    Raises:
        SequifierRayError: on every rank, whichever rank found the mistake.
    """
    strategy = choose_strategy(config, context.device, context.rank, context.world_size)
    ground = survey_together(config, strategy)
    for warning in ground.warnings:
        context.warn(warning)
    _set_numerics(config)
    model = strategy.prepare(
        lambda: build_model(config.model, ground.description, config.global_training.context_length),
        config.seed,
    )
    objective = CausalObjective(config.model, config.dataset, ground.description)
    optimizer = build_optimizer(config, list(model.parameters()))
    scheduler = build_scheduler(config, optimizer)
    state, step = _starting_point(config, context, ground, strategy)
    if step is not None:
        checkpoint.load(step, model, optimizer, strategy)
        scheduler.load_state_dict(step.state.scheduler)
        _take_learning_rate(config, context, step.state, optimizer, scheduler)
        context.line(f"resuming from step {step.state.update} ({step.path})")
    else:
        context.line("no checkpoint to resume from: starting at step 0")
    if config.global_training.torch_compile != "none":
        context.line(
            "torch_compile: the model is compiled in the first updates, which can take a minute or more"
        )
    resumed_at = None if step is None else step.state.update
    places = folders(config)
    return Session(
        config,
        context,
        ground,
        strategy,
        model,
        objective,
        optimizer,
        scheduler,
        places,
        Saver(places, strategy, context.warn),
        state,
        resumed_at,
        strategy.from_lead(time.time_ns()),
        heartbeat,
    )


def _take_learning_rate(
    config: TrainConfig,
    context: WorkerContext,
    saved: TrainState,
    optimizer: torch.optim.Optimizer,
    scheduler: LRScheduler,
) -> None:
    """Scale the schedule where the configuration has another learning rate than the run had."""
    wanted = config.global_training.learning_rate
    if saved.learning_rate in (None, wanted):
        return
    scale_rates(optimizer, scheduler, wanted / saved.learning_rate)
    context.line(
        f"learning_rate is now {wanted:g} instead of {saved.learning_rate:g}: the schedule goes on, scaled"
    )


def _set_numerics(config: TrainConfig) -> None:
    torch.manual_seed(config.seed)
    torch.set_float32_matmul_precision(config.global_training.float32_matmul_precision)
    torch.use_deterministic_algorithms(config.global_training.enforce_determinism)


def _starting_point(
    config: TrainConfig, context: WorkerContext, ground: Ground, strategy: Strategy
) -> tuple[TrainState, SavedStep | None]:
    """The state to start with and the checkpoint it came from; rank 0 looks, all others are told."""
    found: tuple[str, float, SavedStep | None] | SequifierRayError | None = None
    damaged: list[str] = []
    if context.is_lead:
        try:
            found = _look_for_run(config, context, damaged)
        except SequifierRayError as error:
            found = error
        for text in damaged:
            context.warn(f"checkpoint {text}")
    found = strategy.from_lead(found)
    if isinstance(found, SequifierRayError):
        raise found.on_every_rank()
    assert found is not None
    run_id, run_started_s, step = found
    settings = config.global_training
    key = OrderKey(
        seed=config.seed,
        n_samples=ground.train.n_samples,
        shuffle_shards=settings.shuffle_shards,
        file_order=config.dataset.part.file_order,
        fingerprint=ground.train.fingerprint,
    )
    if step is None:
        streams = settings.data_streams or context.world_size
        rate = settings.learning_rate
        return TrainState(key, streams, rate, run_id=run_id, run_started_s=run_started_s), None
    _check_order(step, key)
    state = replace(step.state, order=key, learning_rate=settings.learning_rate)
    if run_id != state.run_id:
        state = state.of_new_run(run_id, run_started_s)
    return state, step


def _look_for_run(
    config: TrainConfig, context: WorkerContext, damaged: list[str]
) -> tuple[str, float, SavedStep | None]:
    """Run id, its start (Unix seconds), the checkpoint to go on from. ``run.json`` names the current run."""
    place = folders(config).folder
    marker = storage.join(place, "run.json")
    current: dict[str, Any] = {}
    if context.is_restart and storage.exists(marker):
        current = json.loads(storage.read_text(marker))
    # An earlier start that died before it came here has left the marker of another run, or none.
    is_restart = context.is_restart and current.get("launch_id") == context.launch_id
    step = choose_resume(config, is_restart, current.get("run_id", ""), damaged)
    if step is not None and step.path == _newest(config):
        current = {"run_id": step.state.run_id, "run_started_s": step.state.run_started_s}
    elif step is not None or not is_restart:
        # From an older step a run of its own begins: the steps after it are none of its history.
        current = {"run_id": uuid.uuid4().hex, "run_started_s": time.time()}
    storage.make_folder(place)
    storage.write_atomic(marker, json.dumps({**current, "launch_id": context.launch_id}))
    return current["run_id"], current["run_started_s"], step


def _newest(config: TrainConfig) -> str | None:
    steps = folders(config).complete()
    return steps[-1].path if steps else None


def _check_order(step: SavedStep, key: OrderKey) -> None:
    """In mid-epoch the order of samples must be the one the checkpoint was made under."""
    if step.state.plan is None:
        return
    for name, saved in vars(step.state.order).items():
        wanted = getattr(key, name)
        if saved != wanted:
            raise ConfigError(
                f"cannot go on from {step.path}: it lies within an epoch whose order depends on {name}, "
                f"which was {saved} "
                f"and now is {wanted}; restore it, or start anew with resume: {{policy: never}}"
            ).on_every_rank()
