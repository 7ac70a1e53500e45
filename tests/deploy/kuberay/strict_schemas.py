"""Schemas as strict as the API server: unknown fields and duplicate keys are refused.

The operator's own definitions are 1.4 MB each. ``schemas.json`` is what is left of them below the fields
that our manifests use; a field that they begin to use needs it written anew:

    python tests/deploy/kuberay/strict_schemas.py FOLDER-WITH-KUBERAY-CRDS
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml
from jsonschema import Draft202012Validator

from sequifier_ray.deploy.kuberay.manifests import Deployment, manifests

HERE = Path(__file__).parent
ROOT = HERE.parents[2]
COMPACT = HERE / "schemas.json"
KINDS = {"RayJob": "ray.io_rayjobs.yaml", "RayCluster": "ray.io_rayclusters.yaml"}
# All that a deployment can hold.
FULL = Deployment(
    *("full", "registry/image:1", "2.60.0", "configs/train.yaml", 2, 4, "8Gi", 1, "1Gi", "fast"),
    env_from=("store",),
    service_account="trainer",
)
Schema = dict[str, Any]
_TEXTS = {"type": "object", "additionalProperties": {"type": "string"}}
_METADATA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "pattern": "^[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?$"},
        "labels": _TEXTS,
    },
    "required": ["name"],
    "additionalProperties": False,
}
_ACCESS = {"enum": ["ReadWriteOnce", "ReadOnlyMany", "ReadWriteMany", "ReadWriteOncePod"]}
# Part of Kubernetes itself, so there is no definition of it beside the operator's.
CLAIM = {
    "type": "object",
    "properties": {
        "apiVersion": {"const": "v1"},
        "kind": {"const": "PersistentVolumeClaim"},
        "metadata": _METADATA,
        "spec": {
            "type": "object",
            "properties": {
                "accessModes": {"type": "array", "items": _ACCESS, "minItems": 1},
                "storageClassName": {"type": "string"},
                "resources": {
                    "type": "object",
                    "properties": {"requests": {**_TEXTS, "required": ["storage"]}},
                    "required": ["requests"],
                    "additionalProperties": False,
                },
            },
            "required": ["accessModes", "resources"],
            "additionalProperties": False,
        },
    },
    "required": ["apiVersion", "kind", "metadata", "spec"],
    "additionalProperties": False,
}


class StrictLoader(yaml.SafeLoader):
    """Refuses a key that stands twice in one mapping."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        keys = [key.value for key, _ in node.value]
        twice = {key for key in keys if keys.count(key) > 1}
        if twice:
            raise yaml.constructor.ConstructorError(
                None, None, f"keys that stand twice: {sorted(twice)}", node.start_mark
            )
        return super().construct_mapping(node, deep)


class _FastLoader(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):  # type: ignore[misc]
    """For the large files, which are not ours to check."""


def read_documents(text: str) -> list[Schema]:
    """All documents of a YAML text."""
    return [document for document in yaml.load_all(text, StrictLoader) if document is not None]


def crd_folder() -> Path | None:
    """Where the operator's definitions lie on this machine, if they do."""
    named = os.environ.get("SEQUIFIER_RAY_CRDS")
    folder = Path(named) if named else ROOT.parent / "shared" / "kuberay" / "crds"
    return folder if folder.is_dir() else None


def full_schemas(folder: Path) -> dict[str, Schema]:
    """The operator's schema of every kind, made strict."""
    schemas = {}
    for kind, name in KINDS.items():
        definition = yaml.load((folder / name).read_text(), _FastLoader)  # noqa: S506
        [version] = [v for v in definition["spec"]["versions"] if v["name"] == "v1"]
        schema = _strict(version["schema"]["openAPIV3Schema"])
        schema["properties"] |= {
            "apiVersion": {"const": "ray.io/v1"},
            "kind": {"const": kind},
            "metadata": _METADATA,
        }
        schema["required"] = ["apiVersion", "kind", "metadata", "spec"]
        schemas[kind] = schema
    return schemas


def compact_schemas(full: dict[str, Schema]) -> dict[str, Schema]:
    """What is left below the fields that our manifests use."""
    documents = [yaml.safe_load(text) for text in manifests(FULL).values()]
    return {kind: _pruned(full[kind], [d for d in documents if d["kind"] == kind]) for kind in KINDS}


def problems(schema: Schema, document: Schema) -> list[str]:
    """What a schema has against a document, each with its place."""
    errors = Draft202012Validator(schema).iter_errors(document)
    return [f"{'.'.join(map(str, error.absolute_path))}: {error.message}" for error in errors]


def _strict(schema: Schema) -> Schema:
    kept = ("type", "enum", "pattern", "minimum", "maximum", "minItems", "maxItems", "minLength", "maxLength")
    strict: Schema = {key: schema[key] for key in kept if key in schema}
    if schema.get("x-kubernetes-int-or-string"):
        return {**strict, "type": ["integer", "string"]}
    for key in ("items", "additionalProperties"):
        if isinstance(schema.get(key), dict):
            strict[key] = _strict(schema[key])
    properties = schema.get("properties", {})
    if properties:
        strict["properties"] = {name: _strict(value) for name, value in properties.items()}
        # Defaults are filled in before the server looks for what is required.
        strict["required"] = [
            name for name in schema.get("required", []) if "default" not in properties.get(name, {})
        ]
    if strict.get("type") == "object" and not schema.get("x-kubernetes-preserve-unknown-fields"):
        strict.setdefault("additionalProperties", False)
    return strict


def _pruned(schema: Schema, used: list[Any]) -> Schema:
    pruned = dict(schema)
    if "items" in schema:
        pruned["items"] = _pruned(schema["items"], [item for value in used for item in value])
    if "properties" in schema:
        names = list(dict.fromkeys(_keys(used)))
        pruned["properties"] = {
            name: _pruned(schema["properties"][name], [value[name] for value in used if name in value])
            for name in names
        }
    return pruned


def _keys(values: list[Any]) -> Iterator[str]:
    for value in values:
        yield from value


if __name__ == "__main__":
    compact = compact_schemas(full_schemas(Path(sys.argv[1])))
    COMPACT.write_text(json.dumps(compact, indent=1) + "\n")
