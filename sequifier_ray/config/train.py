"""train.yaml: the whole of a training run."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field, field_validator, model_validator
from typing_extensions import Self

from sequifier_ray.config import train_rules
from sequifier_ray.config.base import (
    INTEGER_BOUND,
    Count,
    Flag,
    Integer,
    NamedArguments,
    NaturalNumber,
    NonNegative,
    Positive,
    Project,
    Section,
    Text,
    nest_arguments,
    require,
)
from sequifier_ray.config.cluster import RayConfig
from sequifier_ray.config.model import ModelConfig


class Resume(Section):
    """Whether to go on from a checkpoint."""

    policy: Literal["never", "if_exists", "required"] = Field(
        default="never", description="Start anew, go on where there is a checkpoint, or insist on one."
    )
    checkpoint_path: Text | None = Field(
        default=None,
        description="Checkpoint folder to go on from; null: the newest complete one of this model.",
    )


class GlobalTraining(Section):
    """How to optimize, on how many processes."""

    read_format: Literal["pt", "parquet", "csv"] = Field(
        default="parquet", description="Format that preprocess wrote."
    )
    training_objective: Literal["causal"] = Field(description="Predict each event from those before it.")
    context_length: Count = Field(description="Events the model sees at once.")
    target_offset: NaturalNumber = Field(
        default=1, description="Events that targets lie ahead; causal needs at least 1."
    )
    window_stride: Count | None = Field(
        default=None,
        description="Events between further views inside a longer window; null: one right-aligned view.",
    )
    batch_size: Count = Field(description="Samples per process and micro-batch.")
    inference_batch_size: Count = Field(description="Samples per process in validation.")
    accumulation_steps: Count | None = Field(
        default=None, description="Micro-batches per optimizer update; null: 1."
    )
    learning_rate: Positive = Field(description="Learning rate of the optimizer at the start.")
    optimizer: NamedArguments = Field(
        default_factory=lambda: NamedArguments(name="Adam"),
        description="A `torch.optim` class: `{name: AdamW, weight_decay: 0.1}`.",
    )
    scheduler: NamedArguments = Field(
        default_factory=lambda: NamedArguments(name="StepLR", arguments={"step_size": 1, "gamma": 0.99}),
        description="A `torch.optim.lr_scheduler` class, written like the optimizer.",
    )
    scheduler_step_on: Literal["epoch", "batch"] = Field(
        default="epoch", description="`batch` is an optimizer update."
    )
    gradient_clip: Positive | None = Field(
        default=None, description="Largest global gradient norm; null: no clipping."
    )
    log_interval: Count = Field(default=10, description="Optimizer updates between log lines.")
    early_stopping_epochs: Count | None = Field(
        default=None,
        description="Stop after so many epochs without a better validation loss; needs `evaluation`.",
    )
    save_interval_epochs: Count = Field(default=1, description="Epochs between checkpoints.")
    save_interval_batches: Count | None = Field(
        default=None, description="Optimizer updates between further checkpoints."
    )
    save_interval_minutes: Positive | None = Field(
        default=None, description="Minutes between further checkpoints."
    )
    save_latest_interval_minutes: Positive | None = Field(
        default=None,
        description="Minutes between further checkpoints; the shorter of the two intervals counts.",
    )
    calculate_validation_loss_on_initialization: Flag = Field(
        default=True, description="Validate before the first update."
    )
    resume: Resume = Field(default_factory=Resume)
    distributed: Flag = Field(
        default=False, description="Train in `world_size` processes; needs `data_parallelism`."
    )
    data_parallelism: Literal["ddp", "fsdp"] | None = Field(
        default=None, description="Every process holds the model (ddp) or a part of it (fsdp)."
    )
    fsdp_cpu_offload: Flag | None = Field(
        default=None,
        description="Keep parameters and optimizer state in host memory; required with fsdp, an "
        "error without.",
    )
    layer_autocast: Flag = Field(
        default=False, description="Mixed precision: bfloat16 in the layers, float32 parameters."
    )
    torch_compile: Literal["outer", "inner", "none"] = Field(
        default="outer",
        description="Compile the whole model (not with fsdp), each block (not with ddp), or nothing.",
    )
    world_size: Count = Field(default=1, description="Processes over all nodes.")
    backend: Literal["nccl", "gloo"] = Field(
        default="nccl", description="nccl for `device: cuda`, gloo for `device: cpu`."
    )
    num_workers: NaturalNumber = Field(
        default=0, description="Accepted without effect: one thread reads ahead of each process."
    )
    load_full_data_to_ram: Flag = Field(
        default=True, description="Accepted without effect: shards are memory-mapped."
    )
    max_ram_gb: Positive = Field(
        default=16.0, description="Accepted without effect: shards are memory-mapped."
    )
    enforce_determinism: Flag = Field(
        default=False, description="Deterministic kernels only, at some cost in speed."
    )
    float32_matmul_precision: Literal["highest", "high", "medium"] = Field(
        default="highest", description="Precision of float32 matrix products on GPUs."
    )
    data_streams: Count | None = Field(
        default=None,
        description="Pieces the epoch's order is cut into; every world size that divides it sees "
        "the same samples "
        "in every update. Null: the world size at first start.",
    )
    shuffle_shards: Count = Field(default=8, description="Shards whose samples are shuffled together.")
    shard_cache_path: Text | None = Field(
        default=None,
        description="Folder on each node's own disk where shards of an object store are kept once fetched; "
        "null: in the temporary folder, one per user. Shards on a file system are read where they are.",
    )
    shard_cache_gigabytes: Positive = Field(
        default=100.0, description="Size of that folder; the shards used longest ago make room."
    )
    keep_checkpoints: int = Field(
        default=2,
        strict=True,
        ge=2,
        lt=INTEGER_BOUND,
        description="Latest checkpoints kept, besides the best.",
    )
    collective_timeout_s: Positive = Field(
        default=600.0, description="Seconds after which a process counts as lost."
    )
    non_finite: Literal["stop", "skip"] = Field(
        default="stop",
        description="When a gradient is not finite: stop after a checkpoint of the last good update, or "
        "skip the "
        "update.",
    )

    @field_validator("optimizer", "scheduler", mode="before")
    @classmethod
    def _nest(cls, value: Any) -> Any:
        return nest_arguments(value)

    @property
    def updates_accumulate(self) -> int:
        """Micro-batches per optimizer update."""
        return self.accumulation_steps or 1


class Part(Section):
    """Where the data is."""

    metadata_config_path: Text = Field(
        description="The description that preprocess wrote: `configs/metadata_configs/<name>.json`."
    )
    file_order: Literal["shuffled", "name"] = Field(
        default="shuffled", description="Order of the shards in an epoch."
    )


class Dataset(Section):
    """What to train on and what counts as loss."""

    part: Part
    criterion: dict[Text, Text] = Field(description="A `torch.nn` loss class per target column.")
    loss_weights: dict[Text, NonNegative] | None = Field(
        default=None, description="Weight of targets in the loss; those not named, and null: 1."
    )


class TrainingPlan(Section):
    """How long."""

    epochs: Count = Field(description="Passes over the training split.")


class TrainConfig(Project):
    """All settings of a training run."""

    model_name: Text = Field(description="Names the folders of checkpoints, logs and models.")
    device: Literal["cpu", "cuda"] = Field(description="Where the model runs.")
    seed: Integer = Field(default=1010, description="Decides initial weights, order of samples, and dropout.")
    global_training: GlobalTraining
    model: ModelConfig
    dataset: Dataset
    training_plan: TrainingPlan
    evaluation: Flag = Field(default=False, description="Validate on split 1 after every epoch.")
    export_generative_model: Flag = Field(
        default=True, description="Accepted without effect: weights are always exported as safetensors."
    )
    export_embedding_model: Flag = Field(
        default=False, description="Accepted without effect: the exported weights hold the whole model."
    )
    embedding_layer_names: tuple[Text, ...] = Field(
        default=("backbone.final_norm",), description="Accepted without effect."
    )
    export_onnx: Flag = Field(
        default=True, description="Accepted without effect: the model is exported as safetensors and JSON."
    )
    export_pt: Flag = Field(
        default=False, description="Accepted without effect: the model is exported as safetensors and JSON."
    )
    export_with_dropout: Flag = Field(
        default=False, description="Accepted without effect: safetensors hold weights only."
    )
    ray: RayConfig = Field(default_factory=RayConfig)

    @model_validator(mode="before")
    @classmethod
    def _fill_max_context_length(cls, values: Any) -> Any:
        """``max_context_length`` is ``context_length`` where it is not given."""
        try:
            context_length = values["global_training"]["context_length"]
            architecture = values["model"]["backbone"]["architecture"]
            if architecture.get("max_context_length") is not None or not isinstance(context_length, int):
                return values
            filled = {**architecture, "max_context_length": context_length}
            backbone = {**values["model"]["backbone"], "architecture": filled}
        except (TypeError, KeyError, AttributeError):
            return values  # not of the form that this is about: the fields' own checks say what is wrong
        return {**values, "model": {**values["model"], "backbone": backbone}}

    @model_validator(mode="after")
    def _check(self) -> Self:
        require(train_rules.problems(self))
        return self


def ignored_settings(config: TrainConfig) -> list[str]:
    """Settings of the user that change nothing here, each with what happens instead."""
    lines = []
    settings, given = config.global_training, config.global_training.model_fields_set
    if "load_full_data_to_ram" in given:
        lines.append(
            "global_training.load_full_data_to_ram has no effect: pt shards are memory-mapped, "
            "others read one by one"
        )
    if "max_ram_gb" in given:
        lines.append("global_training.max_ram_gb has no effect: memory does not grow with the data set")
    if settings.num_workers:
        lines.append(
            f"global_training.num_workers: {settings.num_workers} has no effect: one thread reads "
            "ahead of each process"
        )
    if not config.export_generative_model:
        lines.append(
            "export_generative_model: false has no effect: last and best weights are always "
            "exported as safetensors"
        )
    for name in ("export_onnx", "export_pt"):
        if name in config.model_fields_set and getattr(config, name):
            lines.append(
                f"{name} has no effect: the model is exported as safetensors with its description as JSON"
            )
    if config.export_embedding_model:
        lines.append("export_embedding_model has no effect: the exported weights hold the whole model")
    if "embedding_layer_names" in config.model_fields_set:
        lines.append("embedding_layer_names has no effect: the exported weights hold every layer")
    if config.export_with_dropout:
        lines.append(
            "export_with_dropout has no effect: safetensors hold weights only, dropout is up to the caller"
        )
    return lines
