"""Optimizers and learning-rate schedules by their torch names."""

from __future__ import annotations

import inspect
from typing import Any

import torch
from torch import nn
from torch.optim import lr_scheduler
from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau

from sequifier_ray.config.train import TrainConfig
from sequifier_ray.errors import ConfigError, nearest


def _public_classes(module: Any, base: type) -> dict[str, type]:
    return {
        name: value
        for name, value in vars(module).items()
        if isinstance(value, type)
        and issubclass(value, base)
        and value is not base
        and not name.startswith("_")
    }


OPTIMIZERS: dict[str, type] = _public_classes(torch.optim, torch.optim.Optimizer)
SCHEDULERS: dict[str, type] = _public_classes(lr_scheduler, LRScheduler)


def _find(field: str, name: str, known: dict[str, type], module: str) -> type:
    if name not in known:
        raise ConfigError(
            f'{field}.name: "{name}" is not a class of {module}{nearest(name, known)}; '
            f"known are {', '.join(sorted(known))}"
        )
    return known[name]


def _construct(field: str, kind: type, *positional: Any, **arguments: Any) -> Any:
    try:
        return kind(*positional, **arguments)
    except (TypeError, ValueError, AttributeError, AssertionError) as error:
        accepted = [p for p in inspect.signature(kind).parameters if p not in ("params", "optimizer")]
        raise ConfigError(
            f"{field}: {kind.__name__} does not accept these arguments ({error}); it takes "
            f"{', '.join(accepted)}"
        ) from error


def build_optimizer(config: TrainConfig, parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
    """The optimizer of ``global_training.optimizer`` at ``global_training.learning_rate``.

    Fused kernels are used where torch has them and the arguments do not decide otherwise.

    Raises:
        ConfigError: the name or an argument is not known to torch.
    """
    settings = config.global_training
    field = "global_training.optimizer"
    kind = _find(field, settings.optimizer.name, OPTIMIZERS, "torch.optim")
    arguments = dict(settings.optimizer.arguments)
    fusible = "fused" in inspect.signature(kind).parameters
    if fusible and not {"fused", "foreach", "capturable", "differentiable"} & arguments.keys():
        arguments["fused"] = True
    optimizer = _construct(field, kind, parameters, lr=settings.learning_rate, **arguments)
    assert isinstance(optimizer, torch.optim.Optimizer)
    return optimizer


def build_scheduler(config: TrainConfig, optimizer: torch.optim.Optimizer) -> LRScheduler:
    """The schedule of ``global_training.scheduler``.

    Raises:
        ConfigError: the name or an argument is not known to torch.
    """
    field = "global_training.scheduler"
    chosen = config.global_training.scheduler
    kind = _find(field, chosen.name, SCHEDULERS, "torch.optim.lr_scheduler")
    scheduler = _construct(field, kind, optimizer, **chosen.arguments)
    assert isinstance(scheduler, LRScheduler)
    return scheduler


def scale_rates(optimizer: torch.optim.Optimizer, scheduler: LRScheduler, factor: float) -> None:
    """Scale the present learning rate of every group and what its schedule goes out from."""
    for group in optimizer.param_groups:
        for name in ("lr", "initial_lr", "max_lr", "min_lr"):
            if name in group:
                group[name] *= factor
    for name in ("base_lrs", "_last_lr"):
        if hasattr(scheduler, name):
            setattr(scheduler, name, [rate * factor for rate in getattr(scheduler, name)])


def check_names(config: TrainConfig) -> None:
    """Build optimizer and schedule over small parameters and step once: mistakes show before workers start.

    Raises:
        ConfigError: a name or an argument is not known to torch, or the schedule needs an evaluation.
    """
    parameters = [nn.Parameter(torch.zeros(2, 2)), nn.Parameter(torch.zeros(2))]
    for parameter in parameters:
        parameter.grad = torch.zeros_like(parameter)
    optimizer = build_optimizer(config, parameters)
    try:
        optimizer.step()
    except (TypeError, RuntimeError) as error:
        raise ConfigError(
            f"global_training.optimizer: {config.global_training.optimizer.name} cannot train this kind "
            f"of model ({error}); "
            "use one that needs gradients alone, such as AdamW"
        ) from error
    scheduler = build_scheduler(config, optimizer)
    if isinstance(scheduler, ReduceLROnPlateau):
        if not config.evaluation:
            raise ConfigError(
                "global_training.scheduler: ReduceLROnPlateau follows the validation loss; set "
                "evaluation: true"
            )
        if config.global_training.scheduler_step_on == "batch":
            raise ConfigError(
                "global_training.scheduler_step_on: ReduceLROnPlateau follows the validation loss, which "
                "is known "
                'once an epoch; found "batch", set it to "epoch"'
            )


def schedule_state(scheduler: LRScheduler) -> dict[str, Any]:
    """Where a schedule stands, in values that JSON keeps; what the configuration gives is left out.

    Milestones, for one, are counted in a dictionary with numbers as keys, which JSON would turn into text.
    """
    plain = (bool, int, float, str, type(None))
    return {
        name: value
        for name, value in scheduler.state_dict().items()
        if isinstance(value, plain) or (isinstance(value, list) and all(isinstance(v, plain) for v in value))
    }


def step_on_epoch(scheduler: LRScheduler, validation_loss: float | None) -> None:
    """Advance a schedule at the end of an epoch; a plateau schedule looks at the validation loss."""
    if isinstance(scheduler, ReduceLROnPlateau):
        assert validation_loss is not None
        scheduler.step(validation_loss)
    else:
        scheduler.step()
