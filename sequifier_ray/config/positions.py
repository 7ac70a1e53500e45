"""YAML files with the line of every field."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import yaml

from sequifier_ray import storage
from sequifier_ray.errors import ConfigError, DataError

Path = tuple[str, ...]

_FLOAT = re.compile(
    r"""^(?:[-+]?(?:[0-9][0-9_]*)\.[0-9_]*(?:[eE][-+]?[0-9]+)?
    |[-+]?[0-9][0-9_]*[eE][-+]?[0-9]+
    |[-+]?\.[0-9][0-9_]*(?:[eE][-+]?[0-9]+)?
    |[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN))$""",
    re.VERBOSE,
)


class _Loader(yaml.SafeLoader):
    """YAML 1.1 as usual, but ``1e-3`` is a number and not text."""


_Loader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in resolvers if tag != "tag:yaml.org,2002:float"]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
_Loader.add_implicit_resolver("tag:yaml.org,2002:float", _FLOAT, list("-+0123456789."))


@dataclass(frozen=True)
class Source:
    """One YAML file as plain data; ``lines`` maps a path of keys to its line, ``overridden`` paths came from
    the command line."""

    file: str
    values: dict[str, Any]
    lines: Mapping[Path, int]
    overridden: frozenset[Path] = field(default_factory=frozenset)

    def place(self, path: Path) -> str:
        """``file:line`` of a path, or of the nearest section around it, or the command line."""
        if any(path[: len(o)] == o for o in self.overridden):
            return "command line"
        for length in range(len(path), 0, -1):
            if path[:length] in self.lines:
                return f"{self.file}:{self.lines[path[:length]]}"
        return f"{self.file}:1"


def read_yaml(file: str) -> Source:
    """Read a file whose top is a mapping.

    Raises:
        ConfigError: the file is missing, not text, not YAML, empty, not a mapping, or names a field twice.
    """
    try:
        is_there = storage.exists(file)
        text = storage.read_text(file) if is_there else ""
    except DataError as error:
        raise ConfigError(str(error)) from error
    if not is_there:
        raise ConfigError(f"{file} does not exist; name the configuration with --config-path")
    try:
        loader = _Loader(text)
        try:
            node = loader.get_single_node()
            if node is None:
                raise ConfigError(f"{file}:1: the file is empty; `sequifier-ray make NAME` writes a template")
            if not isinstance(node, yaml.MappingNode):
                raise ConfigError(
                    f"{file}:{_line(node)}: the file is not a mapping; allowed: lines of `field: value`"
                )
            lines: dict[Path, int] = {}
            _collect_lines(file, node, (), lines, ())
            values = loader.construct_document(node)
        finally:
            loader.dispose()
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = mark.line + 1 if mark is not None else 1
        problem = getattr(error, "problem", None) or str(error).splitlines()[0]
        raise ConfigError(f"{file}:{line}: not valid YAML: {problem}") from error
    except ValueError as error:
        if isinstance(error, ConfigError):
            raise
        raise ConfigError(f"{file}: not valid YAML: {error}") from error
    return Source(file, values, lines)


def _collect_lines(
    file: str, node: yaml.Node, path: Path, lines: dict[Path, int], above: tuple[yaml.Node, ...]
) -> None:
    if any(node is other for other in above):
        raise ConfigError(f"{file}:{_line(node)}: this section holds itself (an alias with *); write it out")
    above = (*above, node)
    if isinstance(node, yaml.MappingNode):
        seen: dict[str, int] = {}
        for key, value in node.value:
            name = _key(file, key, path)
            if name in seen:
                field = ".".join((*path, name))
                raise ConfigError(
                    f'{file}:{_line(key)}: "{field}" is set twice, first on line {seen[name]}; keep one'
                )
            seen[name] = lines[(*path, name)] = _line(key)
            _collect_lines(file, value, (*path, name), lines, above)
    elif isinstance(node, yaml.SequenceNode):
        for i, item in enumerate(node.value):
            lines[(*path, str(i))] = _line(item)
            _collect_lines(file, item, (*path, str(i)), lines, above)


def _key(file: str, key: yaml.Node, path: Path) -> str:
    """A key as text: ``1:`` and ``yes:`` are no text in YAML and would not equal the name of any column."""
    if isinstance(key, yaml.ScalarNode) and key.tag in ("tag:yaml.org,2002:str", "tag:yaml.org,2002:merge"):
        return str(key.value)
    found = key.value if isinstance(key, yaml.ScalarNode) else "a list or mapping"
    section = f' in "{".".join(path)}"' if path else ""
    raise ConfigError(
        f'{file}:{_line(key)}: found {found} as a field name{section}; names are text, write "{found}"'
    )


def _line(node: yaml.Node) -> int:
    return int(node.start_mark.line) + 1
