"""The way from the HTTP side to the replicas."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncGenerator, Mapping
from typing import TYPE_CHECKING, Any

from ray.exceptions import RayError
from ray.serve.exceptions import BackPressureError, DeploymentUnavailableError, RayServeException

from deployments.calls import Call, Piece
from deployments.config import ModelConfig
from deployments.errors import ApiError
from deployments.exporters import scrape_cluster
from deployments.logs import LOGGER

if TYPE_CHECKING:
    from ray.serve.handle import DeploymentHandle

_log = logging.getLogger(LOGGER)

_ATTEMPTS = 3
_PAUSE_S = 0.2
_PROBE_S = 30.0


class Backend:
    """Calls replicas by model name, and turns what goes wrong on the way into errors for the client."""

    def __init__(self, handles: Mapping[str, DeploymentHandle[Any]], models: list[ModelConfig]) -> None:
        # plain values need no cloudpickle, which takes several times as long
        fast = {"request_serialization": "pickle", "response_serialization": "pickle"}
        self._handles = {name: handle.options(stream=True, **fast) for name, handle in handles.items()}
        self._probes = dict(handles)
        self.models = {model.name: model for model in models}

    async def answer(self, model: str, call: Call) -> AsyncGenerator[Piece]:
        """The pieces of the answer. A replica that is lost before its first piece is replaced by another one."""
        for attempt in range(_ATTEMPTS):
            begun = False
            pieces = self._handles[model].answer.remote(call)
            try:
                async for piece in pieces:
                    begun = True
                    yield piece
                return
            except BackPressureError:
                message = f"too many requests are waiting for model {model!r}; try again"
                yield Piece(error=ApiError(503, message, code="overloaded", retry_after_s=1).to_wire())
                return
            except (RayError, RayServeException, DeploymentUnavailableError) as error:
                _log.warning("replica lost", extra={"request": call.request_id, "error": type(error).__name__})
                if begun or attempt + 1 == _ATTEMPTS:
                    message = "the replica that was answering was lost; send the request again"
                    lost = ApiError(502 if begun else 503, message, code="replica_lost", retry_after_s=1)
                    yield Piece(error=lost.to_wire())
                    return
                await asyncio.sleep(_PAUSE_S * (attempt + 1))
            finally:
                with contextlib.suppress(Exception):
                    pieces.cancel()  # does nothing to an answer that has ended

    async def ready(self) -> dict[str, str]:
        """What each model says: "ready" (a token was decoded), "asleep" (it may have no replica), or what is wrong."""

        async def probe(name: str) -> str:
            if self.models[name].autoscaling.min_replicas == 0:
                return "asleep"
            try:
                async with asyncio.timeout(_PROBE_S):
                    await self._probes[name].probe.remote()
            except TimeoutError:
                return f"no token within {_PROBE_S:g} s"
            except Exception as error:
                return f"not ready ({type(error).__name__})"
            return "ready"

        names = list(self.models)
        return dict(zip(names, await asyncio.gather(*map(probe, names)), strict=True))

    async def metrics(self) -> str:
        """What the nodes of the cluster export, in Prometheus' text format."""
        return await scrape_cluster()
