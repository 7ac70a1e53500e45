"""docs/configuration.md from the fields themselves: ``python -m sequifier_ray.config.document``."""

from __future__ import annotations

import json
import sys
import types
import typing
from collections.abc import Iterator
from typing import Annotated, Any, Literal

from pydantic import BaseModel
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from sequifier_ray.config import unsupported
from sequifier_ray.config.base import INTEGER_BOUND, NamedArguments
from sequifier_ray.config.explain import entry_section_of, section_of
from sequifier_ray.config.preprocess import PreprocessConfig
from sequifier_ray.config.train import TrainConfig

HEAD = """# Configuration

Two YAML files: `preprocess.yaml` turns tables into shards, `train.yaml` trains a model on them. Fields have
the names and meanings of Sequifier 3. An unknown field is an error that names the nearest known one; a field
or value of Sequifier that is not supported yet is refused by name. Integers are below 2^63. On the command
line, `--set global_training.batch_size=16` replaces a field. This page is generated from the code by
`python -m sequifier_ray.config.document`.
"""
TRAIN_NOTE = """
`interfaces:` in place of `model.interface`, and `dataset_training:` in place of `dataset`, are taken with
exactly one entry.
"""


def document() -> str:
    """The whole page."""
    parts = [HEAD, "\n## preprocess.yaml\n", *_tables(PreprocessConfig, ())]
    parts += [_refused(unsupported.PREPROCESS_FIELDS)]
    parts += ["\n## train.yaml\n", *_tables(TrainConfig, ()), TRAIN_NOTE]
    values = [f"{name}: {value}" for name, known in unsupported.TRAIN_VALUES.items() for value in known]
    values += ["model.interface.ingestion.type: anything but embedding"]
    parts += [_refused((*unsupported.TRAIN_FIELDS, *values))]
    return "".join(parts)


def _tables(kind: type[BaseModel], path: tuple[str, ...]) -> Iterator[str]:
    """One table of the plain fields of a section, then those of the sections in it."""
    rows, below = [], []
    for name, info in kind.model_fields.items():
        section = section_of(info.annotation)
        entry = entry_section_of(info.annotation)
        if entry is not None:
            below.append((entry, (*path, name, "NAME")))
        if section is None:
            meaning = (info.description or "").replace("|", "\\|")
            rows.append(f"| `{name}` | {allowed(info)} | {default(info)} | {meaning} |\n")
        else:
            below.append((section, (*path, name)))
    if rows:
        heading = f"\n### {'.'.join(path)}\n\n{kind.__doc__}\n" if path else f"\n{kind.__doc__}\n"
        yield (
            heading + "\n| field | allowed | default | meaning |\n| --- | --- | --- | --- |\n" + "".join(rows)
        )
    for section, where in below:
        yield from _tables(section, where)


def allowed(info: FieldInfo) -> str:
    """What a field takes, in words."""
    text = _words(info.annotation)
    limits = [limit for limit in map(_limit, info.metadata) if limit]
    return " ".join([text, *limits])


def _words(annotation: Any) -> str:
    origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is Annotated:
        limits = [limit for data in arguments[1:] for limit in map(_limit, _constraints(data)) if limit]
        return " ".join([_words(arguments[0]), *limits])
    if origin is Literal:
        return ", ".join(f"`{value}`" for value in arguments)
    if origin in (typing.Union, types.UnionType):
        kept = [_words(a) for a in arguments if a is not type(None)]
        return " or ".join(kept) + ", or null" * (type(None) in arguments)
    if origin is tuple:
        return f"list of {_words(arguments[0])}"
    if origin is dict and section_of(arguments[1]) is not None:
        return "name → section, see below"
    if origin is dict:
        return f"{_words(arguments[0])} → {_words(arguments[1])}"
    if annotation is NamedArguments:
        return "name and arguments"
    plain = {int: "integer", float: "number", bool: "true, false", str: "text"}
    return plain.get(annotation, getattr(annotation, "__name__", str(annotation)))


def _constraints(data: Any) -> list[Any]:
    return list(data.metadata) if isinstance(data, FieldInfo) else [data]


def _limit(constraint: Any) -> str:
    for name, sign in (("gt", ">"), ("ge", "≥"), ("lt", "<"), ("le", "≤")):
        limit = getattr(constraint, name, None)
        if limit is not None and abs(limit) < INTEGER_BOUND:
            return f"{sign} {limit:g}"
    return ""


def default(info: FieldInfo) -> str:
    """A field's default as it stands in YAML; `required` without one."""
    value = info.get_default(call_default_factory=True, validated_data={})
    if value is PydanticUndefined:
        return "required"
    if isinstance(value, NamedArguments):
        value = {"name": value.name, **value.arguments}
    if isinstance(value, dict) and value:
        return f"`{{{', '.join(f'{k}: {v}' for k, v in value.items())}}}`"
    return f"`{value}`" if isinstance(value, str) else f"`{json.dumps(value)}`"


def _refused(names: tuple[str, ...]) -> str:
    listed = ", ".join(f"`{name}`" for name in names)
    return f"\nNot supported yet, and refused by name: {listed}.\n"


if __name__ == "__main__":
    sys.stdout.write(document())
