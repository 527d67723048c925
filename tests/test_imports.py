"""The layers stay layers: what each package may not import."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
SHARED = "racer.commandline"
"""What every package's commands share: the standard library only, and ``racer`` itself loads nothing."""
FORBIDDEN = {
    "racer": {"ray", "redis", "datastore", "deployments", "loadtest", "k8s"},
    "datastore": {"torch", "ray", "racer", "deployments", "loadtest", "k8s"},
    "deployments": {"loadtest", "k8s"},
    "k8s": {"torch", "ray", "redis", "loadtest"},
    "loadtest": {"torch", "ray", "redis", "racer", "datastore", "deployments", "k8s"},
}


def imported(source: str) -> set[str]:
    """Top-level packages that ``source`` imports anywhere in it, in functions too; without what all may share."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            found.update(alias.name.split(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level and node.module != SHARED:
            found.add(node.module.split(".")[0])
        elif (
            isinstance(node, ast.Call)
            and ast.unparse(node.func) in ("__import__", "importlib.import_module", "import_module")
            and node.args
            and isinstance(node.args[0], ast.Constant)
        ):
            found.add(str(node.args[0].value).split(".")[0])
    return found


def test_every_kind_of_import_is_seen() -> None:
    source = """
import redis.asyncio as r
from . import sibling
from .near import thing
def late():
    from ray.serve import deployment
    import importlib; importlib.import_module("datastore.client"); __import__("torch")
"""
    assert imported(source) == {"redis", "ray", "importlib", "datastore", "torch"}


@pytest.mark.parametrize("package", FORBIDDEN)
def test_package_keeps_to_its_layer(package: str) -> None:
    broken = {
        str(path.relative_to(ROOT)): sorted(reached)
        for path in sorted((ROOT / package).rglob("*.py"))
        if (reached := imported(path.read_text(encoding="utf-8")) & FORBIDDEN[package])
    }
    assert broken == {}


def test_building_the_application_loads_no_model_library() -> None:
    """It is built in a process of its own, on Ray's head too: seconds and hundreds of megabytes."""
    code = "import sys, deployments.app; print(sorted({'torch', 'transformers'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    assert done.stdout.strip() == "[]"
