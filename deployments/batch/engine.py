"""The answerer of a worker: the engine, the store and the code that answers the endpoint's calls."""

from __future__ import annotations

import contextlib
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from deployments.batch.answers import Reply, Result, answer, whole
from deployments.batch.requests import Item
from deployments.calls import Call
from deployments.errors import DeploymentError

if TYPE_CHECKING:
    from deployments.answering import Record

_TURNS_AHEAD = 2


class EngineLostError(DeploymentError):
    """The engine has stopped: nothing more can be answered in this process."""


@dataclass(frozen=True)
class EngineSpec:
    """``app``: a configuration as plain values; ``model``: the name of the one to load."""

    app: dict[str, Any]
    model: str


class EngineAnswerer:
    """Answers with one engine. Twice as many requests as it decodes are under way, so that it never waits for one."""

    def __init__(self, spec: EngineSpec) -> None:
        from deployments.answering import Answerer
        from deployments.config import AppConfig
        from deployments.loading import load_engine
        from deployments.tenants import Tenants

        app = AppConfig.model_validate(spec.app)
        config = next(model for model in app.models if model.name == spec.model)
        self._model, self._stall_s = config.name, config.stall_s
        self._engine = load_engine(config)
        self._tenants = Tenants(app.store, self._engine.engine.tokenizer)
        self._answerer = Answerer(self._engine, app.limits.prompts, app.limits.choices)
        self.in_flight = in_flight(config.engine_config().max_running)

    def healthy(self) -> bool:
        """See :meth:`racer.async_engine.AsyncEngine.healthy`."""
        return self._engine.healthy(self._stall_s)

    async def answer(self, item: Item) -> Result:
        """See :func:`deployments.batch.answers.answer`. Raises EngineLostError."""
        result = await answer(item, (self._model,), self._respond)
        if not self._engine.healthy(math.inf):
            raise EngineLostError("the engine has stopped after an error")
        return result

    async def _respond(self, call: Call) -> Reply:
        records: list[Record] = []
        source = self._tenants.source(None, None)
        async with contextlib.aclosing(self._answerer.answer(call, source, records.append)) as pieces:
            body = await whole(pieces)
        return Reply(body, records[0].usage)


def in_flight(max_running: int) -> int:
    """Requests that a worker has under way."""
    return _TURNS_AHEAD * max_running
