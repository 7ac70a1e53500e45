"""Rules between fields of train.yaml: pure functions from a configuration to what is wrong with it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sequifier_ray.config.base import Problem
from sequifier_ray.config.model import differences

if TYPE_CHECKING:
    from sequifier_ray.config.train import TrainConfig


def problems(config: TrainConfig) -> list[Problem]:
    """All broken rules, with fields from the top of the file."""
    return (
        _name_problems(config)
        + _context_problems(config)
        + _parallelism_problems(config)
        + _process_problems(config)
        + _compile_problems(config)
        + _dataset_problems(config)
    )


def _name_problems(config: TrainConfig) -> list[Problem]:
    name = config.model_name
    if "/" in name or "\\" in name or name in (".", ".."):
        return [
            Problem(
                "model_name", f'found "{name}"; allowed: a plain name without slashes: it becomes a folder'
            )
        ]
    return []


def _context_problems(config: TrainConfig) -> list[Problem]:
    settings, found = config.global_training, []
    context = settings.context_length
    longest = config.model.backbone.architecture.max_context_length
    if longest is not None and context > longest:
        text = f"found {context}; allowed: at most model.backbone.architecture.max_context_length {longest}"
        found.append(Problem("global_training.context_length", text))
    predicted = config.model.interface.decoder.prediction_length
    if predicted > context:
        text = f"found {predicted}; allowed: 1 to global_training.context_length {context}"
        found.append(Problem("model.interface.decoder.prediction_length", text))
    if settings.training_objective == "causal" and settings.target_offset < 1:
        text = (
            f"found {settings.target_offset}; training_objective: causal predicts later events; "
            "allowed: at least 1"
        )
        found.append(Problem("global_training.target_offset", text))
    return found


def _parallelism_problems(config: TrainConfig) -> list[Problem]:
    settings, found = config.global_training, []
    strategy, offload = settings.data_parallelism, settings.fsdp_cpu_offload
    if settings.distributed and strategy is None:
        text = (
            "distributed: true needs it; allowed: ddp (every process holds the model) or fsdp (a part of it)"
        )
        found.append(Problem("global_training.data_parallelism", text))
    if not settings.distributed and strategy is not None:
        text = f"found {strategy} with distributed: false; set distributed: true or remove it"
        found.append(Problem("global_training.data_parallelism", text))
    if strategy == "fsdp" and offload is None:
        text = "data_parallelism: fsdp needs it; allowed: true (parameters in host memory) or false"
        found.append(Problem("global_training.fsdp_cpu_offload", text))
    if strategy != "fsdp" and offload is not None:
        text = f"found {str(offload).lower()} without data_parallelism: fsdp; remove it"
        found.append(Problem("global_training.fsdp_cpu_offload", text))
    return found


def _process_problems(config: TrainConfig) -> list[Problem]:
    settings, found = config.global_training, []
    if not settings.distributed and settings.world_size > 1:
        text = f"found {settings.world_size} with distributed: false; set distributed: true, or world_size: 1"
        found.append(Problem("global_training.world_size", text))
    if settings.distributed and config.device == "cpu" and settings.backend == "nccl":
        is_default = "" if "backend" in settings.model_fields_set else " (the default)"
        text = f"nccl{is_default} works between GPUs only, and device is cpu; set backend: gloo"
        found.append(Problem("global_training.backend", text))
    if settings.distributed and settings.read_format == "csv":
        text = (
            "found csv, a single file that processes cannot share; run preprocess with "
            "merge_output: false and "
            "write_format: pt or parquet, and set read_format to the same"
        )
        found.append(Problem("global_training.read_format", text))
    smallest = config.ray.min_world_size
    if smallest is not None and smallest > settings.world_size:
        text = f"found {smallest}; allowed: at most global_training.world_size {settings.world_size}"
        found.append(Problem("ray.min_world_size", text))
    return found


def _compile_problems(config: TrainConfig) -> list[Problem]:
    settings = config.global_training
    mode, field = settings.torch_compile, "global_training.torch_compile"
    if settings.data_parallelism == "fsdp" and mode == "outer":
        is_default = "" if "torch_compile" in settings.model_fields_set else " (the default)"
        text = (
            f"outer{is_default} does not work with data_parallelism: fsdp; set torch_compile: none or inner"
        )
        return [Problem(field, text)]
    if settings.data_parallelism == "ddp" and mode == "inner":
        return [
            Problem(field, "inner does not work with data_parallelism: ddp; set torch_compile: outer or none")
        ]
    return []


def _dataset_problems(config: TrainConfig) -> list[Problem]:
    settings, dataset, found = config.global_training, config.dataset, []
    targets = config.model.interface.target_columns
    if set(dataset.criterion) != set(targets):
        text = (
            f"{differences(dataset.criterion, targets)}; allowed: a loss for each of the "
            f"target_columns {list(targets)}"
        )
        found.append(Problem("dataset.criterion", text))
    strange = [name for name in dataset.loss_weights or {} if name not in targets]
    if strange:
        text = f"names {strange}; allowed: target_columns {list(targets)}"
        found.append(Problem("dataset.loss_weights", text))
    if dataset.loss_weights and all(dataset.loss_weights.get(name, 1.0) == 0 for name in targets):
        found.append(
            Problem("dataset.loss_weights", "all targets have weight 0; allowed: at least one above 0")
        )
    if settings.early_stopping_epochs is not None and not config.evaluation:
        text = "it follows the validation loss; set evaluation: true or remove it"
        found.append(Problem("global_training.early_stopping_epochs", text))
    if "lr" in settings.optimizer.arguments:
        text = "found lr; the learning rate is global_training.learning_rate; remove lr"
        found.append(Problem("global_training.optimizer", text))
    return found
