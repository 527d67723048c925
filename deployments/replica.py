"""A replica: one engine, answering calls. Ray Serve starts, watches, scales and stops it."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import threading
import time
from collections.abc import AsyncGenerator
from typing import Any

from deployments.answering import Answerer, Record
from deployments.calls import Call, Piece
from deployments.config import AppConfig, ModelConfig
from deployments.errors import ApiError, ConfigError
from deployments.loading import load_engine
from deployments.logs import LOGGER, log_request
from deployments.metrics import ReplicaMetrics
from deployments.reports import reporting
from deployments.signals import Signals, signals_of
from deployments.tenants import Tenants

_log = logging.getLogger(LOGGER)

_PROBE_S = 30.0
_METRICS_S = 1.0


class EngineReplica:
    """Decodes with one model. Made by Ray Serve from the class that :func:`deployments.app.build_app` binds.

    The constructor loads the model and decodes one token: a replica that takes calls can answer them.
    """

    def __init__(self, app: dict[str, Any], name: str) -> None:
        self._app = AppConfig.model_validate(app)
        self._config = next(model for model in self._app.models if model.name == name)
        started = time.monotonic()
        with reporting(name):
            self.engine = load_engine(self._config)
        engine = self.engine.engine
        self._tenants = Tenants(self._app.store, engine.tokenizer)
        self._answerer = Answerer(self.engine, self._app.limits.prompts, self._app.limits.choices)
        self._answerer.interval_s = self._app.stream_interval_ms / 1000
        self._metrics = ReplicaMetrics(name, by_namespace=self._app.metrics_by_namespace)
        self._open = 0
        self._known: tuple[int, ...] = tuple(engine.tokenizer("ready").input_ids)
        self._warmed = False
        self._stopped = threading.Event()
        threading.Thread(target=self._watch, name="replica-metrics", daemon=True).start()
        _log.info("replica loaded", extra={"model": name, "seconds": round(time.monotonic() - started, 2)})

    # --- calls

    async def answer(self, call: Call) -> AsyncGenerator[Piece]:
        """See :meth:`deployments.answering.Answerer.answer`."""
        self._open += 1
        try:
            source = self._tenants.source(call.namespace, call.learn)
            async with contextlib.aclosing(self._answerer.answer(call, source, self._done)) as pieces:
                async for piece in pieces:
                    yield piece
        except ConfigError as error:
            _log.warning("%s", error)
            yield Piece(error=ApiError(500, "the store's namespace cannot be used", code="store").to_wire())
        finally:
            self._open -= 1

    def _done(self, record: Record) -> None:
        self._metrics.observe(record)
        log_request(record, self._config.name)

    async def probe(self) -> float:
        """Decode one token; returns the seconds that took. Raises what stands in the way."""
        from racer.types import Request, SamplingParams

        started = time.monotonic()
        request = Request(self._known, SamplingParams(max_tokens=1, drafts="off"))
        async with asyncio.timeout(_PROBE_S), contextlib.aclosing(self.engine.batches(request)) as batches:
            async for _ in batches:
                pass
        return time.monotonic() - started

    def describe(self) -> dict[str, Any]:
        """What the settings came to on this machine, and which process it is."""
        engine = self.engine.engine
        return {
            "model": self._config.name,
            "loaded": engine.loaded.name,
            "dtype": str(engine.loaded.dtype).removeprefix("torch."),
            "device": str(engine.loaded.device),
            "context": engine.context_length,
            "budget": engine.budget,
            "open": self._open,
            "pid": os.getpid(),
        }

    # --- what Ray Serve asks

    async def check_health(self) -> None:
        """Raise if the engine's thread has died or hangs; Serve then replaces the replica."""
        if not self._warmed:
            await self.probe()
            self._warmed = True
        if not self.engine.healthy(self._config.stall_s):
            raise RuntimeError(f"the engine of {self._config.name} has made no step for {self._config.stall_s:g} s")

    def reconfigure(self, settings: dict[str, Any]) -> None:
        """Settings that change without a restart: ``budget`` and ``stream_interval_ms``."""
        engine = self.engine.engine
        budget = settings.get("budget", engine.config.budget)
        if budget == "auto" and engine.config.budget != "auto":
            raise ValueError("budget: auto needs a replica that was started with it; change models.engine.budget")
        engine.budget = budget
        self._answerer.interval_s = settings.get("stream_interval_ms", self._app.stream_interval_ms) / 1000

    def record_autoscaling_stats(self) -> Signals:
        """The engine's signals for :class:`deployments.autoscaling.EnginePolicy`."""
        return signals_of(self.engine.engine, self._open)

    async def __del__(self) -> None:
        """Serve waits for open answers before; then the store's writes and the engine end."""
        if not hasattr(self, "_stopped"):
            return
        self._stopped.set()
        await asyncio.to_thread(self.engine.close)
        await asyncio.to_thread(self._tenants.close)

    def _watch(self) -> None:
        while not self._stopped.wait(_METRICS_S):
            try:
                self._metrics.collect(self.engine.engine, self._tenants.stats(), self._open)
            except Exception:
                _log.exception("metrics could not be collected")


def replica_settings(model: ModelConfig, app: AppConfig) -> dict[str, Any]:
    """The ``user_config`` of a model's deployment: what :meth:`EngineReplica.reconfigure` takes."""
    return {"budget": model.engine_config().budget, "stream_interval_ms": app.stream_interval_ms}
