"""YAML files to configurations: merge, unwrap, override, refuse, validate; errors name file, line, field."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, TypeVar

from pydantic import ValidationError

from sequifier_ray.config.base import Project
from sequifier_ray.config.explain import explain
from sequifier_ray.config.fragments import FIELD, merged
from sequifier_ray.config.overrides import replaced, with_overrides
from sequifier_ray.config.positions import Path, Source, read_yaml
from sequifier_ray.config.preprocess import PreprocessConfig
from sequifier_ray.config.train import TrainConfig
from sequifier_ray.config.unsupported import (
    PREPROCESS_FIELDS,
    TRAIN_FIELDS,
    Refusals,
    refused_in_preprocess,
    refused_in_train,
    without_empty_refusals,
)
from sequifier_ray.errors import ConfigError

WRAPPERS: tuple[tuple[Path, Path], ...] = (
    (("dataset_training",), ("dataset",)),
    (("model", "interfaces"), ("model", "interface")),
)
Config = TypeVar("Config", bound=Project)


def load_preprocess(
    path: str, overrides: Mapping[str, Any] | None = None, folder: str | None = None
) -> PreprocessConfig:
    """The configuration of a preprocess run.

    ``overrides`` maps dotted names to values that replace those of the file, with the same checks. ``folder``
    holds the further files, in place of project_root.

    Raises:
        ConfigError: anything wrong with the file or the overrides, all problems in one text.
    """
    source, remaining = _read(path, overrides or {}, folder)
    source = with_overrides(source, remaining)
    return _validated(PreprocessConfig, source, refused_in_preprocess, PREPROCESS_FIELDS)


def make_preprocess(values: Mapping[str, Any], overrides: Mapping[str, Any]) -> PreprocessConfig:
    """The configuration that values from the command line alone make; see ``load_preprocess``.

    Raises:
        ConfigError: anything wrong with them, all problems in one text.
    """
    source = with_overrides(Source("command line", dict(values), {}, frozenset({()})), overrides)
    return _validated(PreprocessConfig, source, refused_in_preprocess, PREPROCESS_FIELDS)


def load_train(
    path: str, overrides: Mapping[str, Any] | None = None, folder: str | None = None
) -> TrainConfig:
    """The configuration of a training run; see ``load_preprocess``.

    Raises:
        ConfigError: anything wrong with the file or the overrides, all problems in one text.
    """
    source, remaining = _read(path, overrides or {}, folder)
    for wrapper, single in WRAPPERS:
        prefix = ".".join(wrapper)
        wrapped = {name for name in remaining if f"{name}.".startswith(f"{prefix}.")}
        source = with_overrides(source, {name: remaining[name] for name in remaining if name in wrapped})
        source = _unwrapped(source, wrapper, single)
        remaining = {name: value for name, value in remaining.items() if name not in wrapped}
    return _validated(TrainConfig, with_overrides(source, remaining), refused_in_train, TRAIN_FIELDS)


def _read(path: str, overrides: Mapping[str, Any], folder: str | None) -> tuple[Source, dict[str, Any]]:
    """The file with the further files it names, and the overrides still to apply."""
    source = merged(read_yaml(path), overrides, folder)
    return source, {name: value for name, value in overrides.items() if name != FIELD}


def _validated(
    kind: type[Config],
    source: Source,
    refused: Callable[[Mapping[str, Any]], Refusals],
    unsupported: tuple[str, ...],
) -> Config:
    refusals = [(path, text) for path, text in refused(source.values)]
    if refusals:
        raise ConfigError("\n".join(f"{source.place(path)}: {text}" for path, text in refusals))
    values = without_empty_refusals(source.values, unsupported)
    try:
        return kind.model_validate(values)
    except ValidationError as error:
        lines = [f"{source.place(path)}: {text}" for path, text in explain(kind, values, error)]
        raise ConfigError("\n".join(dict.fromkeys(lines))) from error


def _unwrapped(source: Source, wrapper: Path, single: Path) -> Source:
    """``interfaces: {main: {…}}`` as ``interface: {…}``, places included.

    Raises:
        ConfigError: several entries, none, or both forms at once.
    """
    parent: Any = source.values
    for key in wrapper[:-1]:
        parent = parent.get(key) if isinstance(parent, Mapping) else None
    if not isinstance(parent, Mapping) or parent.get(wrapper[-1]) is None:
        return source
    name, place, entries = ".".join(wrapper), source.place(wrapper), parent[wrapper[-1]]
    if parent.get(single[-1]) is not None:
        raise ConfigError(f'{place}: found both "{name}" and "{".".join(single)}"; keep one')
    if not isinstance(entries, Mapping) or not entries:
        raise ConfigError(f"{place}: {name}: found {entries!r}; allowed: one entry, `name: {{…}}`")
    if len(entries) > 1:
        found = ", ".join(map(str, entries))
        raise ConfigError(f'{place}: "{name}" with several entries ({found}) is not supported yet; keep one')
    (entry, content) = next(iter(entries.items()))
    values = replaced(_without(source.values, wrapper), single, content)
    old = (*wrapper, str(entry))

    def moved(path: Path) -> Path:
        return single + path[len(old) :] if path[: len(old)] == old else path

    return replace(
        source,
        values=values,
        places={moved(path): place for path, place in source.places.items()},
        overridden=frozenset(single if path == wrapper else moved(path) for path in source.overridden),
    )


def _without(tree: Mapping[str, Any], path: Path) -> dict[str, Any]:
    key, rest = path[0], path[1:]
    if not rest:
        return {k: v for k, v in tree.items() if k != key}
    return {**tree, key: _without(tree[key], rest)}
