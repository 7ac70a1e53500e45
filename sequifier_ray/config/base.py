"""What all configuration sections share: frozen, strict about types, errors that know their field."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, field_validator

from sequifier_ray import storage

INTEGER_BOUND = 2**63
Integer = Annotated[int, Field(strict=True, ge=-INTEGER_BOUND, lt=INTEGER_BOUND)]
Count = Annotated[int, Field(strict=True, ge=1, lt=INTEGER_BOUND)]
NaturalNumber = Annotated[int, Field(strict=True, ge=0, lt=INTEGER_BOUND)]
Number = Annotated[float, Field(strict=True)]
Positive = Annotated[float, Field(strict=True, gt=0)]
NonNegative = Annotated[float, Field(strict=True, ge=0)]
Flag = Annotated[bool, Field(strict=True)]
Text = Annotated[str, Field(strict=True, min_length=1)]
Names = Annotated[tuple[Text, ...], Field(min_length=1)]


@dataclass(frozen=True)
class Problem:
    """One broken rule: the dotted field it is seen at, relative to the section, and the text after it."""

    field: str
    text: str


class RuleError(ValueError):
    """Rules between fields that a section breaks; pydantic hands it on, ``load`` gives it file and line."""

    def __init__(self, problems: list[Problem]) -> None:
        self.problems = problems
        super().__init__("; ".join(f"{p.field}: {p.text}" for p in problems))


def require(problems: list[Problem]) -> None:
    """Raise RuleError when there is a problem."""
    if problems:
        raise RuleError(problems)


class Section(BaseModel):
    """A frozen mapping of known fields."""

    model_config = ConfigDict(
        hide_input_in_errors=True, frozen=True, extra="forbid", allow_inf_nan=False, protected_namespaces=()
    )


class Project(Section):
    """A whole file: paths in it are relative to ``project_root``."""

    project_root: Text = Field(
        description="Folder that all paths are relative to; itself relative to where you stand."
    )

    additional_config_paths: tuple[Text, ...] | None = Field(
        default=None,
        description="Further YAML files (one path, or a list) with fields of this file, merged into it "
        "section by section; a field set twice is an error. They name no further files.",
    )

    @field_validator("additional_config_paths", mode="before")
    @classmethod
    def _one_or_several(cls, value: Any) -> Any:
        if value is None or isinstance(value, (list, tuple)):
            return value
        if isinstance(value, str):
            return (value,)
        raise ValueError(f"found {value!r}; allowed: a path, or a list of paths")

    @field_validator("project_root")
    @classmethod
    def _absolute(cls, value: str) -> str:
        scheme, mark, _ = value.partition("://")
        if mark and scheme not in storage.SCHEMES:
            allowed = ", ".join(f"{name}://" for name in storage.SCHEMES)
            raise ValueError(f"found {value}; allowed: a folder, or an address that begins with {allowed}")
        if problem := storage.address_problem(value):
            raise ValueError(f"found {storage.shown(value)}: {problem}")
        if not storage.is_local(value):
            return storage.join(value)
        return os.path.abspath(value.removeprefix("file://"))  # links stay as they are

    def resolve(self, relative: str) -> str:
        """A path of the configuration under ``project_root``; absolute paths and URIs stay as they are."""
        return storage.join(self.project_root, relative)


class NamedArguments(Section):
    """A class by its torch name, with its keyword arguments; flat in YAML: ``{name: SGD, momentum: 0.9}``."""

    name: Text
    arguments: dict[str, Any] = Field(default_factory=dict)

    @field_validator("arguments")
    @classmethod
    def _plain(cls, value: dict[str, Any]) -> dict[str, Any]:
        bad = [name for name, argument in value.items() if not _is_plain(argument)]
        require(
            [
                Problem(name, f"found {value[name]!r}; allowed: a number, text, true, false, null, or a list")
                for name in bad
            ]
        )
        return value


def _is_plain(value: Any) -> bool:
    if isinstance(value, list):
        return all(map(_is_plain, value))
    if isinstance(value, float):
        return value - value == 0  # neither infinite nor NaN: both would change on the way to a worker
    return value is None or isinstance(value, (bool, int, str))


def nest_arguments(value: Any) -> Any:
    """``{name, a, b}`` as ``{name, arguments: {a, b}}``; what has that form, or is no mapping, as it is."""
    if not isinstance(value, Mapping) or set(value) == {"name", "arguments"}:
        return value
    nested = {"arguments": {str(k): v for k, v in value.items() if k != "name"}}
    return nested | ({"name": value["name"]} if "name" in value else {})
