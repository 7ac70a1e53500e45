"""Further YAML files that `additional_config_paths` names, merged into the file that names them."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from pydantic import ValidationError

from sequifier_ray import storage
from sequifier_ray.config.base import Project
from sequifier_ray.config.explain import explain
from sequifier_ray.config.overrides import with_overrides
from sequifier_ray.config.positions import Path, Source, read_yaml
from sequifier_ray.errors import ConfigError

FIELD = "additional_config_paths"


def merged(main: Source, overrides: Mapping[str, Any], folder: str | None = None) -> Source:
    """The file together with the further files that it, or the command line, names; without that field.

    ``folder``: where relative paths of further files start, when project_root lies on another machine.

    Raises:
        ConfigError: a further file cannot be found or read, names files itself, or sets a field that another
            one sets.
    """
    locating = {name: overrides[name] for name in ("project_root", FIELD) if name in overrides}
    located = with_overrides(main, locating)
    whole = replace(main, values={k: v for k, v in main.values.items() if k != FIELD})
    problems: list[str] = []
    for file, place in _files(located, folder):
        fragment = read_yaml(file, place)
        if FIELD in fragment.values:
            here = fragment.place((FIELD,))
            text = f"{here}: {FIELD}: a further file names no files itself; name them all at {place}"
            raise ConfigError(text)
        values = _merged_values(whole, fragment, whole.values, fragment.values, (), problems)
        whole = replace(whole, values=values, places={**fragment.places, **whole.places})
    if problems:
        raise ConfigError("\n".join(problems))
    return whole


def _files(source: Source, folder: str | None) -> Iterator[tuple[str, str]]:
    """The further files, each with the place that names it."""
    given = {name: source.values[name] for name in ("project_root", FIELD) if name in source.values}
    if given.get(FIELD) is None:
        return
    try:
        paths = Project.model_validate({"project_root": ".", **given}).additional_config_paths or ()
    except ValidationError as error:
        lines = [f"{source.place(path)}: {text}" for path, text in explain(Project, given, error)]
        raise ConfigError("\n".join(lines)) from error
    known = {os.path.abspath(source.file)}
    for i, path in enumerate(paths):
        place = source.place((FIELD, str(i)))
        if "project_root" not in given and not _is_absolute(path):
            text = f'"{path}" is relative to project_root; set project_root in {source.file}, not elsewhere'
            raise ConfigError(f"{place}: {FIELD}: {text}")
        file = storage.join(folder or str(given.get("project_root", ".")), path)
        identity = os.path.abspath(file) if storage.is_local(file) else file
        if identity in known:
            raise ConfigError(f"{place}: {FIELD}: {file} is read already; name each file once")
        known.add(identity)
        if folder is not None and storage.is_local(file) and not storage.exists(file):
            text = f"there is no {file} on this machine; a job takes further files along from here, relative"
            raise ConfigError(f"{place}: {FIELD}: {text} paths from the folder you stand in")
        yield file, place


def _is_absolute(path: str) -> bool:
    return os.path.isabs(path) or "://" in path


def _merged_values(
    first: Source,
    second: Source,
    ours: Mapping[str, Any],
    theirs: Mapping[str, Any],
    path: Path,
    problems: list[str],
) -> dict[str, Any]:
    values = dict(ours)
    for key, value in theirs.items():
        where = (*path, key)
        if key not in values:
            values[key] = value
        elif isinstance(value, Mapping) and isinstance(values[key], Mapping):
            values[key] = _merged_values(first, second, values[key], value, where, problems)
        else:
            name, earlier = ".".join(where), first.place(where)
            problems.append(f'{second.place(where)}: "{name}" is set twice, first in {earlier}; keep one')
    return values
