"""Which launcher a run takes, and how its end becomes an exit code."""

from __future__ import annotations

from typing import Any

from sequifier_ray.config.train import TrainConfig, ignored_settings
from sequifier_ray.errors import ConfigError
from sequifier_ray.launch.console import Console, describe_summary
from sequifier_ray.launch.ranks import has_torchrun_variables, is_lead, under_torchrun
from sequifier_ray.launch.signals import EXIT_INTERRUPTED, EXIT_STOPPED

LAUNCHERS = ("auto", "ray", "torchrun", "spawn", "local")


def choose(config: TrainConfig, launcher: str) -> str:
    """The launcher to use; ``auto``: torchrun under torchrun, Ray where distributed, else this process.

    Raises:
        ConfigError: an unknown launcher, or one that needs distributed: true.
    """
    if launcher not in LAUNCHERS:
        raise ConfigError(f'--launcher: "{launcher}" is none of {", ".join(LAUNCHERS)}')
    if launcher == "auto":
        if has_torchrun_variables():
            return "torchrun"
        return "ray" if config.global_training.distributed else "local"
    if launcher != "torchrun" and under_torchrun():
        raise ConfigError(
            f"--launcher {launcher} under torchrun would start a run in each of its processes; "
            "leave --launcher out, or start without torchrun"
        )
    if launcher in ("torchrun", "spawn", "ray") and not config.global_training.distributed:
        raise ConfigError(
            f"--launcher {launcher} starts several processes and global_training.distributed is false; "
            "set distributed: true, "
            "data_parallelism: ddp (or fsdp) and world_size, or use --launcher local"
        )
    return launcher


def train(config: TrainConfig, launcher: str, address: str | None) -> int:
    """Run a training to its end; returns the exit code (0 done; 75 stopped with a checkpoint, 130 by ^C).

    Raises:
        SequifierRayError: with the exit code of its kind.
    """
    chosen = choose(config, launcher)
    console = Console()
    leads = is_lead() or chosen != "torchrun"
    if leads:
        for text in ignored_settings(config):
            console.warn(text)
    try:
        summary = _start(chosen, config, console, address)
    finally:
        console.close()
    if leads:
        console.line(describe_summary(summary))
        if summary["status"] == "done":
            console.line(f"figures: {config.resolve(f'logs/{config.model_name}/summary.json')}")
    if summary["status"] != "stopped":
        return 0
    return EXIT_INTERRUPTED if summary["interrupted"] else EXIT_STOPPED


def _start(chosen: str, config: TrainConfig, console: Console, address: str | None) -> dict[str, Any]:
    if chosen == "local":
        from sequifier_ray.launch import local

        return local.run(config, console)
    if chosen == "torchrun":
        from sequifier_ray.launch import torchrun

        return torchrun.run(config, console)
    _check_before_workers(config, console)
    if chosen == "spawn":
        from sequifier_ray.launch import spawn

        return spawn.run(config, console)
    from sequifier_ray.launch import ray_train

    return ray_train.run(config, console, address)


def _check_before_workers(config: TrainConfig, console: Console) -> None:
    """Find mistakes in this process, before any worker holds a device."""
    from sequifier_ray.train.preflight import survey

    ground = survey(config)
    console.line(
        f"{config.model_name}: {ground.n_parameters:,} parameters, {ground.train.n_samples:,} training "
        "samples" + (f", {ground.validation.n_samples:,} validation samples" if ground.validation else "")
    )
