"""A client of a server that is full, or holds garbage, or what others wrote.

In all of them a lookup is a miss within its deadline, the counters say what happened, and it recovers by itself.
"""

from __future__ import annotations

import numpy as np
import pytest

from datastore.connect import open_store
from datastore.limits import Limits
from tests.datastore.faulty import LIMITS, TEXT, Client, OwnRedis, ask, works
from tests.datastore.servers import Server


def test_a_full_server_takes_no_more_and_still_answers(client: Client, own_redis: OwnRedis) -> None:
    server = own_redis("--maxmemory-policy", "noeviction")
    ours = client(server.url)
    works(ours)
    server.client().config_set("maxmemory", server.client().info("memory")["used_memory"] // 2)
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
