"""A client of a server that answers late, or not at all: no reply reaches another question."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
import redis

from datastore.connect import open_store
from datastore.errors import StoreTimeoutError, StoreUnavailableError
from datastore.limits import Limits
from tests.datastore.faulty import LIMITS, TEXT, Client, OwnRedis, gives_up, works
from tests.datastore.proxy import slow_proxy
from tests.datastore.servers import wait_for


def test_a_server_that_is_far_away(client: Client, own_redis: OwnRedis) -> None:
    server = own_redis()
    with slow_proxy(server.port) as proxy:
        ours = client(f"redis://127.0.0.1:{proxy.port}")
        works(ours)
        proxy.delay_s = 0.4  # well beyond FAST.answer_s: near it, a slow moment decides whether a reply counts
        gives_up(ours)
        stats = ours.stats()
        assert stats.late + sum(stats.failed.values()) >= 3
        proxy.delay_s = 0.0
        works(ours)


def test_a_late_reply_never_answers_another_question(own_redis: OwnRedis) -> None:
    server = own_redis()
    limits = Limits(contexts=1 << 14, connections=1)
    with slow_proxy(server.port) as proxy:
        store = open_store(f"redis://127.0.0.1:{proxy.port}", namespace="late", fingerprint="abcd", limits=limits)
        store.learn([TEXT])
        for i in range(50, 60):
            proxy.delay_s = 0.05
            with pytest.raises(StoreTimeoutError):
                store.lookup([TEXT[:i]], 0.01)
            proxy.delay_s = 0.0
            (found,) = store.lookup([TEXT[: 100 + i]], 5.0)
            assert found[0].tokens[0] == 200 + i
        store.close()


def first_has_it(store: Any) -> bool:
    """The only connection is taken."""
    return bool(store._wire._free._value == 0)


def test_who_finds_no_free_connection_does_not_wait_for_it_long(own_redis: OwnRedis) -> None:
    server = own_redis()
    limits = Limits(contexts=1 << 14, connections=1, pool_wait_s=0.01)
    with slow_proxy(server.port) as proxy:
        store = open_store(f"redis://127.0.0.1:{proxy.port}", namespace="busy", fingerprint="abcd", limits=limits)
        store.learn([TEXT])
        proxy.delay_s = 1.0
        found: list[int] = []
        first = threading.Thread(target=lambda: found.append(store.lookup([TEXT[:50]], 60.0)[0][0].tokens[0]))
        first.start()
        wait_for(lambda: first_has_it(store), "the first has the connection")
        with pytest.raises(StoreTimeoutError, match="every connection to the store is in use"):
            store.lookup([TEXT[:50]], 60.0)
        assert first.is_alive() and not found  # so it was not waited for
        first.join(60)
        assert found == [150]
        store.close()


@pytest.fixture
def interruptible() -> Iterator[None]:
    """SIGINT raises KeyboardInterrupt, also where the tests run in the background, which makes shells ignore it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("interruptible")
def test_an_exception_in_the_middle_of_a_question_closes_its_connection(own_redis: OwnRedis) -> None:
    server = own_redis()
    limits = Limits(contexts=1 << 14, connections=1)
    with slow_proxy(server.port) as proxy:
        store = open_store(f"redis://127.0.0.1:{proxy.port}", namespace="cut", fingerprint="abcd", limits=limits)
        store.learn([TEXT])
        store.lookup([TEXT[:50]], 10.0)  # compiles what is compiled once, so that the signal meets the wait
        proxy.delay_s = 1.5
        main = threading.main_thread().ident
        assert main is not None
        threading.Timer(0.5, signal.pthread_kill, (main, signal.SIGINT)).start()
        with pytest.raises(KeyboardInterrupt):
            store.lookup([TEXT[:50]], 10.0)
        proxy.delay_s = 0.0
        (found,) = store.lookup([TEXT[:80]], 10.0)
        assert found[0].tokens[0] == 180
        store.close()


def test_redis_own_retries_do_not_stretch_a_question(own_redis: OwnRedis) -> None:
    server = own_redis()
    server.kill()
    store = open_store(server.url, namespace="gone", fingerprint="abcd")
    start = time.monotonic()
    with pytest.raises(StoreUnavailableError, match="refused") as raised:
        store.lookup([TEXT[:50]], 5.0)
    assert time.monotonic() - start < 2.0
    assert isinstance(raised.value.__cause__, redis.ConnectionError)
    store.close()


@pytest.mark.parametrize(
    "url", ["redis://127.0.0.1:1", "redis+cluster://127.0.0.1:1", "redis+sentinel://127.0.0.1:1/x"]
)
def test_every_question_to_nobody_is_the_same_kind_of_error(url: str) -> None:
    store = open_store(url, namespace="nobody", fingerprint="abcd", limits=LIMITS)
    for question in (store.stats, store.purge, lambda: store.learn([TEXT]), lambda: store.lookup([TEXT], 1.0)):
        with pytest.raises(StoreUnavailableError):
            question()
    store.close()
