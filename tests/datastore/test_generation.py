"""Generation beside a store that is far away, hangs, is full, or holds what nobody should use.

In all of them the tokens are plain decoding's, the counters say what happened, and drafts come again afterwards.
"""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from datastore import codec
from datastore.codec import Record
from datastore.kernels import MAX_ENTRY
from datastore.source import open_source
from racer import Engine, Request, SamplingParams, Source
from tests.datastore.faulty import DEADLINE_MS, FAST, OwnRedis
from tests.datastore.proxy import slow_proxy
from tests.datastore.servers import Server, wait_for
from tests.racer.engine.helpers import decode, prompt, tiny_engine
from tests.tiny import byte_tokenizer

PROMPTS = [prompt(30, seed) for seed in range(3)]
OTHERS = [prompt(30, seed) for seed in range(10, 13)]
LENGTH = 40


@dataclass(frozen=True)
class Generated:
    """Tokens of each answer, and how many of them the store foresaw."""

    ids: list[list[int]]
    foreseen: int


Generate = Callable[..., Generated]
Client = Any
"""A ``datastore.source.Source``: neither package knows the other's types."""


@pytest.fixture(scope="module")
def engine() -> Engine:
    return tiny_engine(budget=8, source_deadline_ms=DEADLINE_MS)


@pytest.fixture
def generate(engine: Engine) -> Generate:
    """``generate(source=None, prompts=PROMPTS)``: without a source, plain decoding."""

    def run(source: Client | None = None, prompts: list[tuple[int, ...]] = PROMPTS) -> Generated:
        params = SamplingParams(max_tokens=LENGTH, ignore_eos=True, drafts=None if source else "off")
        answers = [one[0] for one in decode(engine, [Request(ids, params, source=source) for ids in prompts])]
        return Generated([one.token_ids for one in answers], sum(one.stats.accepted[Source.STORE] for one in answers))

    return run


@pytest.fixture
def taught(generate: Generate) -> Iterator[Callable[[str], Client]]:
    """``taught(url)``: a client of a store that has been taught the answers to ``PROMPTS`` and foresees them."""
    made: list[Client] = []

    def make(url: str) -> Client:
        tokenizer = byte_tokenizer().backend_tokenizer.to_str()
        source = open_source(url, namespace="generation", tokenizer_json=tokenizer, config=FAST)
        made.append(source)
        assert generate(source).ids == generate().ids
        assert source.flush()
        foresees(generate, source)
        return source

    yield make
    for one in made:
        one.close(0.5)


def foresees(generate: Generate, source: Client) -> None:
    """The store drafts, sooner or later: a breaker may have to close first."""
    plain = generate().ids

    def does() -> bool:
        found = generate(source)
        assert found.ids == plain
        return found.foreseen > 0

    wait_for(does, "drafts from the store")


def buckets(server: Server) -> list[bytes]:
    found: list[bytes] = server.client().keys("ng1:*}:*/*")
    assert found
    return found


def test_a_store_a_tenth_of_a_second_away(
    generate: Generate, taught: Callable[[str], Client], own_redis: OwnRedis
) -> None:
    with slow_proxy(own_redis().port) as proxy:
        source = taught(f"redis://127.0.0.1:{proxy.port}")
        before = source.stats()
        proxy.delay_s = 0.1
        assert generate(source) == Generated(generate().ids, 0)
        after = source.stats()
        assert after.late > before.late and after.opened > before.opened and after.refused > before.refused
        proxy.delay_s = 0.0
        foresees(generate, source)


@pytest.mark.parametrize("ill", ["stopped", "killed"])
def test_a_store_that_goes_away_in_the_middle(
    engine: Engine, generate: Generate, taught: Callable[[str], Client], own_redis: OwnRedis, ill: str
) -> None:
    server = own_redis()
    source = taught(server.url)
    before, plain = source.stats(), generate().ids
    params = SamplingParams(max_tokens=LENGTH, ignore_eos=True)
    requests = [Request(ids, params, source=source) for ids in PROMPTS]
    found: dict[str, list[int]] = {request.request_id: [] for request in requests}
    away = False
    for output in engine.generate(requests):
        found[output.request_id] += output.token_ids
        if not away and len(found[requests[0].request_id]) > 2:
            away = True
            server.signal(signal.SIGSTOP) if ill == "stopped" else server.kill()
    assert list(found.values()) == plain
    after = source.stats()
    assert after.late + sum(after.failed.values()) > before.late + sum(before.failed.values())
    if ill == "stopped":
        server.signal(signal.SIGCONT)
    else:
        server.start()  # empty: what is generated teaches it anew
    foresees(generate, source)


def test_a_full_store(generate: Generate, taught: Callable[[str], Client], own_redis: OwnRedis) -> None:
    server = own_redis("--maxmemory-policy", "noeviction")
    source = taught(server.url)
    assert source.flush()
    before = source.stats()
    server.client().config_set("maxmemory", server.client().info("memory")["used_memory"] // 2)
    assert generate(source, OTHERS).ids == generate(prompts=OTHERS).ids
    assert source.flush()
    stats = source.stats()
    assert (before.write_failed, before.dropped) == ({}, 0)
    assert sum(stats.write_failed.values()) + stats.dropped == sum(map(len, OTHERS)) + len(OTHERS) * LENGTH
    assert stats.failed == {}
    foresees(generate, source)  # what it holds is still read
    server.client().config_set("maxmemory", "0")

    def learns_again() -> bool:
        generate(source, OTHERS)
        source.flush()
        return bool(source.stats().learned > stats.learned)

    wait_for(learns_again, "writes")


def wrong_tokens(*tokens: int) -> bytes:
    data = codec.pack([Record(63, codec.encode(tokens))])
    assert len(data) <= MAX_ENTRY
    return data


@pytest.mark.parametrize(
    "entry",
    [b"", b"\x05", b"\x01\xff\x01", b"x" * 5000, wrong_tokens(7, 7, 7, 7), wrong_tokens(2**31 - 1, 70_000)],
    ids=["empty", "short", "cut off", "long", "another text's", "of no vocabulary"],
)
def test_corrupted_entries(
    generate: Generate, taught: Callable[[str], Client], own_redis: OwnRedis, entry: bytes
) -> None:
    server = own_redis()
    source, plain = taught(server.url), server.client()
    asked = source.stats().lookups
    for key in buckets(server):
        plain.hset(key, mapping=dict.fromkeys(plain.hkeys(key), entry))
    assert generate(source).ids == generate().ids
    stats = source.stats()
    assert stats.lookups > asked and stats.failed == stats.write_failed == {}
    foresees(generate, source)  # it was taught again meanwhile


def test_entries_of_an_older_schema(generate: Generate, taught: Callable[[str], Client], own_redis: OwnRedis) -> None:
    server = own_redis()
    source, plain = taught(server.url), server.client()
    for key in buckets(server):
        plain.rename(key, key.replace(b"ng1:", b"ng0:", 1))
    old = set(plain.keys("ng0:*"))
    misses = source.stats().misses
    assert generate(source).ids == generate().ids
    stats = source.stats()
    assert stats.misses > misses and stats.failed == {}
    foresees(generate, source)
    assert set(plain.keys("ng0:*")) == old
