"""What a job is to run: the words after the batch script's name."""

from __future__ import annotations

import itertools
import json
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass

from sequifier_ray import storage
from sequifier_ray.config.load import load_preprocess, load_train
from sequifier_ray.config.overrides import parse_settings
from sequifier_ray.config.train import TrainConfig
from sequifier_ray.errors import ConfigError, DataError

VERBS = ("train", "preprocess")
RESUME = "global_training.resume={policy: if_exists}"


@dataclass(frozen=True)
class Task:
    """A command of sequifier-ray; ``config`` is that of a training, else None."""

    verb: str
    options: tuple[str, ...]
    config: TrainConfig | None

    @property
    def words(self) -> list[str]:
        """What follows ``sequifier-ray``."""
        return [self.verb, *self.options]


def read_task(words: Sequence[str], launcher: str) -> Task:
    """``[train|preprocess] [CONFIG] [OPTION...]`` as a command; its configuration is read here, before
    anything starts.

    Raises:
        ConfigError: wrong words, or anything wrong with the configuration.
    """
    rest = list(words)
    verb = rest.pop(0) if rest and rest[0] in VERBS else "train"
    if verb != "train" and launcher != "ray":
        raise ConfigError(f"the {launcher} script trains; for `{verb}` submit train-ray.sbatch {verb} ...")
    path = f"configs/{verb}.yaml"
    if rest and not rest[0].startswith("-"):
        path = rest.pop(0)
    for taken in ("--config-path", "--launcher", "--address"):
        if any(word.split("=")[0] == taken for word in rest):
            raise ConfigError(
                f"{taken} is not for a Slurm job: the script sets it; write `sbatch SCRIPT "
                f"[{'|'.join(VERBS)}] CONFIG [--set NAME=VALUE ...]`"
            )
    settings = _settings(rest)
    config = None
    if verb == "train":
        config = load_train(path, parse_settings(settings, {}))
    elif verb == "preprocess" and len(rest) == 2 * len(settings):
        load_preprocess(path, parse_settings(settings, {}))
    return Task(verb, ("--config-path", path, *rest), config)


def go_on(task: Task, job_id: int, restarts: int, tell: Callable[[str], None]) -> Task:
    """The task of a job that Slurm has started again: it goes on from this job's own checkpoints, whatever
    the configuration says of the first start."""
    config = task.config
    if config is None:
        return task
    marker = config.resolve(f"logs/{config.model_name}/slurm-{job_id}.json")
    if restarts == 0 or not storage.exists(marker):
        storage.make_folder(config.resolve(f"logs/{config.model_name}"))
        storage.write_atomic(marker, json.dumps({"first_start_s": time.time()}))
        return task
    since_s = float(json.loads(storage.read_text(marker))["first_start_s"])
    folder = config.resolve(f"checkpoints/{config.model_name}")
    if not any(started_s >= since_s for started_s in _runs(folder)):
        tell(f"start {restarts + 1} of this job: it has no checkpoint yet and begins as the first time")
        return task
    tell(f"start {restarts + 1} of this job: goes on from its newest checkpoint (--set '{RESUME}')")
    return Task(task.verb, (*task.options, "--set", RESUME), config)


def _runs(folder: str) -> list[float]:
    """When the runs began that left checkpoints in a folder, in Unix seconds."""
    if not storage.exists(folder):
        return []
    found = []
    for name in storage.list_names(folder):
        state = storage.join(folder, name, "state.json")
        if name.startswith("step-") and storage.exists(state):
            # A damaged one is none to go on from.
            with suppress(DataError, ValueError, TypeError, KeyError):
                found.append(float(json.loads(storage.read_text(state))["run_started_s"]))
    return found


def _settings(words: Sequence[str]) -> list[str]:
    """The values of --set among some words."""
    found = [word.removeprefix("--set=") for word in words if word.startswith("--set=")]
    return found + [value for word, value in itertools.pairwise(words) if word == "--set"]
