"""Checkpoints: a folder per saved step, written by all ranks, complete once it has its name.

``checkpoints/<model>/step-<update>/`` holds torch.distributed.checkpoint files of every rank and
``state.json``, which lists them with their sizes and is written last. A folder has another name until then;
in an object store, which has no renaming, one without ``state.json`` counts as unfinished. A folder whose
files do not match its list is passed over.
"""

from __future__ import annotations

import json
import re
import time
import warnings
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.distributed.checkpoint import state_dict_loader, state_dict_saver
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.filesystem import FileSystemReader
from torch.distributed.checkpoint.metadata import TensorStorageMetadata
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict

from sequifier_ray import storage
from sequifier_ray.errors import ConfigError, DataError, TrainingError
from sequifier_ray.train import step_files
from sequifier_ray.train.parallel import Strategy
from sequifier_ray.train.state import STATE_FORMAT, STATE_VERSION, TrainState
from sequifier_ray.train.worker import is_peer_loss

# A network file system may show a new file late; attribute caches last up to a minute.
LATE_S = 60.0
_STEP = re.compile(r"step-\d+(-[0-9a-f]{8})?")


@dataclass(frozen=True)
class SavedStep:
    """A complete checkpoint folder and the state in it."""

    path: str
    state: TrainState

    @property
    def age_key(self) -> tuple[float, int]:
        """Later runs and later updates compare greater."""
        return (self.state.run_started_s, self.state.update)


@dataclass(frozen=True)
class StepFolders:
    """The checkpoints of one model. Only rank 0 lists, renames and deletes."""

    folder: str
    keep: int

    def complete(self, on_damaged: Callable[[str], None] | None = None) -> list[SavedStep]:
        """Complete steps, oldest first. ``on_damaged`` is told of folders that are passed over, and why.

        Raises:
            DataError: with ``on_damaged``, a step could not be looked at: to go on from an older one, or from
                none, might throw it away.
        """
        if not storage.exists(self.folder):
            return []
        steps = []
        for name in storage.list_names(self.folder):
            if _STEP.fullmatch(name):
                path = storage.join(self.folder, name)
                try:
                    problem, state = _read_state(path)
                except DataError:
                    if on_damaged is not None:
                        raise
                    continue
                if state is not None:
                    steps.append(SavedStep(path, state))
                elif on_damaged is not None:
                    on_damaged(f"{path} is passed over: {problem}")
        return sorted(steps, key=lambda step: step.age_key)

    def path_of(self, update: int, run_id: str) -> str:
        """Folder for the step after ``update`` updates of a run.

        Another run's of that name is left alone, and so is one that might be another run's.
        """
        path = storage.join(self.folder, f"step-{update:08d}")
        try:
            state = _read_state(path)[1]
            is_free = state is None or state.run_id == run_id
        except DataError:
            is_free = False
        return path if is_free else f"{path}-{run_id[:8]}"

    def prune(self, run_id: str, note: Callable[[str], None]) -> None:
        """Delete steps of this run beyond the newest ``keep`` and its best one; other runs' stay."""
        own = [step for step in self.complete() if step.state.run_id == run_id]
        if not own:
            return
        best_update = own[-1].state.best_update
        for step in own[: -self.keep]:
            if step.state.update != best_update:
                _delete(step.path, note)

    def delete_other_runs(self, run_id: str, note: Callable[[str], None]) -> None:
        """Delete what earlier runs left, once this one has ended well."""
        for step in self.complete():
            if step.state.run_id != run_id:
                _delete(step.path, note)

    def delete_partial(self, note: Callable[[str], None]) -> None:
        """Delete what a killed run was writing."""
        try:
            storage.delete_partial(self.folder)
        except DataError as error:
            note(f"{error}; delete by hand what ends with .partial there")


