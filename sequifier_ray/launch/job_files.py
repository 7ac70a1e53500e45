"""What goes along with a job: its one configuration, whole, as the cluster lacks the other files."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sequifier_ray import storage
from sequifier_ray.config.fragments import FIELD, merged
from sequifier_ray.config.load import load_preprocess, load_train
from sequifier_ray.config.positions import read_yaml, yaml_text
from sequifier_ray.errors import ConfigError

_CONFIG = "--config-path"
_HERE = "start in the project's folder"


@dataclass(frozen=True)
class Command:
    """A command for a cluster: its words as typed, and what of them says which configuration it reads.

    ``overrides`` are the fields that the words set; ``data`` is the table that `inspect` looks at.
    """

    words: tuple[str, ...]
    config_path: str | None
    overrides: Mapping[str, Any]
    data: str | None = None


def write_files(command: Command, folder: Path) -> list[str]:
    """Write the configuration that a command reads into the job's folder, further files merged into it.

    Those are looked for in the folder we stand in: project_root is a place of the cluster.

    Returns:
        The words that the job runs, which read that file.

    Raises:
        ConfigError: the configuration is not here, or is wrong, or cannot work on a cluster.
    """
    path = _path_here(command.config_path)
    if path is None:
        return list(command.words)
    values = merged(read_yaml(path), command.overrides, os.curdir).values
    _check_root(path, str(command.overrides.get("project_root", values.get("project_root", "."))))
    if command.words[0] == "train":
        load_train(path, command.overrides, os.curdir)
    else:
        table = {} if command.data is None else {"preprocessing_data_path": command.data}
        load_preprocess(path, {**command.overrides, **table}, os.curdir)
    target = folder / path
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(yaml_text(values), encoding="utf-8")
    verb, *options = command.words
    options = _without(options, _CONFIG, lambda value: True)
    options = _without(options, "--set", lambda value: value.partition("=")[0].strip() == FIELD)
    return [verb, f"{_CONFIG}={path}", *options]


def _path_here(given: str | None) -> str | None:
    """The path of a configuration below this folder; None for one of the cluster, and for none."""
    if given is None or os.path.isabs(given) or "://" in given:
        return None
    path = os.path.normpath(given)
    if os.pardir in Path(path).parts:
        raise ConfigError(f"submit: {given} lies outside of this folder; {_HERE}")
    if not Path(path).is_file():
        raise ConfigError(f"submit: there is no {given} in this folder; {_HERE}")
    return path


def _check_root(config: str, root: str) -> None:
    """A relative project_root would lie in the job's own folder, and go with it."""
    if storage.is_local(root) and not os.path.isabs(root.removeprefix("file://")):
        raise ConfigError(
            f'{config}: project_root: found "{root}", which on a cluster is no lasting place; give the '
            "path of the project on storage that all nodes share, or s3://…, in the file or by "
            "--set project_root=/shared/project"
        )


def _without(options: Sequence[str], name: str, drops: Callable[[str], bool]) -> list[str]:
    """The words without an option and its value, where that value is to go."""
    kept: list[str] = []
    rest = iter(options)
    for word in rest:
        if word == "--":
            return [*kept, word, *rest]
        option, separator, value = word.partition("=")
        if option != name:
            kept.append(word)
        elif separator:
            kept += [] if drops(value) else [word]
        else:
            value = next(rest, "")
            kept += [] if drops(value) else [word, value]
    return kept
