from __future__ import annotations

import random
from functools import reduce
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from datastore import codec
from datastore.codec import Record
from datastore.kernels import MAX_COUNT, MAX_ENTRY
from datastore.limits import BUCKET_FIELDS
from datastore.scripts import script
from tests.datastore.servers import Server

tokens = st.lists(st.integers(0, 2**31 - 1), max_size=12)


@given(tokens)
def test_tokens_come_back(run: list[int]) -> None:
    assert codec.decode(codec.encode(run)) == tuple(run)


@pytest.mark.parametrize(
    ("run", "data"), [([0], "00"), ([127], "7f"), ([128], "8001"), ([16383, 16384], "ff7f808001"), ([], "")]
)
def test_small_tokens_are_small(run: list[int], data: str) -> None:
    assert codec.encode(run).hex() == data


@given(st.binary(max_size=80))
def test_any_bytes_are_read_as_sound_records_or_none(data: bytes) -> None:
    records = codec.unpack(data)
    assert records == [] or codec.pack(records) == data
    for record in records:
        assert all(0 <= token < 2**31 for token in codec.decode(record.tokens))


def entry(*records: tuple[int, list[int]]) -> bytes:
    return codec.pack([Record(seen, codec.encode(run)) for seen, run in records])


def test_a_merge_counts_orders_and_joins_prefixes() -> None:
    old = entry((5, [1, 2, 3]), (2, [4, 5]))
    new = entry((4, [4, 5, 6]), (1, [7]))
    assert codec.merge(old, new) == entry((6, [4, 5, 6]), (5, [1, 2, 3]), (1, [7]))
    assert codec.merge(b"", new) == codec.merge(b"\x09broken", new) == new
    assert codec.merge(entry((60, [1])), entry((9, [1]))) == entry((MAX_COUNT, [1]))


def test_what_is_crowded_out_is_what_is_rare_and_old() -> None:
    runs = [[1000 + i, *range(200, 210)] for i in range(4)]  # 24 bytes each: two fit
    full = entry((3, runs[0]), (2, runs[1]))
    assert codec.merge(full, entry((1, runs[2]))) == entry((2, runs[0]), (1, runs[2]))
    often = reduce(codec.merge, [entry((1, run)) for run in runs[2:] * 4], full)
    assert {record.tokens for record in codec.unpack(often)} == {codec.encode(run) for run in runs[2:]}


def test_the_server_merges_by_the_same_rule(redis_single: Server, namespace: str) -> None:
    chance = random.Random(0)
    client, merge = redis_single.client(), script("merge.lua")
    key = f"ng1:{{abcd:{namespace}:0}}:0/10"
    held: dict[bytes, bytes] = {}
    for step in range(600):
        field = b"%04d" % chance.randrange(12)
        new = b""
        while not new or (len(new) < 40 and chance.random() < 0.5):
            run = [chance.choice([3, 300]) for _ in range(chance.randint(1, 9))]
            new = codec.merge(new, entry((chance.choice([1, 1, 1, 2, 30]), run)))
        if step % 50 == 49:
            client.hset(key, field, b"\x01\xff broken")
            held[field] = b""
        arguments: list[Any] = [field + bytes((len(new),)) + new, MAX_ENTRY, MAX_COUNT, BUCKET_FIELDS]
        client.eval(merge.source, 1, key, *arguments)
        held[field] = codec.merge(held.get(field, b""), new)
        assert client.hget(key, field) == held[field], f"step {step}"
        assert len(held[field]) <= MAX_ENTRY
    client.delete(key)
