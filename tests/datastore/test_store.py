"""What every store must do, in memory and in each kind of Redis."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from urllib.parse import quote

import numpy as np
import pytest
from numpy.typing import NDArray

from datastore.connect import open_store
from datastore.errors import StoreDataError
from datastore.keys import SCHEMA
from datastore.levels import LEVELS, REACH
from datastore.limits import Limits
from datastore.store import NgramStore
from tests.datastore.conftest import ACL_PASSWORD, ACL_USER, Pair, ServerOf
from tests.datastore.servers import DEFAULT, REDIS_62, VALKEY, Server

LONG = LEVELS[-1]
PATIENCE_S = 10.0

KINDS = ("single", "acl", "cluster", "sentinel")
PARAMS = [("memory", DEFAULT), ("tls", DEFAULT)]  # the packaged servers are built without TLS
PARAMS += [(kind, build) for build in (DEFAULT, REDIS_62, VALKEY) for kind in KINDS]
LACKS = pytest.mark.may_skip("the package that carries this server has none for this machine")


@pytest.fixture(
    params=[
        pytest.param(param, id="-".join(filter(None, param)), marks=[] if param[1] == DEFAULT else LACKS)
        for param in PARAMS
    ]
)
def url(request: pytest.FixtureRequest, server_of: ServerOf) -> str:
    """URL of a store of each kind, on servers of each build."""
    kind, build = request.param
    if kind == "memory":
        return "memory://"
    if kind == "tls":
        tls: Server = request.getfixturevalue("redis_tls")
        return f"{tls.url}?ssl_ca_certs={quote(str(tls.folder / 'cert.pem'))}"
    server = server_of(kind, build)
    if isinstance(server, Pair):
        return f"redis+sentinel://127.0.0.1:{server.sentinel.port}/mymaster"
    if isinstance(server, list):
        return "redis+cluster://" + ",".join(f"127.0.0.1:{node.port}" for node in server)
    if kind == "acl":
        return f"redis://{ACL_USER}:{quote(ACL_PASSWORD, safe='')}@127.0.0.1:{server.port}"
    return server.url


Opened = Callable[..., NgramStore]


@pytest.fixture
def opened(url: str, namespace: str) -> Iterator[Opened]:
    """``opened(namespace=, fingerprint=, contexts=)``: a store, closed behind the test."""
    stores: list[NgramStore] = []

    def make(namespace: str = namespace, fingerprint: str = "abcd", contexts: int = 1 << 14) -> NgramStore:
        stores.append(open_store(url, namespace=namespace, fingerprint=fingerprint, limits=Limits(contexts=contexts)))
        return stores[-1]

    yield make
    for store in stores:
        store.purge()
        store.close()


def ids(*tokens: int) -> NDArray[np.int32]:
    return np.array(tokens, np.int32)


def text(seed: int, length: int) -> NDArray[np.int32]:
    """Random tokens of one or two bytes each."""
    return np.random.default_rng(seed).integers(0, 1 << 14, length).astype(np.int32)


def test_what_was_learned_is_found_behind_its_longest_known_context(opened: Opened) -> None:
    store, run = opened(), text(0, 200)
    store.learn([run])
    unknown = ids(70_001, 70_002, 70_003, 70_004, 70_005, 70_006, 70_007)
    whole, pair, nothing = store.lookup([run[:100], np.concatenate([unknown, run[98:100]]), unknown], PATIENCE_S)
    (best,) = whole
    assert LONG.context <= best.matched <= REACH
    assert len(best.tokens) > LONG.continuation - LONG.window
    assert best.tokens == tuple(run[100 : 100 + len(best.tokens)].tolist())
    (short,) = pair
    assert (short.matched, short.count) == (2, 1)
    assert short.tokens == tuple(run[100 : 100 + LEVELS[0].continuation].tolist())
    assert nothing == []


def test_every_position_of_a_long_text_is_continued(opened: Opened) -> None:
    store, run = opened(contexts=1 << 17), text(1, 3000)
    store.learn([run])
    found = store.lookup([run[max(0, i - 16) : i] for i in range(2, 2990)], PATIENCE_S)
    right = [one[0].tokens == tuple(run[i : i + len(one[0].tokens)].tolist()) for i, one in enumerate(found, 2) if one]
    assert len(right) == len(found) == 2988
    assert sum(right) >= 2985  # two random tokens may well meet twice


def test_of_tokens_too_large_to_fit_as_many_are_stored_as_do(opened: Opened) -> None:
    store = opened()
    run = np.arange(2_000_000_000, 2_000_000_100, dtype=np.int32)
    store.learn([run])
    (found,) = store.lookup([run[:50]], PATIENCE_S)
    assert len(found) == 1
    assert 5 <= len(found[0].tokens) <= 12
    assert found[0].tokens == tuple(run[50 : 50 + len(found[0].tokens)].tolist())


def test_counts_add_up_over_runs_and_calls_and_order_the_answer(opened: Opened) -> None:
    store = opened()
    store.learn([ids(1, 2, 30), ids(1, 2, 40), ids(1, 2, 40)])
    store.learn([ids(1, 2, 50)], weight=5)
    store.learn([ids(1, 2, 40)])
    (found,) = store.lookup([ids(1, 2)], PATIENCE_S)
    assert [(one.tokens, one.count) for one in found] == [((50,), 5), ((40,), 3), ((30,), 1)]


def test_a_run_that_ended_early_counts_for_the_one_that_went_on(opened: Opened) -> None:
    store = opened()
    store.learn([ids(1, 2, 30)])
    store.learn([ids(1, 2, 30, 31, 32)])
    store.learn([ids(1, 2, 30, 31)])
    (found,) = store.lookup([ids(1, 2)], PATIENCE_S)
    assert [(one.tokens, one.count) for one in found] == [((30, 31, 32), 3)]


def test_five_hundred_continuations_of_one_context_stay_bounded(opened: Opened) -> None:
    store = opened()
    store.learn([ids(1, 2, 300)] * 20)
    for start in range(0, 500, 100):
        store.learn([ids(1, 2, 1000 + i) for i in range(start, start + 100)])
    (found,) = store.lookup([ids(1, 2)], PATIENCE_S)
    assert 4 <= len(found) <= 32
    assert found[0].tokens == (300,)
    assert (1499,) in [one.tokens for one in found], "the newest is always there"


def test_what_was_said_last_week_makes_room_for_today(opened: Opened) -> None:
    store = opened()
    for old in range(8):
        store.learn([ids(1, 2, 20_000 + old, 20_000, 20_000)], weight=10)
    for _ in range(12):
        for new in range(4):
            store.learn([ids(1, 2, 30_000 + new, 30_000, 30_000)])
    (found,) = store.lookup([ids(1, 2)], PATIENCE_S)
    today = {30_000 + new for new in range(4)}
    assert {one.tokens[0] for one in found[:4]} == today


def test_a_full_namespace_levels_off_and_keeps_what_is_new_or_frequent(opened: Opened) -> None:
    store = opened(contexts=1 << 11)
    frequent, latest = text(2, 60), text(3, 60)
    store.learn([frequent], weight=40)
    for seed in range(10, 13):
        store.learn([text(seed, 1000)])
    store.learn([latest])
    assert store.stats().contexts <= 1 << 11
    for run in (frequent, latest):
        found = store.lookup([run[:i] for i in range(10, 50)], PATIENCE_S)
        assert sum(bool(one) for one in found) >= 36


def test_hashes_keep_the_compact_encoding(redis_single: Server, namespace: str) -> None:
    store = open_store(redis_single.url, namespace=namespace, fingerprint="abcd", limits=Limits(contexts=1 << 11))
    for seed in range(3):
        store.learn([text(seed, 3000), np.arange(1 << 30, (1 << 30) + 500, dtype=np.int32)], weight=seed + 1)
    client = redis_single.client()
    keys = client.keys(f"ng1:{{abcd:{namespace}:*")
    assert len(keys) == 16
    assert {client.object("encoding", key) for key in keys} <= {b"listpack", b"ziplist"}
    assert max(client.hlen(key) for key in keys) <= 128
    store.purge()
    store.close()


def test_namespaces_and_tokenizers_are_worlds_apart(opened: Opened, namespace: str) -> None:
    mine, run = opened(), text(4, 100)
    mine.learn([run])
    for other in (opened(namespace=namespace + "x"), opened(fingerprint="abce")):
        assert other.lookup([run[:50]], PATIENCE_S) == [[]]
        assert other.stats().contexts == 0


def test_purge_removes_its_namespace_and_no_other(opened: Opened, namespace: str) -> None:
    mine, theirs, run = opened(), opened(namespace=namespace + "-b"), text(5, 300)
    for store in (mine, theirs):
        store.learn([run])
    assert mine.purge() > 0
    assert mine.stats().contexts == mine.stats().tokens_learned == 0
    assert mine.lookup([run[:50]], PATIENCE_S) == [[]]
    assert theirs.lookup([run[:50]], PATIENCE_S) != [[]]
    assert mine.purge() == 0


def test_purge_takes_small_steps(redis_single: Server, namespace: str) -> None:
    """By the server's own books: nothing but pages of SCAN and UNLINK of single keys, each over in no time."""
    store = open_store(redis_single.url, namespace=namespace, fingerprint="abcd", limits=Limits(contexts=1 << 18))
    store.learn([np.random.default_rng(0).integers(0, 40_000, 20_000).astype(np.int32)])
    with redis_single.client() as admin:
        keys = len(list(admin.scan_iter(f"ng1:*:{namespace}:*", count=10_000)))
        admin.config_resetstat()
        assert store.purge() > 1000
        calls = {name: one["calls"] for name, one in admin.info("commandstats").items()}
        assert not list(admin.scan_iter(f"ng1:*:{namespace}*", count=10_000))
    allowed = {"scan", "unlink", "config|resetstat", "info", "hello", "client|setinfo", "select", "ping"}
    assert {name.removeprefix("cmdstat_") for name in calls} <= allowed, calls
    assert calls["cmdstat_unlink"] >= keys > 1000 and calls["cmdstat_scan"] >= keys // 1024
    store.close()


