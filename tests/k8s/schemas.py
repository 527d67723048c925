"""Custom resources against the operators' own schemas, as an API server would check them: unknown fields are refused,
defaults are filled in first."""

from __future__ import annotations

import json
import os
from functools import cache
from pathlib import Path
from typing import Any

import jsonschema
import pytest

_BESIDE = Path(__file__).parents[2].parent / "shared" / "k8s-schemas"
_METADATA = {
    "type": "object",
    "additionalProperties": False,
    "required": ["name"],
    "properties": {
        "name": {"type": "string", "pattern": "^[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?$"},
        "namespace": {"type": "string"},
        "labels": {"type": "object", "additionalProperties": {"type": "string", "maxLength": 63}},
        "annotations": {"type": "object", "additionalProperties": {"type": "string"}},
    },
}


def folder() -> Path:
    """Where the schemas lie: $RACER_K8S_SCHEMAS, else ``shared/k8s-schemas`` beside the repository."""
    found = Path(os.environ.get("RACER_K8S_SCHEMAS", _BESIDE))
    if not found.is_dir():
        pytest.skip(f"the operators' schemas are not at {found}; set RACER_K8S_SCHEMAS to their folder")
    return found


@cache
def schema(kind: str) -> dict[str, Any]:
    """The strict schema of a custom resource."""
    made: dict[str, Any] = _strict(json.loads((folder() / f"{kind.lower()}.json").read_text(encoding="utf-8")))
    made["properties"]["metadata"] = _METADATA
    made["required"] = ["apiVersion", "kind", "metadata", "spec"]
    return made


def _strict(node: Any) -> Any:
    if isinstance(node, list):
        return [_strict(inner) for inner in node]
    if not isinstance(node, dict):
        return node
    made = {key: _strict(value) for key, value in node.items()}
    if isinstance(node.get("properties"), dict) and "additionalProperties" not in node:
        made["additionalProperties"] = bool(node.get("x-kubernetes-preserve-unknown-fields", False))
    if node.get("x-kubernetes-int-or-string"):
        made["anyOf"] = [{"type": "integer"}, {"type": "string"}]
    return made


def problems(manifest: dict[str, Any]) -> list[str]:
    """What is wrong with a custom resource."""
    rules = schema(manifest["kind"])
    filled = _with_defaults(manifest, rules)
    found = jsonschema.Draft202012Validator(rules).iter_errors(filled)
    return [f"{'.'.join(map(str, error.path))}: {error.message}" for error in found] + list(_doubles(filled, rules, ""))


def _with_defaults(value: Any, rules: dict[str, Any]) -> Any:
    if isinstance(value, dict):
        given = dict(value)
        for name, inner in rules.get("properties", {}).items():
            if "default" in inner:
                given.setdefault(name, inner["default"])
            if name in given:
                given[name] = _with_defaults(given[name], inner)
        return given
    if isinstance(value, list) and "items" in rules:
        return [_with_defaults(item, rules["items"]) for item in value]
    return value


def _doubles(value: Any, rules: dict[str, Any], where: str) -> list[str]:
    """Items of a list that is a map (by x-kubernetes-list-map-keys) which share their key."""
    found: list[str] = []
    if isinstance(value, dict):
        for name, inner in rules.get("properties", {}).items():
            if name in value:
                found += _doubles(value[name], inner, f"{where}.{name}")
    elif isinstance(value, list):
        if keys := rules.get("x-kubernetes-list-map-keys"):
            seen = [tuple(item.get(key) for key in keys) for item in value]
            found += [f"{where}: {key} is there twice" for key in set(seen) if seen.count(key) > 1]
        for item in value:
            found += _doubles(item, rules.get("items", {}), where)
    return found
