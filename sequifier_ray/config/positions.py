"""YAML files with the file and line of every field."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import yaml

from sequifier_ray import storage
from sequifier_ray.errors import ConfigError, DataError

Path = tuple[str, ...]
_MERGE = "tag:yaml.org,2002:merge"
MAX_LEVELS = 50
MAX_VALUES = 200_000

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


class _Dumper(yaml.SafeDumper):
    """Quotes the text that the loader would take for a number, and writes out what has several names."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


_Dumper.yaml_implicit_resolvers = _Loader.yaml_implicit_resolvers


@dataclass(frozen=True)
class Source:
    """YAML files as plain data: ``file`` is the main one, ``places`` maps paths of keys to ``file:line``, and
    ``overridden`` paths came from the command line."""

    file: str
    values: dict[str, Any]
    places: Mapping[Path, str]
    overridden: frozenset[Path] = field(default_factory=frozenset)

    def place(self, path: Path) -> str:
        """``file:line`` of a path, or of the nearest section around it, or the command line."""
        if any(path[: len(o)] == o for o in self.overridden):
            return "command line"
        for length in range(len(path), 0, -1):
            if path[:length] in self.places:
                return self.places[path[:length]]
        return f"{self.file}:1"


def read_yaml(file: str, named_at: str = "") -> Source:
    """Read a file whose top is a mapping; ``named_at`` is the place of the field that names a further file.

    Raises:
        ConfigError: the file is missing, not text, not YAML, empty, not a mapping, nested too deeply, or
            names a field twice.
    """
    remedy = "name the configuration with --config-path"
    content = "`sequifier-ray make NAME` writes a template"
    if named_at:
        remedy = "relative paths start at project_root"
        content = "write fields into it, or no longer name it"
    before = f"{named_at}: " if named_at else ""
    after = f" (named at {named_at})" if named_at else ""
    try:
        text = _text(file)
    except DataError as error:
        raise ConfigError(f"{before}{error}") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"{before}{file} is not UTF-8 text; write it again") from error
    if text is None:
        raise ConfigError(f"{before}{file} does not exist; {remedy}")
    values, places = parse(text, lambda line: f"{file}:{line}")
    if values is None:
        raise ConfigError(f"{file}:1: the file is empty; {content}{after}")
    if not isinstance(values, dict):
        place = places[()]
        raise ConfigError(f"{place}: the file is not a mapping; allowed: lines of `field: value`{after}")
    return Source(file, values, places)


def parse(text: str, where: Callable[[int], str]) -> tuple[Any, dict[Path, str]]:
    """YAML text as plain data, and the place of every path of keys; ``where`` says the place of a line.

    Raises:
        ConfigError: not YAML, nested too deeply, a key that is no text, or one that is set twice.
    """
    places: dict[Path, str] = {}
    try:
        loader = _Loader(text)
        try:
            node = loader.get_single_node()
            if node is None:
                return None, places
            places[()] = where(_line(node))
            _collect_places(where, node, (), places, ())
            return loader.construct_document(node), places
        except RecursionError:
            raise ConfigError(_too_deep(where(loader.line + 1))) from None
        finally:
            loader.dispose()
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = mark.line + 1 if mark is not None else 1
        problem = getattr(error, "problem", None) or str(error).splitlines()[0]
        raise ConfigError(f"{where(line)}: not valid YAML: {problem}") from error
    except ValueError as error:
        if isinstance(error, ConfigError):
            raise
        raise ConfigError(f"{where(1).removesuffix(':1')}: not valid YAML: {error}") from error


def yaml_text(values: Mapping[str, Any]) -> str:
    """Values as a file that ``read_yaml`` reads as the same values."""
    return str(yaml.dump(dict(values), Dumper=_Dumper, sort_keys=False, allow_unicode=True))


def _text(file: str) -> str | None:
    """Content of a file; None where there is none. A pipe that nobody writes to is empty, not waited for."""
    path = file.removeprefix("file://")
    try:
        mode = os.stat(path).st_mode if storage.is_local(file) else 0
    except (OSError, ValueError):
        mode = 0
    if stat.S_ISFIFO(mode):
        pipe = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
        os.set_blocking(pipe, True)
        with open(pipe, encoding="utf-8") as content:
            return content.read()
    if stat.S_ISCHR(mode) and not os.path.samefile(path, os.devnull):
        raise ConfigError(f"{file} is a device; name a file with lines of `field: value`")
    return storage.read_text(file) if storage.exists(file) else None


def _collect_places(
    where: Callable[[int], str],
    node: yaml.Node,
    path: Path,
    places: dict[Path, str],
    above: tuple[yaml.Node, ...],
) -> None:
    place = where(_line(node))
    if any(node is other for other in above):
        raise ConfigError(f"{place}: this section holds itself (an alias with *); write it out")
    if len(path) > MAX_LEVELS:
        raise ConfigError(_too_deep(place))
    if len(places) > MAX_VALUES:
        raise ConfigError(
            f"{place}: more than {MAX_VALUES:,} values, each use of an alias (*) counted; write less"
        )
    above = (*above, node)
    if isinstance(node, yaml.MappingNode):
        seen: dict[str, int] = {}
        inherited: dict[Path, str] = {}
        for key, value in node.value:
            name = _key(where, key, path)
            if name in seen:
                field = ".".join((*path, name))
                raise ConfigError(
                    f'{where(_line(key))}: "{field}" is set twice, first on line {seen[name]}; keep one'
                )
            seen[name] = _line(key)
            places[(*path, name)] = where(_line(key))
            if key.tag != _MERGE:
                _collect_places(where, value, (*path, name), places, above)
                continue
            for merged in value.value if isinstance(value, yaml.SequenceNode) else [value]:
                _collect_places(where, merged, path, inherited, above)
        for below, place in inherited.items():
            places.setdefault(below, place)
    elif isinstance(node, yaml.SequenceNode):
        for i, item in enumerate(node.value):
            places[(*path, str(i))] = where(_line(item))
            _collect_places(where, item, (*path, str(i)), places, above)


def _key(where: Callable[[int], str], key: yaml.Node, path: Path) -> str:
    """A key as text: ``1:`` and ``yes:`` are no text in YAML and would not equal the name of any column."""
    if isinstance(key, yaml.ScalarNode) and key.tag in ("tag:yaml.org,2002:str", _MERGE):
        return str(key.value)
    section = f' in "{".".join(path)}"' if path else ""
    if not isinstance(key, yaml.ScalarNode):
        kind = "a mapping" if isinstance(key, yaml.MappingNode) else "a list"
        raise ConfigError(f"{where(_line(key))}: found {kind} as a field name{section}; names are text")
    found, remedy = f"found {key.value} as a field name{section}", f'names are text, write "{key.value}"'
    raise ConfigError(f"{where(_line(key))}: {found}; {remedy}")


def _too_deep(place: str) -> str:
    return f"{place}: nested too deeply; allowed: at most {MAX_LEVELS} levels"


def _line(node: yaml.Node) -> int:
    return int(node.start_mark.line) + 1
