"""How long a step waits for a store."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import pytest
from numpy.typing import NDArray

from racer.config import EngineConfig
from racer.deadline import LEAST_MS, PART, LookupDeadline
from racer.draft.sources import Continuation, MemoryNgramSource
from racer.errors import ConfigError
from tests.racer.engine.helpers import answer, prompt, tiny_engine


def test_a_fixed_wait_stays_and_auto_follows_the_steps() -> None:
    fixed, auto = LookupDeadline(7.5), LookupDeadline("auto")
    assert auto.ms == LEAST_MS
    for _ in range(200):
        fixed.observe(80.0)
        auto.observe(80.0)
    assert fixed.ms == 7.5 and auto.ms == pytest.approx(PART * 80.0)
    for _ in range(200):
        auto.observe(0.5)
    assert auto.ms == LEAST_MS


def test_an_engine_with_slow_steps_waits_longer(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[float] = []

    class Spy(MemoryNgramSource):
        def lookup(self, contexts: Sequence[NDArray[Any]], deadline_ms: float) -> list[list[Continuation]]:
            asked.append(deadline_ms)
            return super().lookup(contexts, deadline_ms)

    engine = tiny_engine(source=Spy())
    run: Any = engine.runner.run

    def slow(*args: Any) -> Any:
        time.sleep(0.05)
        return run(*args)

    monkeypatch.setattr(engine.runner, "run", slow)
    answer(engine, prompt(9, 1), max_tokens=40, ignore_eos=True)
    assert asked[0] == LEAST_MS and asked[-1] > 2 * LEAST_MS


@pytest.mark.parametrize("value", ["soon", 0.0, -1.0, float("nan")])
def test_a_wait_that_is_none_is_told(value: Any) -> None:
    with pytest.raises(ConfigError, match=r"source_deadline_ms=.*auto or a number of milliseconds above 0"):
        EngineConfig(source_deadline_ms=value)
