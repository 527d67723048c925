"""What the tests of the manifests share: overlays, rendered once, and the schemas of operators."""

from __future__ import annotations

import copy
from collections.abc import Callable
from functools import cache

import pytest

from k8s.commands import OVERLAYS
from k8s.generate import ROOT
from k8s.render import Manifest, externals, render

__all__ = ["OVERLAYS", "Overlay"]


class Overlay:
    """A rendered overlay; copies, so that a test may spoil what it was given."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.folder = ROOT / "overlays" / name
        self._manifests = render(self.folder)
        self._external = externals(self.folder)

    @property
    def manifests(self) -> list[Manifest]:
        return copy.deepcopy(self._manifests)

    @property
    def external(self) -> list[Manifest]:
        return copy.deepcopy(self._external)

    def one(self, kind: str, name: str | None = None) -> Manifest:
        (found,) = (m for m in self.manifests if m["kind"] == kind and name in (None, m["metadata"]["name"]))
        return found


@cache
def _overlay(name: str) -> Overlay:
    return Overlay(name)


@pytest.fixture(scope="session")
def overlay() -> Callable[[str], Overlay]:
    """``overlay("dev")``."""
    return _overlay
