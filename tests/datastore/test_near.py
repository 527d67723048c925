from __future__ import annotations

from datastore.near import NearCache
from datastore.store import Continuation
from tests.datastore.clock import Clock

ONE = [Continuation((1,), 1, 2)]


def test_an_answer_is_given_until_it_is_too_old() -> None:
    clock = Clock()
    near = NearCache(8, 2.0, clock)
    near.put(b"known", ONE)
    near.put(b"unknown", [])
    clock.now = 1.99
    assert (near.get(b"known"), near.get(b"unknown"), near.get(b"other")) == (ONE, [], None)
    clock.now = 2.0
    assert (near.get(b"known"), len(near)) == (None, 1)


def test_the_least_recently_used_makes_room() -> None:
    near = NearCache(2, 2.0, Clock())
    near.put(b"a", ONE)
    near.put(b"b", ONE)
    near.get(b"a")
    near.put(b"c", ONE)
    assert [near.get(key) is not None for key in (b"a", b"b", b"c")] == [True, False, True]


def test_none_of_no_size_and_of_no_time() -> None:
    for near in (NearCache(0, 2.0), NearCache(8, 0.0)):
        near.put(b"a", ONE)
        assert near.get(b"a") is None
