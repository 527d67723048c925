"""What a replica's process imports: little, so that it starts in moments."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from typing import Any

from deployments.calls import Call, Piece
from deployments.signals import Signals
from tests.loadtest.scripted import DONE, ROLE, piece, usage

_TOKENS = 20
_ALONE_S = 0.01
_SHARED_S = 0.005


class ScriptedReplica:
    """In the place of an engine's replica: a token takes 10 ms, and 5 more for each request that is open."""

    def __init__(self, app: dict[str, Any], name: str) -> None:
        from ray.serve.metrics import Gauge

        self._gauge = Gauge("racer_open_requests", "Requests open in the replica.", ("model",))
        self._labels = {"model": name}
        self._open = 0
        self._count(0)

    async def answer(self, call: Call) -> AsyncGenerator[Piece]:
        self._count(1)
        try:
            yield Piece(ROLE)
            for number in range(_TOKENS):
                await asyncio.sleep(_ALONE_S + _SHARED_S * self._open)
                yield Piece(piece(f"w{number} "))
            yield Piece(piece("", "stop") + usage(10, _TOKENS, steps=_TOKENS, mat=1.0, drafted={}, accepted={}) + DONE)
        finally:
            self._count(-1)

    async def probe(self) -> float:
        return 0.0

    def reconfigure(self, settings: dict[str, Any]) -> None:
        pass

    def record_autoscaling_stats(self) -> Signals:
        return Signals(open=self._open, running=self._open, waiting=0.0, waiting_tokens=0.0, cache_use=0.0, step_ms=0.0)

    def _count(self, change: int) -> None:
        self._open += change
        self._gauge.set(self._open, self._labels)
