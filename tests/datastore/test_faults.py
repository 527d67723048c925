"""A client of a server that stops, dies, is demoted, refuses, lags, is full, or holds garbage.

In all of them a lookup is a miss within its deadline, the counters say what happened, and it recovers by itself.
"""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
import redis
from numpy.typing import NDArray

from datastore.breaker import BreakerState
from datastore.client import ClientConfig, StoreClient
from datastore.connect import open_store
from datastore.errors import StoreTimeoutError, StoreUnavailableError
from datastore.limits import Limits
from tests.datastore.conftest import Pair, cluster
from tests.datastore.proxy import slow_proxy
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


@pytest.fixture
def client() -> Iterator[Client]:
    """``client(url)``: a client with short waits, that has learned ``TEXT`` if the server let it."""
    made: list[StoreClient] = []

    def make(url: str) -> StoreClient:
        made.append(StoreClient(open_store(url, namespace="faults", fingerprint="abcd", limits=LIMITS), FAST))
        made[-1].learn(TEXT)
        made[-1].flush()
        return made[-1]

    yield make
    for one in made:
        one.close(0.5)


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


def test_a_server_that_hangs(client: Client, own_redis: OwnRedis) -> None:
    server = own_redis()
    ours = client(server.url)
    works(ours)
    server.signal(signal.SIGSTOP)
    gives_up(ours)
    assert ours.stats().late >= 1
    ours.learn(TEXT)
    server.signal(signal.SIGCONT)
    works(ours)


def test_a_server_that_is_killed_and_started_again_empty(client: Client, own_redis: OwnRedis) -> None:
    server = own_redis()
    ours = client(server.url)
    works(ours)
    server.kill()
    gives_up(ours)
    assert ours.stats().failed.keys() == {"StoreUnavailableError"}
    server.start()

    def learned_anew() -> bool:
        ours.learn(TEXT)  # scripts are gone as well as data
        ours.flush()
        return ask(ours)

    wait_for(learned_anew, "the server to be filled again")
    works(ours)


def test_no_server_at_first(client: Client, own_redis: OwnRedis) -> None:
    server = own_redis()
    server.kill()
    ours = client(server.url)
    gives_up(ours)
    assert ours.stats().write_failed == {"StoreUnavailableError": len(TEXT)}
    server.start()
    with server.client() as plain:
        assert plain.ping()
    other = client(server.url)
    works(other)
    works(ours)


def test_a_demoted_primary_refuses_writes_and_still_answers(client: Client, own_redis: OwnRedis) -> None:
    first, second = own_redis(), own_redis()
    ours = client(first.url)
    works(ours)
    wait_for(lambda: second.client().replicaof("127.0.0.1", first.port), "a replica")
    wait_for(lambda: second.client().info("replication")["master_link_status"] == "up", "replication")
    second.client().replicaof("no", "one")
    first.client().replicaof("127.0.0.1", second.port)
    ours.learn(TEXT)
    assert ours.flush()
    assert ours.stats().write_failed == {"StoreUnavailableError": len(TEXT)}
    works(ours)
    first.client().replicaof("no", "one")
    before = ours.stats().learned

    def writes_again() -> bool:
        ours.learn(TEXT)
        ours.flush()
        return ours.stats().learned > before

    wait_for(writes_again, "writes")
    assert ours.stats().write_breaker is BreakerState.CLOSED


def test_a_failover_under_sentinel(client: Client, redis_pair: Pair) -> None:
    ours = client(f"redis+sentinel://127.0.0.1:{redis_pair.sentinel.port}/mymaster")
    works(ours)
    sentinel = redis_pair.sentinel.client()
    wait_for(lambda: bool(sentinel.execute_command("SENTINEL", "FAILOVER", "mymaster")), "a replica fit to promote")
    wait_for(lambda: redis_pair.replica.client().info("replication")["role"] == "master", "the failover")

    def written_to_the_new_one() -> bool:
        ours.learn(TEXT[:100] + 5000)
        ours.flush()
        found = ours.lookup([TEXT[:50] + 5000], DEADLINE_MS)[0]
        return bool(found) and found[0].tokens[0] == 5150 and ours.stats().learned > len(TEXT)

    wait_for(written_to_the_new_one, "writes to the new primary")
    assert redis_pair.replica.client().dbsize() > 0
    works(ours)


def test_a_wrong_password(client: Client, own_redis: OwnRedis) -> None:
    server = own_redis("--requirepass", "right")
    ours = client(f"redis://:wrong@127.0.0.1:{server.port}")
    gives_up(ours)
    assert ours.stats().failed.keys() == {"StoreUnavailableError"}
    assert ours.stats().write_failed.keys() == {"StoreUnavailableError"}
    server.client(password="right").config_set("requirepass", "wrong")
    works(client(f"redis://:wrong@127.0.0.1:{server.port}"))
    works(ours)


def test_a_server_100_ms_away(client: Client, own_redis: OwnRedis) -> None:
    server = own_redis()
    with slow_proxy(server.port) as proxy:
        ours = client(f"redis://127.0.0.1:{proxy.port}")
        works(ours)
        proxy.delay_s = 0.1
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


