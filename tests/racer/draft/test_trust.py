"""A store that tells a request nothing true soon takes no nodes from better guesses; one that does keeps them."""

from __future__ import annotations

import numpy as np

from racer.config import EngineConfig
from racer.draft.drafter import Drafter, RequestDrafts
from racer.draft.sources import Continuation
from racer.draft.trust import LONG_MATCH
from racer.types import Source

VOCABULARY = 300


def request() -> RequestDrafts:
    opened = Drafter(EngineConfig(prior=False), VOCABULARY).open()
    opened.learn_text(np.array([5, 6, 7, 5, 6, 8, 5, 6], np.int32))  # 7 and 8 have followed
    return opened


def store_nodes(drafts: RequestDrafts, matched: int, *, right: bool) -> int:
    """Nodes from the store in a small tree; then one step in which all of them, or none, turn out right."""
    told = [Continuation((100, 101, 102, 103), 3, matched), Continuation((110, 111, 112), 2, matched)]
    tree = drafts.propose(10, told)
    nodes = np.flatnonzero(tree.sources == Source.STORE)
    path = [0]
    while right and (below := [i for i in nodes if tree.parents[i] == path[-1]]):
        path.append(int(below[0]))
    drafts.feedback(tree, path)
    return len(nodes)


def test_what_is_wrong_again_and_again_makes_room() -> None:
    drafts = request()
    before = [store_nodes(drafts, 3, right=False) for _ in range(12)]
    assert before[-1] <= 2 < before[0] - 1 and before == sorted(before, reverse=True)
    assert store_nodes(drafts, LONG_MATCH, right=False) > 2  # long matches are judged by themselves
    assert store_nodes(request(), 3, right=False) == before[0]  # so is each request


def test_a_store_that_comes_to_be_right_is_trusted_again() -> None:
    drafts = request()
    for _ in range(40):
        store_nodes(drafts, 3, right=False)
    distrusted = drafts._trust.of(3)
    for _ in range(60):
        store_nodes(drafts, 3, right=True)
    assert distrusted < 0.3 and drafts._trust.of(3) > 0.7


def test_what_is_right_gets_the_share_of_the_own_text() -> None:
    drafts = request()
    first, *later = (store_nodes(drafts, 3, right=True) for _ in range(12))
    assert min(later) >= first > 2
    start = drafts._trust.of(3)
    assert 0.9 < start <= 1.0 > request()._trust.of(3)
