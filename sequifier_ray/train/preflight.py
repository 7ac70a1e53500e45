"""Everything that can be found wrong before workers start: data, arithmetic, names, checkpoints."""

from __future__ import annotations

import shutil
from dataclasses import dataclass

import torch

from sequifier_ray.config.train import TrainConfig
from sequifier_ray.data.loader import SplitDataset
from sequifier_ray.data.metadata import DatasetDescription, read_description
from sequifier_ray.data.node_cache import DEFAULT_CACHE, NodeCache
from sequifier_ray.data.windows import ViewSpec
from sequifier_ray.errors import ConfigError, DataError
from sequifier_ray.model.network import build_model
from sequifier_ray.model.objectives import CausalObjective
from sequifier_ray.train.checkpoint import SavedStep, StepFolders
from sequifier_ray.train.optim import check_names


@dataclass(frozen=True)
class Ground:
    """What a run stands on, read from configuration and metadata alone: no shard is opened."""

    description: DatasetDescription
    train: SplitDataset
    validation: SplitDataset | None
    n_parameters: int
    warnings: tuple[str, ...]

    @property
    def fingerprints(self) -> tuple[str, ...]:
        """Of the splits in use; equal on every node that sees the same data."""
        used = (self.train, self.validation)
        return tuple(split.fingerprint for split in used if split is not None)


def samples_per_update(config: TrainConfig) -> int:
    """Real samples that one optimizer update takes over all processes."""
    settings = config.global_training
    return settings.batch_size * settings.world_size * settings.updates_accumulate


def folders(config: TrainConfig) -> StepFolders:
    """Where the checkpoints of this configuration lie."""
    return StepFolders(
        config.resolve(f"checkpoints/{config.model_name}"), config.global_training.keep_checkpoints
    )


def survey(config: TrainConfig) -> Ground:
    """Check the configuration against the data and against torch.

    Raises:
        ConfigError: settings do not fit the data, or name something that torch does not have.
        DataError: the data set is missing, damaged, or has no samples for these settings.
    """
    check_names(config)
    _check_compiler(config)
    _check_streams(config)
    description = read_description(config.resolve(config.dataset.part.metadata_config_path))
    # Columns first: their errors name fields, where the loader could only name shards.
    CausalObjective(config.model, config.dataset, description)
    context_length = config.global_training.context_length
    with torch.device("meta"):
        model = build_model(config.model, description, context_length)
    n_parameters = sum(p.numel() for p in model.parameters())
    train = open_split(config, description, 0)
    # After the split: only its metadata tell whether Sequifier wrote pt or tables.
    _check_format(config, description)
    validation = _open_validation(config, description)
    warnings = _sample_warnings(config, train)
    return Ground(description, train, validation, n_parameters, tuple(warnings))


def open_split(config: TrainConfig, description: DatasetDescription, split: int) -> SplitDataset:
    """One split of the data set, with the views that the configuration asks for.

    Raises:
        DataError: it is missing, damaged, or holds no sample of these views.
        ConfigError: the views do not fit into the stored windows.
    """
    settings = config.global_training
    interface = config.model.interface
    spec = ViewSpec(
        window_length=description.window_length,
        window_stride=description.window_stride,
        max_target_offset=description.max_target_offset,
        context_length=settings.context_length,
        target_offset=settings.target_offset,
        view_stride=settings.window_stride,
    )
    path = config.resolve(description.split_paths[split])
    dataset = SplitDataset(
        path,
        spec,
        tuple(interface.input_columns),
        tuple(interface.target_columns),
        interface.decoder.prediction_length,
        NodeCache(
            settings.shard_cache_path or DEFAULT_CACHE.folder, int(settings.shard_cache_gigabytes * 10**9)
        ),
    )
    if dataset.n_samples == 0:
        raise DataError(
            f"{path}: split {split} has no sample for context_length {settings.context_length} and "
            "target_offset "
            f"{settings.target_offset}; give it more rows (split_ratios in preprocess.yaml) or use a "
            "shorter context"
        )
    return dataset


def _open_validation(config: TrainConfig, description: DatasetDescription) -> SplitDataset | None:
    if not config.evaluation:
        return None
    if len(description.split_paths) < 2:
        raise ConfigError(
            "evaluation: true needs a second split to validate on, and the data set has one; add a ratio "
            "to split_ratios "
            "in preprocess.yaml, or set evaluation: false"
        )
    return open_split(config, description, 1)


def _check_format(config: TrainConfig, description: DatasetDescription) -> None:
    settings = config.global_training
    if settings.distributed and description.merge_output:
        raise ConfigError(
            "global_training.distributed: true needs a data set in shards, and this one is a single "
            f"{description.write_format} file per split; set merge_output: false in preprocess.yaml and "
            "run preprocess again"
        )
    if settings.read_format != description.write_format:
        raise ConfigError(
            f'global_training.read_format: found "{settings.read_format}", but the data set was written as '
            f'"{description.write_format}"; set read_format: {description.write_format}'
        )


def _check_streams(config: TrainConfig) -> None:
    streams, wanted = config.global_training.data_streams, samples_per_update(config)
    if streams is not None and streams > wanted:
        raise ConfigError(
            f"global_training.data_streams: {streams} is more than the {wanted} samples of an update, so "
            "that some streams "
            f"would never be read; use at most {wanted}"
        )


def _check_compiler(config: TrainConfig) -> None:
    settings = config.global_training
    if (
        settings.torch_compile != "none"
        and config.device == "cpu"
        and not any(map(shutil.which, ("g++", "c++", "clang++")))
    ):
        raise ConfigError(
            f'global_training.torch_compile: "{settings.torch_compile}" needs a C++ compiler on the CPU, '
            "and none is on the "
            "PATH; install g++ or set torch_compile: none"
        )


def _sample_warnings(config: TrainConfig, train: SplitDataset) -> list[str]:
    wanted = samples_per_update(config)
    if train.n_samples >= wanted:
        return []
    return [
        f"the training split has {train.n_samples} samples, fewer than one update takes "
        f"({wanted} = batch_size × world_size × accumulation_steps): every epoch is one short update"
    ]


def choose_resume(
    config: TrainConfig, is_restart: bool, run_id: str, on_damaged: list[str]
) -> SavedStep | None:
    """The checkpoint to go on from, or None for a fresh start. Only rank 0 looks.

    A restarted run goes on from its own checkpoints whatever the policy says. ``on_damaged`` collects
    what was passed over.

    Raises:
        ConfigError: policy ``required`` and no complete checkpoint.
    """
    policy = config.global_training.resume.policy
    complete = folders(config).complete(on_damaged.append)
    if is_restart:
        own = [step for step in complete if step.state.run_id == run_id]
        if own or policy == "never":
            return own[-1] if own else None
    if policy == "never":
        return None
    named = config.global_training.resume.checkpoint_path
    if named is not None:
        path = config.resolve(named).rstrip("/")
        complete = [step for step in StepFolders(path.rpartition("/")[0], 1).complete() if step.path == path]
    if not complete and (policy == "required" or named is not None):
        place = config.resolve(named) if named is not None else folders(config).folder
        raise ConfigError(
            f"global_training.resume: there is no complete checkpoint at {place}; set policy: never to "
            "start anew, or name a "
            "step folder in checkpoint_path"
        )
    return complete[-1] if complete else None
