"""The engine's own signals for scaling, as numbers that cross processes."""

from __future__ import annotations

from statistics import fmean
from typing import TYPE_CHECKING, TypedDict

if TYPE_CHECKING:
    from racer.engine import Engine

_LATEST_STEPS = 32


class Signals(TypedDict):
    """What a replica reports.

    open, running, waiting   requests open in the replica; sequences decoded, and waiting for a place
    waiting_tokens           prompt tokens of the waiting ones, and the answers they ask for at most
    cache_use                part of the key-value cache's places that is taken
    step_ms                  mean of the latest decoding steps; 0 while idle
    """

    open: float
    running: float
    waiting: float
    waiting_tokens: float
    cache_use: float
    step_ms: float


def signals_of(engine: Engine, open_requests: int) -> Signals:
    """Read from another thread than the engine's: each value is of its moment."""
    scheduler = engine.scheduler
    waiting = list(scheduler.waiting)
    recent = list(engine.metrics.recent)[-_LATEST_STEPS:] if engine.has_work else []
    return Signals(
        open=float(open_requests),
        running=float(len(scheduler.running)),
        waiting=float(len(waiting)),
        waiting_tokens=float(sum(sequence.pending + sequence.remaining for sequence in waiting)),
        cache_use=cache_use(engine),
        step_ms=fmean(step.step_ms for step in recent) if recent else 0.0,
    )


def cache_use(engine: Engine) -> float:
    """Part of the cache's places that running sequences hold."""
    places = engine.runner.pool.places
    return sum(sequence.cached for sequence in list(engine.scheduler.running)) / places if places else 0.0
