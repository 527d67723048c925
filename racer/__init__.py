"""Decoding engine: RACER drafts, one batched verification a step, the same tokens as plain decoding."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from racer.async_engine import AsyncEngine
    from racer.config import Drafts, EngineConfig, TreeShape
    from racer.engine import Engine
    from racer.types import Request, RequestStats, SamplingParams, Source, StepOutput, TokenLogprob

# Loaded on first use: torch takes seconds to import, and a mistyped command line should not wait for it.
_HOMES = {
    "AsyncEngine": "racer.async_engine",
    "Drafts": "racer.config",
    "Engine": "racer.engine",
    "EngineConfig": "racer.config",
    "Request": "racer.types",
    "RequestStats": "racer.types",
    "SamplingParams": "racer.types",
    "Source": "racer.types",
    "StepOutput": "racer.types",
    "TokenLogprob": "racer.types",
    "TreeShape": "racer.config",
}

__all__ = [
    "AsyncEngine",
    "Drafts",
    "Engine",
    "EngineConfig",
    "Request",
    "RequestStats",
    "SamplingParams",
    "Source",
    "StepOutput",
    "TokenLogprob",
    "TreeShape",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)
