"""Values of the command line in place of those of the files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from sequifier_ray.config.positions import Path, Source, parse
from sequifier_ray.errors import ConfigError


def parse_settings(settings: Sequence[str], options: Mapping[str, str]) -> dict[str, Any]:
    """``NAME=VALUE`` words as a mapping of dotted names to values, the last of a name winning.

    ``options`` maps other options that were given to the fields they set.

    Raises:
        ConfigError: a word without ``=``, name or value, a value that is no YAML, or a field that an option
            sets as well.
    """
    values: dict[str, Any] = {}
    for setting in settings:
        name, separator, text = setting.partition("=")
        name = name.strip()
        if not separator or not all(name.split(".")):
            raise ConfigError(f'--set: found "{setting}"; allowed: NAME=VALUE, such as seed=7')
        value = _value(name, text)
        for option, field in options.items():
            if _is_within(name, field) or _is_within(field, name):
                raise ConfigError(f"{option} and --set {name} set the same field; keep one")
        values.pop(name, None)  # the later one also comes after all that stands between
        values[name] = value
    return values


def with_overrides(source: Source, overrides: Mapping[str, Any]) -> Source:
    """The source with the values of dotted names replaced, in their order."""
    values, paths = source.values, set(source.overridden)
    for name, value in overrides.items():
        path = tuple(name.split("."))
        paths.add(_new_part(values, path))
        values = replaced(values, path, value)
    return replace(source, values=values, overridden=frozenset(paths))


def replaced(tree: Mapping[str, Any], path: Path, value: Any) -> dict[str, Any]:
    """A copy of the tree with one value set; sections on the way are made where they lack."""
    key, rest = path[0], path[1:]
    if not rest:
        return {**tree, key: value}
    below = tree.get(key)
    return {**tree, key: replaced(below if isinstance(below, Mapping) else {}, rest, value)}


def _new_part(tree: Mapping[str, Any], path: Path) -> Path:
    """The topmost section on a path that setting it makes anew; else the path itself."""
    below: Any = tree
    for length, key in enumerate(path[:-1], start=1):
        below = below.get(key)
        if not isinstance(below, Mapping):
            return path[:length]
    return path


def _value(name: str, text: str) -> Any:
    value, places = parse(text, lambda line: f"--set {name}")
    if not places:
        raise ConfigError(f"--set {name}: found no value; write {name}=null, or {name}='\"\"' for empty text")
    return value


def _is_within(name: str, section: str) -> bool:
    return name == section or name.startswith(f"{section}.")
