"""Decoding engine: RACER drafts, one batched verification a step, the same tokens as plain decoding."""

from racer.async_engine import AsyncEngine
from racer.config import Drafts, EngineConfig, TreeShape
from racer.engine import Engine
from racer.types import Request, RequestStats, SamplingParams, Source, StepOutput, TokenLogprob

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
