"""Continuations from outside: the in-process source, and how continuations are pooled."""

import numpy as np

from racer.draft.sources import Continuation, MemoryNgramSource, pool


def ints(*values: int) -> np.ndarray:
    return np.array(values, np.int32)


def test_the_longest_match_wins() -> None:
    source = MemoryNgramSource((2, 3), continuation_tokens=2)
    source.learn(ints(1, 2, 3, 4, 5))
    source.learn(ints(9, 2, 3, 7))
    assert source.lookup([ints(0, 1, 2, 3), ints(2, 3), ints(3, 2)], 50.0) == [
        [Continuation((4, 5), 1, 3)],
        [Continuation((4, 5), 1, 2), Continuation((7,), 1, 2)],
        [],
    ]


def test_counts_add_up_and_the_rarest_continuation_goes() -> None:
    source = MemoryNgramSource((1,), continuation_tokens=1, max_continuations=2)
    for follower in (5, 6, 6, 5, 5, 7):
        source.learn(ints(1, follower))
    assert source.lookup([ints(1)], 50.0) == [[Continuation((5,), 3, 1), Continuation((7,), 1, 1)]]


def test_it_is_bounded_and_forgets_the_least_recently_used() -> None:
    source = MemoryNgramSource((1,), continuation_tokens=1, max_contexts=3)
    source.learn(ints(1, 2, 3, 4))
    assert source.lookup([ints(1)], 50.0)[0], "looked up, hence used"
    source.learn(ints(7, 8))
    assert len(source) == 3
    assert [bool(found) for found in source.lookup([ints(1), ints(2), ints(3), ints(7)], 50.0)] == [
        True,
        False,
        True,
        True,
    ]
    source.learn(np.random.default_rng(0).integers(0, 9999, 5000).astype(np.int32))
    assert len(source) == 3


def test_late_is_a_miss() -> None:
    source = MemoryNgramSource((1,))
    source.learn(ints(1, 2))
    assert source.lookup([ints(1), ints(1)], -1.0) == [[], []]


def test_short_and_empty_contexts() -> None:
    source = MemoryNgramSource((2, 3))
    source.learn(ints())
    source.learn(ints(1))
    source.learn(ints(1, 2, 3))
    assert source.lookup([ints(), ints(1), ints(1, 2)], 50.0) == [[], [], [Continuation((3,), 1, 2)]]
    assert source.lookup([], 50.0) == []


def tree_of(continuations: list[Continuation]) -> dict[tuple[int, ...], int]:
    """Paths of a pool and their counts; totals are checked on the way."""
    rows = pool(continuations).rows
    found: dict[tuple[int, ...], int] = {}

    def walk(node: int, path: tuple[int, ...]) -> None:
        child, total = int(rows[node, 3]), 0
        while child:
            found[*path, int(rows[child, 0])] = int(rows[child, 1])
            total += int(rows[child, 1])
            walk(child, (*path, int(rows[child, 0])))
            child = int(rows[child, 4])
        assert total == rows[node, 2]

    walk(0, ())
    return found


def test_pooled_as_a_prefix_tree() -> None:
    pooled = pool([Continuation((1, 2), 3, 4), Continuation((1, 3), 2, 4), Continuation((5,), 1, 4)])
    assert pooled.matched == 4
    assert tree_of([Continuation((1, 2), 3, 4), Continuation((1, 3), 2, 4), Continuation((5,), 1, 4)]) == {
        (1,): 5,
        (1, 2): 3,
        (1, 3): 2,
        (5,): 1,
    }


def test_only_the_longest_match_is_pooled_and_nonsense_is_dropped() -> None:
    assert tree_of(
        [Continuation((1,), 9, 2), Continuation((2,), 1, 3), Continuation((), 7, 5), Continuation((3,), 0, 5)]
    ) == {(2,): 1}
    assert tree_of([]) == {} == tree_of([Continuation((), 1, 1)])


def test_work_is_bounded_for_any_answer() -> None:
    huge = [Continuation(tuple(range(i, i + 500)), i + 1, 3) for i in range(500)]
    pooled = pool(huge)
    assert len(pooled.rows) <= 1 + 64 * 32
    assert tree_of(huge)[499,] == 500, "the most frequent are the ones kept"
