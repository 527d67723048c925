"""The policy and the router as functions; the real ones run in test_cluster.py."""

from __future__ import annotations

import asyncio
from collections import Counter
from types import SimpleNamespace
from typing import Any

import pytest

from deployments.autoscaling import EnginePolicy
from deployments.calls import Call
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