def _read_state(path: str) -> tuple[str, TrainState | None]:
    """The state of a step folder; or what is wrong with it, and None.

    Raises:
        DataError: the storage did not let us look, which says nothing about the step.
    """
    manifest = storage.join(path, "state.json")
    if not storage.exists(manifest):
        return "it has no state.json", None
    try:
        values = json.loads(storage.read_bytes(manifest))
        if (values["format"], values["version"]) != (STATE_FORMAT, STATE_VERSION):
            return f"state.json has format {values['format']} version {values['version']}", None
        for name, n_bytes in values["files"].items():
            found = storage.file_bytes(storage.join(path, name))
            if found != n_bytes:
                return f"{name} has {found} bytes instead of {n_bytes}", None
        return "", TrainState.from_json(values)
    except DataError:
        raise
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        return f"state.json cannot be read ({type(error).__name__}: {error})", None


def write(
    folders: StepFolders,
    state: TrainState,
    contents: dict[str, Any],
    strategy: Strategy,
    group: Any,
    note: Callable[[str], None],
) -> str:
    """Write weights, optimizer state and ``state`` as one step folder; all ranks take part, over ``group``.

    Returns the folder's path. Earlier steps are pruned only after this one is complete; ``note`` is told what
    could not be deleted.

    Raises:
        TrainingError: the storage did not take it; earlier steps are untouched.
        RuntimeError: another rank is gone.
    """
    target, partial = _make_folder(folders, state, strategy, group, note)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            metadata = state_dict_saver.save(
                contents,
                storage_writer=step_files.writer(partial),
                process_group=group,
                no_dist=strategy.world_size == 1,
            )
        if strategy.rank == 0:
            files = {".metadata", *(part.relative_path for part in metadata.storage_data.values())}
            _publish(state, partial, target, files)
    except (CheckpointException, OSError, DataError) as error:
        cause = _cause(error)
        if is_peer_loss(RuntimeError(cause)):
            raise RuntimeError(cause) from error
        if strategy.rank == 0:
            _delete(partial, note)
        raise TrainingError(_not_written(target, cause)) from error
    if strategy.rank == 0:
        try:
            folders.prune(state.run_id, note)
        except DataError as error:
            note(f"earlier checkpoints could not be looked through ({error}); they stay")
    return target


def _make_folder(
    folders: StepFolders, state: TrainState, strategy: Strategy, group: Any, note: Callable[[str], None]
) -> tuple[str, str]:
    """The folder that a step will have, and the one to write it in, which is there on every rank.

    Raises:
        TrainingError: on every rank, if it cannot be made on one of them.
    """
    target = partial = ""
    problem: str | None = None
    if strategy.rank == 0:
        try:
            target = folders.path_of(state.update, state.run_id)
            partial = storage.unpublished(target)
            folders.delete_partial(note)
            if partial == target:
                storage.delete_folder(target)  # what an unfinished save has left under this very name
        except DataError as error:
            problem = str(error)
    target, partial, problem = strategy.from_lead((target, partial, problem), group)
    if problem is None:
        try:
            # Each rank: one that sees what rank 0 made only later must not look for it in vain.
            storage.make_folder(partial)
        except DataError as error:
            problem = f"rank {strategy.rank}: {error}"
        problem = next(filter(None, strategy.gather_objects(problem, group)), None)
    if problem is not None:
        raise TrainingError(_not_written(target or folders.folder, problem))
    return target, partial


def _not_written(target: str, cause: str) -> str:
    return f"the checkpoint {target} could not be written ({cause}); earlier checkpoints are untouched"


def _publish(state: TrainState, partial: str, target: str, names: Iterable[str]) -> None:
    """Give the folder its name once all ranks' files are seen in it: on a network file system that may take.

    Raises:
        DataError: one is not seen after a minute.
    """
    sizes: dict[str, int] = {}
    deadline_s = time.monotonic() + LATE_S
    for name in sorted(names):
        while (found := storage.file_bytes(storage.join(partial, name))) is None:
            if time.monotonic() > deadline_s:
                raise DataError(f"{name} of another rank does not appear in {partial}")
            time.sleep(0.2)
        sizes[name] = found
    manifest = json.dumps({**state.to_json(), "files": sizes}, indent=1)
    storage.write_atomic(storage.join(partial, "state.json"), manifest)
    storage.publish_folder(partial, target)


