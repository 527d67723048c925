"""The client before a store that a test holds in its hand."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from datastore.breaker import BreakerState
from datastore.client import ClientConfig, StoreClient
from datastore.errors import StoreTimeoutError, StoreUnavailableError
from datastore.memory_store import MemoryStore
from datastore.store import Continuation, Ints
from tests.datastore.clock import Clock
from tests.datastore.servers import wait_for

PATIENCE_MS = 10_000.0
TEXT: NDArray[np.int32] = np.arange(100, 200, dtype=np.int32)


class HandStore(MemoryStore):
    """Fails with ``error`` where one is set, and answers only while ``gate`` is open."""

    def __init__(self) -> None:
        super().__init__("default", "abcd")
        self.error: Exception | None = None
        self.gate = threading.Event()
        self.gate.set()
        self.asked: list[int] = []
        self.batches: list[int] = []

    def lookup(self, contexts: Sequence[Ints], deadline_s: float) -> list[list[Continuation]]:
        self.asked.append(len(contexts))
        self.gate.wait(10)
        if self.error is not None:
            raise self.error
        return super().lookup(contexts, deadline_s)

    def learn(self, runs: Sequence[Ints], weight: int = 1) -> None:
        self.gate.wait(10)
        if self.error is not None:
            raise self.error
        self.batches.append(len(runs))
        super().learn(runs, weight)


Made = Callable[..., tuple[StoreClient, HandStore, Clock]]


@pytest.fixture
def made() -> Iterator[Made]:
    """``made(**config)``: a client without a near cache unless told, its store, and the clock of its breaker."""
    clients: list[tuple[StoreClient, HandStore]] = []

    def make(**config: Any) -> tuple[StoreClient, HandStore, Clock]:
        store, clock = HandStore(), Clock()
        client = StoreClient(store, ClientConfig(**({"near_size": 0, "linger_s": 0.0} | config)), clock)
        clients.append((client, store))
        return client, store, clock

    yield make
    for client, store in clients:
        store.gate.set()
        client.close()


@pytest.mark.parametrize(("learn", "prompt", "answer"), [("all", 1, 1), ("answers", 0, 1), ("none", 0, 0)])
def test_prompts_are_learned_only_where_they_may_be(made: Made, learn: str, prompt: int, answer: int) -> None:
    client, _, _ = made(learn=learn)
    client.learn(TEXT, prompt_tokens=60)
    assert client.flush()
    found = client.lookup([TEXT[:30], TEXT[:62], TEXT[:90]], PATIENCE_MS)
    assert [bool(one) for one in found] == [bool(prompt), bool(answer), bool(answer)]
    assert client.stats().learned == {"all": 100, "answers": 40, "none": 0}[learn]


def test_it_finds_what_it_learned_and_counts_by_length(made: Made) -> None:
    client, _, _ = made()
    client.learn(TEXT)
    assert client.flush()
    short = np.array([5, 120, 121], np.int32)
    found = client.lookup([TEXT[:50], short, short[:1]], PATIENCE_MS)
    assert found[0][0].tokens[:3] == (150, 151, 152)
    assert found[1] == [Continuation((122, 123, 124), 1, 2)]
    assert found[2] == []
    stats = client.stats()
    assert (stats.lookups, stats.misses, stats.learned, stats.near_hits) == (3, 1, 100, 0)
    assert stats.hits == {2: 1, found[0][0].matched: 1}
    assert sum(stats.latency_counts) == 1
    assert stats.latency_total_ms > 0


def test_a_near_answer_is_not_asked_for_again_until_it_is_old(made: Made) -> None:
    client, store, clock = made(near_size=100, near_ttl_s=2.0)
    store.learn([TEXT])
    first = client.lookup([TEXT[:50], TEXT[:1]], PATIENCE_MS)
    assert client.lookup([TEXT[:50], TEXT[:60], TEXT[:1]], PATIENCE_MS)[0] == first[0]
    assert store.asked == [2, 1]
    assert client.stats().near_hits == 2
    clock.now = 2.0
    client.lookup([TEXT[:50]], PATIENCE_MS)
    assert store.asked == [2, 1, 1]


@pytest.mark.parametrize("error", [StoreUnavailableError("down"), StoreTimeoutError("slow"), ValueError("a bug")])
def test_no_error_reaches_the_caller_and_the_breaker_opens_and_closes(made: Made, error: Exception) -> None:
    client, store, clock = made(breaker_failures=3, breaker_wait_s=1.0)
    store.learn([TEXT])
    store.error = error
    assert [client.lookup([TEXT[:50]], PATIENCE_MS) for _ in range(5)] == [[[]]] * 5
    stats = client.stats()
    assert stats.failed == {type(error).__name__: 3}
    assert (stats.refused, stats.breaker, stats.opened) == (2, BreakerState.OPEN, 1)
    store.error = None
    clock.now = 1.0
    assert client.lookup([TEXT[:50]], PATIENCE_MS) != [[]]
    assert client.stats().breaker is BreakerState.CLOSED


def test_a_late_answer_is_a_miss_and_never_the_answer_to_another_question(made: Made) -> None:
    client, store, _ = made(near_size=10, breaker_failures=100, askers=2)
    store.learn([TEXT])
    store.gate.clear()
    assert client.lookup([TEXT[:50]], 1.0) == [[]]
    assert client.lookup([TEXT[:60]], 1.0) == [[]]
    assert client.lookup([TEXT[:70]], 1.0) == [[]], "both askers are still busy"
    assert store.asked == [1, 1]
    store.gate.set()
    wait_for(lambda: sum(client.stats().latency_counts) == 2, "the late answers")
    assert client.lookup([TEXT[:80]], PATIENCE_MS)[0][0].tokens[0] == 180
    assert client.lookup([TEXT[:50]], PATIENCE_MS)[0][0].tokens[0] == 150
    stats = client.stats()
    assert (stats.late, stats.near_hits, stats.failed) == (3, 1, {})
    assert store.asked == [1, 1, 1], "the late answer was kept"


def test_the_caller_may_change_its_context_while_the_question_is_under_way(made: Made) -> None:
    client, store, _ = made(near_size=10)
    store.learn([TEXT])
    store.gate.clear()
    context = TEXT[:50].copy()
    client.lookup([context], 1.0)
    context[:] = 7
    store.gate.set()
    wait_for(lambda: sum(client.stats().latency_counts) == 1, "the late answer")
    assert client.lookup([TEXT[:50]], PATIENCE_MS)[0][0].tokens[0] == 150


def test_a_full_queue_drops_and_counts(made: Made) -> None:
    client, store, _ = made(queue_tokens=250, batch_tokens=1)
    store.gate.clear()
    client.learn(TEXT)
    wait_for(lambda: client.stats().queued == 0, "the writer to take the first run")
    for _ in range(4):
        client.learn(TEXT)
    assert (client.stats().queued, client.stats().dropped) == (200, 200)
    store.gate.set()
    assert client.flush()
    assert client.stats().learned == 300


def test_what_waits_is_written_together(made: Made) -> None:
    client, store, _ = made(batch_tokens=300)
    store.gate.clear()
    client.learn(TEXT)
    wait_for(lambda: client.stats().queued == 0, "the writer to take the first run")
    for _ in range(5):
        client.learn(TEXT)
    store.gate.set()
    assert client.flush()
    assert store.batches == [1, 3, 2]


def test_failed_writes_are_counted_and_open_a_breaker_of_their_own(made: Made) -> None:
    client, store, clock = made(batch_tokens=1, breaker_failures=2)
    store.error = StoreUnavailableError("out of memory")
    for _ in range(3):
        client.learn(TEXT)
        assert client.flush()
    stats = client.stats()
    assert (stats.write_failed, stats.dropped) == ({"StoreUnavailableError": 200}, 100)
    assert (stats.write_breaker, stats.breaker) == (BreakerState.OPEN, BreakerState.CLOSED)
    store.error, clock.now = None, 1.0
    client.learn(TEXT)
    assert client.flush()
    assert client.stats().learned == 100


def test_a_closed_client_answers_with_nothing(made: Made) -> None:
    client, _, _ = made()
    client.learn(TEXT)
    client.close()
    client.learn(TEXT)
    assert client.lookup([TEXT[:50]], PATIENCE_MS) == [[]]
    stats = client.stats()
    assert (stats.learned, stats.dropped, stats.refused) == (100, 100, 1)
