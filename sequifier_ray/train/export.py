"""The finished model: weights as safetensors, and in JSON all that is needed to use them without the YAML."""

from __future__ import annotations

import json
from typing import Any

from safetensors.torch import save as safetensors_bytes

from sequifier_ray import __version__, storage
from sequifier_ray.config.train import TrainConfig
from sequifier_ray.data.metadata import DatasetDescription
from sequifier_ray.train.checkpoint import SavedStep, load_weights

MODEL_FORMAT = "sequifier_ray.model"
MODEL_VERSION = 1


def export_model(config: TrainConfig, description: DatasetDescription, step: SavedStep, suffix: str) -> str:
    """Write ``models/<model_name>-<suffix>/`` from a checkpoint; returns the folder.

    An earlier export of the same name is replaced only when the new one is complete; in an object store file
    by file, the description last.
    """
    target = config.resolve(f"models/{config.model_name}-{suffix}")
    _clear_unfinished(target)
    partial = storage.unpublished(target)
    storage.make_folder(partial)
    weights = {name: value.contiguous() for name, value in load_weights(step.path).items()}
    storage.write_atomic(storage.join(partial, "model.safetensors"), safetensors_bytes(weights))
    text = json.dumps(_describe(config, description, step), indent=1, sort_keys=True, ensure_ascii=False)
    storage.write_atomic(storage.join(partial, "model.json"), text)
    storage.publish_folder(partial, target)
    return target


def _clear_unfinished(target: str) -> None:
    """Delete what exports that were killed have left."""
    folder, _, name = target.rpartition("/")
    storage.delete_partial(folder, f"{name}.")
    storage.delete_partial(target)


def withdraw_model(config: TrainConfig, suffix: str) -> None:
    """Delete an earlier run's export of which this run has none."""
    storage.delete_folder(config.resolve(f"models/{config.model_name}-{suffix}"))


def _describe(config: TrainConfig, description: DatasetDescription, step: SavedStep) -> dict[str, Any]:
    return {
        "format": MODEL_FORMAT,
        "version": MODEL_VERSION,
        "sequifier_ray": __version__,
        "config": config.model_dump(mode="json"),
        "dataset": description.to_json(),
        "update": step.state.update,
        "epoch": step.state.epoch,
        "best_validation_loss": step.state.best_loss,
    }