def _delete(path: str, note: Callable[[str], None]) -> None:
    """Delete a folder; what cannot be deleted is told and left."""
    try:
        storage.delete_folder(path)
    except (DataError, OSError) as error:
        note(f"{path} could not be deleted ({error}); delete it by hand")


def _cause(error: BaseException) -> str:
    """The first failure that a distributed checkpoint error wraps, in one line."""
    if isinstance(error, CheckpointException) and error.failures:
        rank, (cause, _) = sorted(error.failures.items())[0]
        return f"rank {rank}: {cause}"
    return str(error).splitlines()[0] if str(error) else type(error).__name__


def load(step: SavedStep, model: nn.Module, optimizer: torch.optim.Optimizer, strategy: Strategy) -> None:
    """Restore weights and optimizer state, whatever world size and strategy wrote them.

    Raises:
        ConfigError: the checkpoint belongs to a model with other parameters.
    """
    plain = strategy.unwrap(model)
    weights, moments = get_state_dict(plain, optimizer)
    _check_shapes(step.path, weights)
    _check_optimizer(step.path, moments)
    contents: dict[str, Any] = {"model": weights, "optimizer": moments}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        state_dict_loader.load(
            contents, storage_reader=step_files.reader(step.path), no_dist=strategy.world_size == 1
        )
        set_state_dict(
            plain, optimizer, model_state_dict=contents["model"], optim_state_dict=contents["optimizer"]
        )


def _check_optimizer(path: str, moments: dict[str, Any]) -> None:
    """Another optimizer keeps other things of every parameter."""
    entries = step_files.reader(path).read_metadata().state_dict_metadata
    saved = {name.rsplit(".", 1)[1] for name in entries if name.startswith("optimizer.state.")}
    wanted = {name for values in moments["state"].values() for name in values}
    if saved != wanted:
        raise ConfigError(
            f"the checkpoint {path} was made with another optimizer: of every parameter it keeps "
            f"{', '.join(sorted(saved)) or 'nothing'}, and global_training.optimizer needs "
            f"{', '.join(sorted(wanted)) or 'nothing'}; use the optimizer it was trained with, or start anew "
            "with resume: {policy: never}"
        )


def load_weights(path: str) -> dict[str, torch.Tensor]:
    """The full float32 weights of a step folder in host memory, read by this process alone."""
    reader = step_files.reader(path)
    shapes = _saved_shapes(reader)
    weights = {name: torch.empty(size, dtype=dtype) for name, (size, dtype) in shapes.items()}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        state_dict_loader.load({"model": weights}, storage_reader=reader, no_dist=True)
    return weights


def _saved_shapes(reader: FileSystemReader) -> dict[str, tuple[torch.Size, torch.dtype]]:
    entries = reader.read_metadata().state_dict_metadata
    return {
        name.removeprefix("model."): (entry.size, entry.properties.dtype)
        for name, entry in entries.items()
        if name.startswith("model.") and isinstance(entry, TensorStorageMetadata)
    }


def _check_shapes(path: str, weights: dict[str, Any]) -> None:
    saved = {name: tuple(size) for name, (size, _) in _saved_shapes(step_files.reader(path)).items()}
    wanted = {name: tuple(value.shape) for name, value in weights.items()}
    different = [name for name in sorted(saved.keys() | wanted.keys()) if saved.get(name) != wanted.get(name)]
    if different:
        first = different[0]
        raise ConfigError(
            f"the checkpoint {path} belongs to another model: {len(different)} parameters differ, first "
            f"{first} "
            f"(checkpoint {saved.get(first, 'none')}, config {wanted.get(first, 'none')}); use the model "
            "section it was "
            "trained with, another model_name, or resume: {policy: never}"
        )
