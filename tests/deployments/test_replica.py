"""What Ray Serve asks of a replica, without Ray."""

from __future__ import annotations

import asyncio
import threading
from types import SimpleNamespace
from typing import Any

import pytest

from deployments.config import AppConfig, ModelConfig
from deployments.replica import EngineReplica, replica_settings
from deployments.signals import signals_of
from racer import Request, SamplingParams
from racer.async_engine import AsyncEngine
from racer.errors import EngineDeadError
from tests.deployments.local import LocalBackend, chat_engine, wait_until


class _Replica(EngineReplica):
    def __del__(self) -> None:  # type: ignore[override]
        """Nobody awaits it here, as Serve does."""


def replica(engine: AsyncEngine, **config: Any) -> Any:
    """A replica around an engine that is there already."""
    made = object.__new__(_Replica)
    made.__dict__.update(
        engine=engine,
        _config=ModelConfig(**config),
        _app=AppConfig(),
        _answerer=LocalBackend(engine).answerer,
        _known=(5, 6, 7),
        _warmed=False,
        _stopped=threading.Event(),
        _tenants=SimpleNamespace(close=lambda: None),
    )
    return made


def test_settings_change_while_it_runs() -> None:
    engine = AsyncEngine(lambda: chat_engine(budget=16))
    one = replica(engine)
    one.reconfigure(replica_settings(ModelConfig(engine={"budget": 4}), AppConfig(stream_interval_ms=250)))
    assert engine.engine.budget == 4 and one._answerer.interval_s == 0.25
    with pytest.raises(ValueError, match="auto needs a replica that was started with it"):
        one.reconfigure({"budget": "auto"})
    engine.close()


def test_frozen_step_fails_the_health_check(monkeypatch: pytest.MonkeyPatch) -> None:  # fault 31
    made = chat_engine()
    engine = AsyncEngine(made)
    one = replica(engine, stall_s=0.2)
    asyncio.run(one.check_health())
    assert one._warmed
    release, step = threading.Event(), made.step

    def frozen() -> Any:
        release.wait(20)
        return step()

    monkeypatch.setattr(made, "step", frozen)

    async def ask() -> None:
        async for _ in engine.batches(Request((5, 6), SamplingParams(max_tokens=2))):
            pass

    asker = threading.Thread(target=lambda: asyncio.run(ask()))
    asker.start()

    def unhealthy() -> bool:
        try:
            asyncio.run(one.check_health())
        except RuntimeError as error:
            assert "no step for 0.2 s" in str(error)
            return True
        return False

    wait_until(unhealthy, "the health check fails")
    release.set()
    asker.join(20)
    wait_until(lambda: not unhealthy(), "it goes on")
    engine.close()


def test_probe_decodes_and_fails_with_the_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    made = chat_engine()
    engine = AsyncEngine(made)
    one = replica(engine)
    assert asyncio.run(one.probe()) > 0 and made.metrics.decided == 1
    asyncio.run(one.check_health())
    monkeypatch.setattr(made, "step", lambda: 1 / 0)
    with pytest.raises(EngineDeadError):
        asyncio.run(one.probe())
    with pytest.raises(RuntimeError, match="has made no step"):
        asyncio.run(one.check_health())


def test_signals_are_the_engines() -> None:
    engine = chat_engine(max_running=1, cache_bytes=1 << 22)
    assert signals_of(engine, 0) == {
        "open": 0.0,
        "running": 0.0,
        "waiting": 0.0,
        "waiting_tokens": 0.0,
        "cache_use": 0.0,
        "step_ms": 0.0,
    }
    for _ in range(2):
        engine.add(Request((5,) * 10, SamplingParams(max_tokens=30, ignore_eos=True)))
    for _ in range(3):
        engine.step()
    found = signals_of(engine, 2)
    assert (found["open"], found["running"], found["waiting"], found["waiting_tokens"]) == (2.0, 1.0, 1.0, 40.0)
    assert found["cache_use"] > 0 and found["step_ms"] > 0
