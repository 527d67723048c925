"""What the HTTP side and batches need of whatever answers: Serve's replicas, or a test's."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import Protocol

from deployments.calls import Call, Piece
from deployments.config import ModelConfig


class Answerer(Protocol):
    """Answers calls of its models."""

    models: dict[str, ModelConfig]

    def answer(self, model: str, call: Call) -> AsyncGenerator[Piece]:
        """The pieces of an answer, an error as the last of them."""
        ...

    async def ready(self) -> dict[str, str]:
        """The state of each model; "ready" or "asleep" are good."""
        ...

    async def metrics(self) -> str:
        """Metrics in Prometheus' text format."""
        ...