def test_stats_say_what_is_held(opened: Opened, namespace: str) -> None:
    store = opened(contexts=1 << 15)
    store.learn([text(6, 1000), text(7, 500)])
    stats = store.stats()
    assert (stats.namespace, stats.fingerprint, stats.schema) == (namespace, "abcd", SCHEMA)
    assert (stats.buckets, stats.tokens_learned, stats.evicted_keys) == (256, 1500, 0)
    assert 3000 <= stats.contexts <= 1500 * len(LEVELS)
    assert 20 * stats.contexts <= stats.memory_bytes <= 250 * stats.contexts


def test_a_dump_makes_an_equal_store_and_counts_add_to_what_is_there(opened: Opened, namespace: str) -> None:
    store, copy, run = opened(), opened(namespace=namespace + "-copy"), text(8, 400)
    store.learn([run], weight=3)
    records = list(store.dump())
    asked = [run[:i] for i in range(5, 395)]
    copy.load(records)
    assert copy.lookup(asked, PATIENCE_S) == store.lookup(asked, PATIENCE_S)
    copy.load(records)
    assert {one[0].count for one in copy.lookup(asked, PATIENCE_S)} == {6}


@pytest.mark.parametrize("record", [b"", b"\x07\x00\x00\x00\x00\x01", b"\x07\x00\x00\x00\x00abcd\x03\x00\x01\x05"])
def test_a_record_of_anything_else_is_refused(opened: Opened, record: bytes) -> None:
    store = opened()
    with pytest.raises(StoreDataError):
        store.load([record])
    assert store.stats().contexts == 0


def test_a_dump_of_another_number_of_buckets_is_refused(opened: Opened, namespace: str) -> None:
    store = opened()
    store.learn([text(9, 50)])
    with pytest.raises(StoreDataError, match="2\\^7 buckets, this one has 2\\^8; open it with 16384 contexts"):
        opened(namespace=namespace + "-wide", contexts=1 << 15).load(store.dump())


def test_runs_too_short_to_teach_and_empty_questions(opened: Opened) -> None:
    store = opened()
    store.learn([ids(), ids(1), ids(1, 2)])
    store.learn([])
    assert store.stats().contexts == 0
    assert store.lookup([], PATIENCE_S) == []
    assert store.lookup([ids(), ids(1)], PATIENCE_S) == [[], []]
