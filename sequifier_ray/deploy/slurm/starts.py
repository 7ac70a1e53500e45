"""What the starts of one job have brought: each is a process of its own, perhaps on another node.

A file beside the model's logs remembers the checkpoints, by run and update: clocks of nodes may differ.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import suppress

from sequifier_ray import storage
from sequifier_ray.config.train import TrainConfig
from sequifier_ray.deploy.slurm.task import Task
from sequifier_ray.errors import DataError

RESUME = "global_training.resume={policy: if_exists}"
Steps = set[tuple[str, int]]


def go_on(task: Task, job_id: int, restarts: int, tell: Callable[[str], None]) -> Task:
    """The task of a job that Slurm has started again: it goes on from this job's own checkpoints, whatever
    the configuration says of the first start.

    Raises:
        DataError: what the earlier starts have left cannot be read.
    """
    config = task.config
    if config is None:
        return task
    steps = _steps(config)
    remembered = _remembered(config, job_id) if restarts else None
    if remembered is None:
        if restarts:
            tell(
                f"warning: start {restarts + 1} of this job, and {_marker(config, job_id)}, which tells its "
                "checkpoints from those of other jobs, is missing or damaged: the configuration alone says "
                "whether the training goes on"
            )
        storage.make_folder(config.resolve(f"logs/{config.model_name}"))
        _remember(config, job_id, earlier=steps, at_start=steps, idle_starts=0)
        return task
    earlier, before, idle_starts = remembered
    # A file system may have shown the last start's checkpoint late.
    _remember(config, job_id, earlier, steps, 0 if _has_updates(steps - before) else idle_starts)
    if not steps - earlier:
        tell(f"start {restarts + 1} of this job: it has no checkpoint yet and begins as the first time")
        return task
    tell(f"start {restarts + 1} of this job: goes on from its newest checkpoint (--set '{RESUME}')")
    return Task(task.verb, (*task.options, "--set", RESUME), config)


def count_idle_starts(task: Task, job_id: int, restarts: int) -> int:
    """How many starts in a row, this one the last, have brought no checkpoint of a new update. What saves
    none stops only before it has begun: then every start counts."""
    if task.config is None:
        return restarts + 1
    try:
        # Without it this start counts as one that saved something, if anything is there.
        earlier, at_start, idle_starts = _remembered(task.config, job_id) or (set(), set(), 0)
    except DataError:  # it may be whole: what is saved is worth another start, which reads it again
        return 0 if _has_updates(_steps(task.config)) else 1
    idle_starts = 0 if _has_updates(_steps(task.config) - at_start) else idle_starts + 1
    with suppress(DataError):  # what is saved is worth another start, also where this cannot be written
        _remember(task.config, job_id, earlier, at_start, idle_starts)
    return idle_starts


def _marker(config: TrainConfig, job_id: int) -> str:
    return config.resolve(f"logs/{config.model_name}/slurm-{job_id}.json")


def _remember(config: TrainConfig, job_id: int, earlier: Steps, at_start: Steps, idle_starts: int) -> None:
    values = {"earlier": sorted(earlier), "at_start": sorted(at_start), "idle_starts": idle_starts}
    storage.write_atomic(_marker(config, job_id), json.dumps(values))


def _remembered(config: TrainConfig, job_id: int) -> tuple[Steps, Steps, int] | None:
    """Steps before the job's first start and at its latest one, and how many starts before were idle; None
    where the file is missing or damaged.

    Raises:
        DataError: the storage did not let us look, which says nothing about the file.
    """
    marker = _marker(config, job_id)
    if not storage.exists(marker):
        return None
    content = storage.read_bytes(marker)
    try:
        values = json.loads(content)
        return set(map(tuple, values["earlier"])), set(map(tuple, values["at_start"])), values["idle_starts"]
    except (ValueError, TypeError, KeyError):
        return None


def _steps(config: TrainConfig) -> Steps:
    """Run and update of every checkpoint of the model."""
    folder = config.resolve(f"checkpoints/{config.model_name}")
    if not storage.exists(folder):
        return set()
    found = set()
    for name in storage.list_names(folder):
        state = storage.join(folder, name, "state.json")
        if name.startswith("step-") and storage.exists(state):
            # A damaged one is none to go on from.
            with suppress(DataError, ValueError, TypeError, KeyError):
                values = json.loads(storage.read_text(state))
                found.add((str(values["run_id"]), int(values["update"])))
    return found


def _has_updates(steps: Steps) -> bool:
    """Whether a step is more than what a stop before the first update saves."""
    return any(update > 0 for _, update in steps)
