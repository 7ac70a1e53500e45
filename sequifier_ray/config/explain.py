"""What pydantic found wrong, in the words of this project: field, value found, what is allowed."""

from __future__ import annotations

import types
import typing
from collections.abc import Iterator, Mapping
from typing import Any

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from sequifier_ray.config.base import INTEGER_BOUND, NamedArguments, RuleError, Section
from sequifier_ray.errors import nearest

Path = tuple[str, ...]

ALLOWED = {
    "int_type": "an integer",
    "int_parsing": "an integer",
    "int_from_float": "an integer",
    "float_type": "a number",
    "float_parsing": "a number",
    "finite_number": "a finite number",
    "bool_type": "true or false",
    "string_type": "text",
    "tuple_type": "a list",
    "dict_type": "a mapping (`name: value` on each line)",
    "string_too_short": "text that is not empty",
    "too_short": "a list with at least one entry",
}
COMPARED = {
    "greater_than": ("gt", "above"),
    "greater_than_equal": ("ge", "at least"),
    "less_than": ("lt", "below"),
    "less_than_equal": ("le", "at most"),
}


def explain(
    kind: type[BaseModel], values: Mapping[str, Any], error: ValidationError
) -> Iterator[tuple[Path, str]]:
    """Path and text of every problem that validating ``values`` as ``kind`` met."""
    details = error.errors()
    unknown = [tuple(map(str, d["loc"])) for d in details if d["type"] == "extra_forbidden"]
    for detail in details:
        path = tuple(map(str, detail["loc"]))
        namesakes = [u[-1] for u in unknown if u[:-1] == path[:-1]]
        if detail["type"] == "missing" and any(nearest(name, path[-1:]) for name in namesakes):
            continue  # it is there, mistyped: one problem, not two
        if detail["type"] == "too_short" and detail["input"]:
            continue  # the entries that are there are wrong, and told one by one
        cause = detail.get("ctx", {}).get("error")
        if isinstance(cause, RuleError):
            for problem in cause.problems:
                where = (*path, *problem.field.split("."))
                yield where, f"{'.'.join(where)}: {problem.text}"
        else:
            yield _explain_one(kind, values, path, detail, cause)


def _explain_one(
    kind: type[BaseModel], values: Mapping[str, Any], path: Path, detail: ErrorDetails, cause: object
) -> tuple[Path, str]:
    shown = ".".join(path)
    if cause is not None:
        return path, f"{shown}: {cause}"
    if detail["type"] == "extra_forbidden":
        return path, f'unknown field "{shown}"{_suggestion(kind, path)}'
    section = section_at(kind, path[:-1])
    info = section.model_fields.get(path[-1]) if section is not None else None
    if detail["type"] == "missing":
        meaning = f" ({info.description})" if info is not None and info.description else ""
        return path, f'"{shown}" is missing{meaning}'
    if (
        info is not None
        and info.annotation is NamedArguments
        and detail["type"] in ("model_type", "model_attributes_type")
    ):
        return (
            path,
            f"{shown}: found {show(detail['input'])}; allowed: a name and its arguments, `{{name: NAME, …}}`",
        )
    found = show(detail["input"])
    text = f"{shown}: found {found}; allowed: {_allowed(detail)}"
    if info is not None and type(None) in typing.get_args(info.annotation):
        text += ", or null"
    return path, text


def _allowed(detail: ErrorDetails) -> str:
    kind, context = detail["type"], detail.get("ctx", {})
    if kind == "literal_error":
        return str(context["expected"]).replace("'", "")
    if kind in COMPARED:
        name, word = COMPARED[kind]
        limit = context[name]
        return f"{word} {limit:g}" if abs(limit) < INTEGER_BOUND else f"{word} {'-' * (limit < 0)}2^63"
    if kind in ("model_type", "model_attributes_type"):
        return "a section (`field: value` on each line)"
    return ALLOWED.get(kind, detail["msg"])


def show(value: object) -> str:
    """A value as it stands in YAML, cut where it is long."""
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    if isinstance(value, int) and value.bit_length() > 1024:
        return f"an integer of {value.bit_length():,} bits"  # Python refuses to write out the longest ones
    text = f'"{value}"' if isinstance(value, str) else repr(value)
    return text if len(text) <= 80 else f"{text[:77]}…"


def section_at(kind: type[BaseModel], path: Path) -> type[BaseModel] | None:
    """The section class that a path of fields leads to; None where it leads elsewhere."""
    names = iter(path)
    for name in names:
        info = kind.model_fields.get(name)
        below = section_of(info.annotation) if info is not None else None
        if info is not None and (entry := entry_section_of(info.annotation)) is not None:
            next(names, None)  # the entry's own name
            below = entry
        if below is None:
            return None
        kind = below
    return kind


def entry_section_of(annotation: Any) -> type[Section] | None:
    """The section class of the entries of a mapping from names to sections; None for another annotation."""
    if typing.get_origin(annotation) is not dict:
        return None
    return section_of(typing.get_args(annotation)[1])


def section_of(annotation: Any) -> type[Section] | None:
    """The section class of a field's annotation, also where null is allowed besides; else None."""
    if typing.get_origin(annotation) in (typing.Union, types.UnionType):
        return next((s for s in map(section_of, typing.get_args(annotation)) if s is not None), None)
    is_section = isinstance(annotation, type) and issubclass(annotation, Section)
    return annotation if is_section and annotation is not NamedArguments else None


def _suggestion(kind: type[BaseModel], path: Path) -> str:
    """The nearest field of the same section; else the places where a field of this very name belongs."""
    section = section_at(kind, path[:-1])
    close = nearest(path[-1], section.model_fields) if section is not None else ""
    if close:
        return close
    places = [".".join(p) for p in field_paths(kind) if p[-1] == path[-1]]
    if places:
        return f" here; it belongs in {' or '.join(places)}"
    return f"; known here are {', '.join(section.model_fields)}" if section is not None else ""


def field_paths(kind: type[BaseModel], prefix: Path = ()) -> Iterator[Path]:
    """Paths of all fields, sections before what is in them."""
    for name, info in kind.model_fields.items():
        yield (*prefix, name)
        below = section_of(info.annotation)
        if below is not None:
            yield from field_paths(below, (*prefix, name))
