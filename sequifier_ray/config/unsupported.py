"""Fields and values of Sequifier that are known and refused by name, never ignored."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from fnmatch import fnmatchcase
from typing import Any

PREPROCESS_FIELDS: tuple[str, ...] = (
    "window_lengths",
    "prediction_aligned_splits",
    "prediction_alignment_steps",
    "prediction_length",
    "target_offset",
    "allow_sequence_splitting",
    "depth_layouts",
)
TRAIN_FIELDS: tuple[str, ...] = (
    "global_training.layer_type_dtypes",
    "global_training.bert_spec",
    "global_training.next_occurrence_config",
    "global_training.reset_optimization_on_phase",
    "global_training.optimizer.groups",
    "model.backbone.initialization*",
    "model.backbone.repository",
    "model.interface.categorical_hashing",
    "model.interface.feature_layout",
    "dataset.parts",
    "dataset.class_weights",
    "dataset.freeze",
    "training_plan.phases",
    "training_plan.curriculum_training",
)
TRAIN_VALUES: dict[str, tuple[str, ...]] = {
    "global_training.training_objective": ("bert", "final_value", "next_occurrence"),
    "model.backbone.architecture.position_encoding.type": ("range", "range_concat"),
    "model.interface.decoder.type": ("autoregressive_transformer", "composite"),
}
INSTEAD: dict[str, str] = {
    "global_training.layer_type_dtypes": "use layer_autocast: true for mixed precision",
    "global_training.training_objective": "use causal",
    "global_training.optimizer.groups": "use one optimizer with one learning_rate",
    "model.interface.decoder.type": "use linear or mlp",
    "model.interface.decoder.support": "use 1",
    "model.interface.ingestion.type": "use embedding",
    "model.backbone.architecture.position_encoding.type": "use learned, rope or sinusoidal",
    "dataset.parts": "name one data set under part",
    "training_plan.phases": "use epochs",
    "training_plan.curriculum_training": "use epochs",
    "evaluation with settings of its own": "use true to validate on split 1",
}

Refusals = Iterator[tuple[tuple[str, ...], str]]


def refused_in_preprocess(tree: Mapping[str, Any]) -> Refusals:
    """Path and text of every unsupported setting of preprocess.yaml."""
    yield from _refused_fields(tree, PREPROCESS_FIELDS)


def refused_in_train(tree: Mapping[str, Any]) -> Refusals:
    """Path and text of every unsupported setting of train.yaml."""
    yield from _refused_fields(tree, TRAIN_FIELDS)
    for path, value in leaves(tree):
        name = ".".join(path)
        is_other_ingestion = name == "model.interface.ingestion.type" and value != "embedding"
        if isinstance(value, str) and (is_other_ingestion or value in TRAIN_VALUES.get(name, ())):
            yield path, refusal(name, value)
        elif name == "model.interface.decoder.support" and type(value) is int and value > 1:
            yield path, refusal(name, str(value))
    if isinstance(tree.get("evaluation"), (Mapping, list, str)):
        yield ("evaluation",), refusal("evaluation with settings of its own")


def refusal(name: str, value: str = "") -> str:
    """The one sentence for what is known and not supported."""
    shown = f"{name}: {value}" if value else name
    instead = f"; {INSTEAD[name]}" if name in INSTEAD else ""
    return f'"{shown}" is not supported yet{instead}'


def asks_for_nothing(value: Any) -> bool:
    """True for null, false and what is empty: an unsupported field so set is as good as absent."""
    return value is None or value is False or (isinstance(value, (dict, list, str)) and not value)


def without_empty_refusals(tree: Mapping[str, Any], fields: tuple[str, ...]) -> dict[str, Any]:
    """The tree without the unsupported fields that ask for nothing."""

    def strip(branch: Mapping[str, Any], prefix: str) -> dict[str, Any]:
        kept = {}
        for key, value in branch.items():
            name = f"{prefix}{key}"
            if _matches(name, fields) and asks_for_nothing(value):
                continue
            kept[key] = strip(value, f"{name}.") if isinstance(value, Mapping) else value
        return kept

    return strip(tree, "")


def leaves(tree: Mapping[str, Any], prefix: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Path and value of everything in a tree that is not a mapping."""
    for key, value in tree.items():
        path = (*prefix, str(key))
        if isinstance(value, Mapping):
            yield from leaves(value, path)
        else:
            yield path, value


def _refused_fields(
    tree: Mapping[str, Any], fields: tuple[str, ...], prefix: tuple[str, ...] = ()
) -> Refusals:
    for key, value in tree.items():
        path = (*prefix, str(key))
        name = ".".join(path)
        if _matches(name, fields):
            if not asks_for_nothing(value):
                yield path, refusal(name)
        elif isinstance(value, Mapping):
            yield from _refused_fields(value, fields, path)


def _matches(name: str, fields: tuple[str, ...]) -> bool:
    return any(fnmatchcase(name, field) for field in fields)