def test_a_full_server_takes_no_more_and_still_answers(client: Client, own_redis: OwnRedis) -> None:
    server = own_redis("--maxmemory-policy", "noeviction")
    ours = client(server.url)
    works(ours)
    server.client().config_set("maxmemory", "1mb")
    ours.learn(TEXT)
    assert ours.flush()
    assert ours.stats().write_failed == {"StoreUnavailableError": len(TEXT)}
    works(ours)
    server.client().config_set("maxmemory", "0")
    ours.learn(TEXT)
    assert ours.flush()
    assert ours.stats().learned == 2 * len(TEXT)


def test_memory_levels_off_below_the_servers_cap(own_redis: OwnRedis) -> None:
    server = own_redis("--maxmemory", "8mb", "--maxmemory-policy", "allkeys-lfu")
    store = open_store(server.url, namespace="cap", fingerprint="abcd")
    chance = np.random.default_rng(0)
    for _ in range(12):
        store.learn([chance.integers(0, 50_000, 8000).astype(np.int32)])
    store.learn([TEXT])
    stats = store.stats()
    assert server.client().info("memory")["used_memory"] <= 8.5 * 2**20
    assert stats.evicted_keys > 0
    found = store.lookup([TEXT[:i] for i in range(20, 290)], 5.0)
    assert sum(bool(one) for one in found) >= 200
    store.close()


@pytest.mark.parametrize("garbage", [b"", b"\x05", b"\x01\xff\x01", b"\x00\x01\x01", b"\x01\x02\xff\xff", b"x" * 5000])
def test_a_corrupted_entry_is_a_miss_until_it_is_learned_again(
    client: Client, own_redis: OwnRedis, garbage: bytes
) -> None:
    server = own_redis()
    ours, plain = client(server.url), server.client()
    works(ours)
    for key in plain.keys("ng1:*}:*/*"):
        plain.hset(key, mapping=dict.fromkeys(plain.hkeys(key), garbage))
    assert not ask(ours)
    assert ours.stats().failed == {}
    ours.learn(TEXT)
    assert ours.flush()
    works(ours)


def test_a_key_of_another_type_is_a_miss_until_it_is_learned_again(client: Client, own_redis: OwnRedis) -> None:
    server = own_redis()
    ours, plain = client(server.url), server.client()
    keys = plain.keys("ng1:*}:*/*")
    assert len(keys) > 50
    for key in keys:
        plain.delete(key)
        plain.set(key, "not a hash")
    assert not ask(ours)
    ours.learn(TEXT)
    assert ours.flush()
    works(ours)
    assert ours.stats().failed == ours.stats().write_failed == {}


def test_what_an_older_schema_wrote_is_not_seen_and_purged_with_the_rest(client: Client, own_redis: OwnRedis) -> None:
    server = own_redis()
    plain = server.client()
    plain.hset("ng0:{abcd:faults:0}:0/80", "old", "value")
    plain.hset("ng0:{abcd:another:0}:0/80", "old", "value")
    ours = client(server.url)
    works(ours)
    assert ours.stats().failed == {}
    store = open_store(server.url, namespace="faults", fingerprint="abcd", limits=Limits(contexts=1 << 14))
    assert store.stats().schema == 1
    store.purge()
    assert plain.keys("*") == [b"ng0:{abcd:another:0}:0/80"]
    store.close()


def test_a_tenant_notices_nothing_of_what_another_stores(redis_single: Server) -> None:
    stores = [
        open_store(redis_single.url, namespace=f"tenant-{name}", fingerprint="abcd", limits=LIMITS) for name in "ab"
    ]
    asked = [TEXT[:i] for i in range(2, 250)]
    empty = stores[1].lookup(asked, 5.0)
    stores[0].learn([TEXT], weight=9)
    assert stores[1].lookup(asked, 5.0) == empty == [[]] * 248
    assert all(stores[0].lookup(asked, 5.0))
    for store in stores:
        store.purge()
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


def test_scripts_that_the_server_has_lost_are_loaded_again(own_redis: OwnRedis) -> None:
    server = own_redis()
    store = open_store(server.url, namespace="scripts", fingerprint="abcd", limits=LIMITS)
    for start in (0, 1000):
        server.client().script_flush()
        store.learn([TEXT + start])
        server.client().script_flush()
        assert store.lookup([TEXT[:50] + start], 5.0)[0][0].tokens[0] == 150 + start
    assert store.stats().tokens_learned == 2 * len(TEXT)
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


def test_a_master_of_a_cluster_dies(client: Client, tmp_path: Path) -> None:
    with cluster(tmp_path) as nodes:
        ours = client("redis+cluster://" + ",".join(f"127.0.0.1:{node.port}" for node in nodes))
        works(ours)
        nodes[2].kill()
        gives_up(ours)
        assert ours.stats().failed.keys() <= {"StoreUnavailableError", "StoreTimeoutError"}
        nodes[2].start()

        def learned_anew() -> bool:
            ours.learn(TEXT)
            ours.flush()
            return ask(ours)

        wait_for(learned_anew, "the cluster to work again")
