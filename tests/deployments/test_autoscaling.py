"""The policy and the router as functions; the real ones run in test_cluster.py."""

from __future__ import annotations

import asyncio
import math
from collections import Counter
from types import SimpleNamespace
from typing import Any

import pytest

from deployments.app import policy_settings
from deployments.autoscaling import EnginePolicy, enough
from deployments.calls import Call
from deployments.config import Autoscaling, ModelConfig
from deployments.routing import ConversationRouter, score

POLICY = EnginePolicy(target_running=8, target_waiting_tokens=1000, target_cache_use=0.8, target_step_ms=50)


@pytest.mark.parametrize(
    ("replicas", "requests", "metrics", "wanted"),
    [
        (3, 0, {}, 0),
        (3, 0, {"step_ms": {"a": 500.0}}, 0),  # what an idle engine last measured says nothing
        (1, 1, {}, 1),
        (1, 40, {}, 5),
        (5, 9, {}, 2),
        (2, 4, {"waiting_tokens": {"a": 2000.0, "b": 2000.0}}, 4),
        (2, 4, {"cache_use": {"a": 1.0, "b": 0.8}}, 3),
        (2, 4, {"step_ms": {"a": 100.0, "b": 100.0}}, 4),
        (4, 32, {"step_ms": {"a": 50.0}}, 4),
        (4, 8, {"step_ms": {"a": 10.0}, "cache_use": {"a": 0.1}}, 1),
        (2, 8, {"step_ms": {"a": float("nan")}}, 1),
    ],
)
def test_worst_signal_decides(
    replicas: int, requests: float, metrics: dict[str, dict[str, float]], wanted: int
) -> None:
    assert POLICY.wanted(replicas, requests, metrics) == wanted


def settled(slowdown: float, arriving: float, replicas: int, steps: int = 60) -> list[int]:
    """Replicas over time, each step long enough for the requests under way to settle.

    An answer takes a second alone, and 1/16 of one more for each other request beside it: four times as long at 49.
    Where more comes than the replicas can ever serve (16 a second each), requests pile up.
    """
    policy = EnginePolicy(target_running=49, target_waiting_tokens=10**9, target_cache_use=1.0, slowdown=slowdown)
    counts, waiting = [replicas], 0.0
    for _ in range(steps):
        each = arriving / counts[-1]
        alone = 1.0 - 1.0 / 16.0
        if each < 15.9:
            waiting, under_way = 0.0, counts[-1] * alone * each / (1.0 - each / 16.0)
        else:
            waiting += 60.0 * (arriving - 15.9 * counts[-1])
            under_way = counts[-1] * 49 + waiting
        counts.append(policy.wanted(counts[-1], under_way, {}))
    return counts


@pytest.mark.parametrize("begin", [1, 6, 40])
@pytest.mark.parametrize("arriving", [5.0, 20.0, 100.0, 300.0])
def test_the_number_settles_where_answers_slow_down_with_load(arriving: float, begin: int) -> None:
    counts = settled(4.0, arriving, begin)
    least = math.ceil(arriving / 12.25)  # 49 at a time, four seconds each
    assert len(set(counts[-20:])) == 1, counts
    assert least <= counts[-1] <= max(least + 1, 1.3 * least), counts


def test_without_slowdown_the_number_swings() -> None:
    """What the setting is for; also a check of the test above."""
    assert len(set(settled(1.0, 100.0, 6)[-20:])) > 1


def test_slowdown_changes_nothing_at_the_targets_and_above() -> None:
    assert enough(5.0, 5, 4.0) == 5.0 and enough(9.0, 5, 4.0) == 9.0
    assert enough(1.0, 10, 1.0) == 1.0 and enough(1.0, 1000, 4.0) == pytest.approx(4.0, rel=0.01)


def test_settings_of_a_model_make_its_policy() -> None:
    values: dict[str, Any] = {"target_running": 3, "slowdown": 2.5, "target_cache_use": 0.5, "target_waiting_tokens": 7}
    policy = EnginePolicy(**policy_settings(ModelConfig(autoscaling=Autoscaling(**values))))
    assert {name: getattr(policy, name) for name in values} == values
    assert EnginePolicy(**policy_settings(ModelConfig(engine={"max_running": 11}))).target_running == 11


def test_conversations_spread_and_few_move_when_a_replica_comes() -> None:
    conversations = [f"conversation {i}" for i in range(2000)]

    def homes(replicas: list[str]) -> list[str]:
        return [max(replicas, key=lambda replica: score(one, replica)) for one in conversations]

    three, four = homes(["r1", "r2", "r3"]), homes(["r1", "r2", "r3", "r4"])
    assert min(Counter(three).values()) > 500
    moved = [(a, b) for a, b in zip(three, four, strict=True) if a != b]
    assert all(b == "r4" for _, b in moved) and 300 < len(moved) < 700


@pytest.mark.parametrize(("slack", "ahead", "stays"), [(2, 2, True), (2, 3, False), (0, 0, True), (0, 1, False)])
def test_conversation_leaves_its_replica_when_that_is_too_busy(slack: int, ahead: int, stays: bool) -> None:
    replicas: list[Any] = [SimpleNamespace(replica_id=SimpleNamespace(unique_id=name)) for name in ("r1", "r2", "r3")]
    home = max(replicas, key=lambda replica: score("a conversation", replica.replica_id.unique_id))
    others = [replica for replica in replicas if replica is not home]
    loads = {home.replica_id.unique_id: 1 + ahead, others[0].replica_id.unique_id: 1, others[1].replica_id.unique_id: 9}
    router = object.__new__(ConversationRouter)
    router.initialize_state(slack=slack)
    router._replica_queue_len_cache = SimpleNamespace(get=lambda replica_id: loads[replica_id.unique_id])
    request: Any = SimpleNamespace(args=[Call("id", "chat", {}, "a conversation")])
    ranks = asyncio.run(router.choose_replicas(replicas, request))
    assert [len(rank) for rank in ranks] == [1, 1, 1]
    assert ranks[0] == [home if stays else others[0]]
