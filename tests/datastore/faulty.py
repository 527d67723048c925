"""A client with short waits, and what the tests of faults ask of it: every question keeps its deadline."""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from datastore.breaker import BreakerState
from datastore.client import ClientConfig, StoreClient
from datastore.limits import Limits
from tests.datastore.servers import Server, wait_for

DEADLINE_MS = 20.0
SLACK_MS = 480.0
"""A busy test machine may wake a waiting thread this late; every fault below would last far longer."""

TEXT: NDArray[np.int32] = np.arange(100, 400, dtype=np.int32)
FAST = ClientConfig(
    answer_s=0.1, near_size=0, breaker_failures=3, breaker_wait_s=0.2, breaker_max_wait_s=0.4, linger_s=0
)
LIMITS = Limits(contexts=1 << 14, connect_s=0.5, write_s=0.5)


Client = Callable[[str], StoreClient]
OwnRedis = Callable[..., Server]


def ask(client: StoreClient) -> bool:
    """Whether the store knew how ``TEXT`` goes on; the deadline holds whatever happens."""
    start = time.monotonic()
    (found,) = client.lookup([TEXT[:50]], DEADLINE_MS)
    assert (time.monotonic() - start) * 1000 <= DEADLINE_MS + SLACK_MS
    assert not found or found[0].tokens[:3] == (150, 151, 152)
    return bool(found)


def works(client: StoreClient) -> None:
    wait_for(lambda: ask(client), "answers")
    assert client.stats().breaker is BreakerState.CLOSED


def gives_up(client: StoreClient) -> None:
    """Nothing but misses, until the breaker opens."""

    def is_open() -> bool:
        assert not ask(client)
        return client.stats().breaker is BreakerState.OPEN

    wait_for(is_open, "the breaker to open")
