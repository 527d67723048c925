"""The paper's tree, exact, and its chain."""

from collections import Counter
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from racer.config import Drafts, EngineConfig, TreeShape
from racer.draft.drafter import Drafter, RequestDrafts
from racer.draft.sources import Continuation
from racer.draft.tree import DraftTree
from racer.types import Source

VOCAB = 1000


def opened(tree: TreeShape = TreeShape.PAPER, drafts: Drafts = Drafts.RACER, **settings: int) -> RequestDrafts:
    return Drafter(EngineConfig(prior=False, **settings), VOCAB).open(drafts, tree)


def learn_rows(request: RequestDrafts, rows: dict[int, Sequence[int]]) -> None:
    """Next tokens of each token, with falling probabilities."""
    for token, tops in rows.items():
        request.learn_logits([token], [list(tops)], [[0.5 / 2**i for i in range(len(tops))]])


def paths(tree: DraftTree) -> list[tuple[int, ...]]:
    """The path of each node, root first, in node order."""
    found: list[tuple[int, ...]] = []
    for node in range(len(tree)):
        parent = int(tree.parents[node])
        found.append((*(found[parent] if parent >= 0 else ()), int(tree.tokens[node])))
    return found


def leaf_paths(tree: DraftTree) -> set[tuple[int, ...]]:
    inner = {path[:-1] for path in paths(tree)}
    return {path for path in paths(tree) if path not in inner}


def quaternary(drafts: Drafts = Drafts.RACER) -> RequestDrafts:
    """Children of token t are 4t+1..4t+4."""
    request = opened(drafts=drafts, top_k=4)
    learn_rows(request, {token: range(4 * token + 1, 4 * token + 5) for token in range(60)})
    return request


def test_breadth_allocation_of_the_paper() -> None:
    request = quaternary()
    request.learn_text([0])
    tree = request.propose(21)
    tree.check_integrity()
    assert leaf_paths(tree) == {
        (0, 4, 17),
        (0, 1, 5, 21),
        (0, 1, 5, 22),
        (0, 1, 6, 25),
        (0, 1, 7, 29),
        (0, 1, 8, 33),
        (0, 2, 9, 37),
        (0, 2, 10, 41),
        (0, 3, 13, 53),
    }
    assert set(tree.sources[1:].tolist()) == {Source.LOGITS}


def test_the_logits_tree_is_breadth_first_at_every_budget() -> None:
    request = quaternary()
    request.learn_text([0])
    full = paths(request.propose(21))
    for budget in range(1, 21):
        assert paths(request.propose(budget)) == full[:budget]


def test_probabilities_are_products_of_the_table() -> None:
    request = quaternary()
    request.learn_text([0])
    tree = request.propose(21)
    for node in range(1, len(tree)):
        parent = tree.parents[node]
        rank = (tree.tokens[node] - 1) % 4
        assert tree.probs[node] == pytest.approx(tree.probs[parent] * 0.5 / 2**rank)


def test_the_worked_example_of_retrieval() -> None:
    request = opened(drafts=Drafts.RETRIEVAL, min_depth=2)
    request.learn_text([1, 2, 3, 4, 9, 1, 2, 3, 5, 9, 1, 2, 3, 4, 8, 2, 3, 4, 7, 1, 2, 3])
    tree = request.propose(5)
    # borders 2 3 (four times before: 4 5 4 4) and 1 2 3 (three: 4 5 4) and 7 1 2 3 (never): 4 has 3 + 2, 5 has 1 + 1
    assert paths(tree) == [(3,), (3, 4), *paths(tree)[2:]]
    assert set(paths(tree)) == {(3,), (3, 4), (3, 4, 9), (3, 5), (3, 4, 8)}
    assert set(tree.sources[1:].tolist()) == {Source.RETRIEVAL}


def test_matches_shorter_than_min_depth_retrieve_nothing() -> None:
    text = [1, 2, 3, 4, 5, 9, 2, 3]
    assert len(_retrieval(text, min_depth=3)) == 1
    assert paths(_retrieval(text, min_depth=2))[:2] == [(3,), (3, 4)]


def _retrieval(text: list[int], min_depth: int, budget: int = 16) -> DraftTree:
    request = opened(drafts=Drafts.RETRIEVAL, min_depth=min_depth)
    request.learn_text(text)
    return request.propose(budget)


def pooled_counts(text: list[int], ngram: int, min_depth: int) -> Counter[tuple[int, ...]]:
    """Continuations of all borders, their counts added, by scanning the text."""
    pool: Counter[tuple[int, ...]] = Counter()
    for length in range(min_depth, min(ngram, len(text)) + 1):
        border = text[-length:]
        for start in range(len(text) - length):
            if text[start : start + length] == border:
                follows = text[start + length : start + ngram]
                pool.update(tuple(follows[:taken]) for taken in range(1, len(follows) + 1))
    return pool


@given(st.lists(st.integers(0, 3), min_size=1, max_size=60), st.integers(3, 8), st.integers(1, 3), st.integers(2, 40))
@settings(max_examples=100, deadline=None)
def test_the_most_frequent_of_the_pool_are_kept(text: list[int], ngram: int, min_depth: int, budget: int) -> None:
    request = opened(drafts=Drafts.RETRIEVAL, ngram=ngram, min_depth=min_depth)
    request.learn_text(text)
    tree = request.propose(budget)
    tree.check_integrity()
    pool = pooled_counts(text, ngram, min_depth)
    drafted = [path[1:] for path in paths(tree)[1:]]
    assert len(drafted) == min(budget - 1, len(pool))
    assert sorted((pool[path] for path in drafted), reverse=True) == sorted(pool.values(), reverse=True)[: len(drafted)]


def test_retrieval_first_and_coinciding_nodes_count_once() -> None:
    request = quaternary()
    request.learn_text([0, 1, 5, 21, 99, 98, 0, 1, 5, 22, 97, 0, 1])  # 0 1 is followed by 5 twice, then 21 or 22
    tree = request.propose(21)
    tree.check_integrity()
    assert len(tree) == 21
    retrieved = [path for path, source in zip(paths(tree), tree.sources, strict=True) if source == Source.RETRIEVAL]
    assert {(1, 5), (1, 5, 21), (1, 5, 22)} <= set(retrieved)
    assert not {(1, 5), (1, 5, 21), (1, 5, 22)} & {
        path for path, source in zip(paths(tree), tree.sources, strict=True) if source == Source.LOGITS
    }
    order = tree.sources[1:].tolist()
    assert order == sorted(order, key=lambda source: source == Source.LOGITS), "retrieval comes first"


@given(st.lists(st.integers(0, 11), min_size=2, max_size=80), st.integers(2, 64), st.integers(0, 1000))
@settings(max_examples=80, deadline=None)
def test_the_budget_is_always_filled(text: list[int], budget: int, seed: int) -> None:
    """Every token has a row, so there is always something to draft: coincidences must not cost a node."""
    rng = np.random.default_rng(seed)
    request = opened(top_k=4)
    learn_rows(request, {token: rng.permutation(12)[:4].tolist() for token in range(12)})
    request.learn_text(text)
    tree = request.propose(budget)
    tree.check_integrity()
    assert len(tree) == budget


def test_a_row_that_repeats_a_token_makes_no_twins() -> None:
    request = opened(top_k=4)
    learn_rows(request, {0: [1, 1, 0, 1], 1: [0, 0, 1, 1]})
    request.learn_text([0])
    tree = request.propose(40)
    tree.check_integrity()
    assert len(tree) == 40


def test_the_chain_follows_the_longest_match_then_the_table() -> None:
    request = opened(TreeShape.CHAIN, top_k=2, ngram=6)
    request.learn_text([1, 2, 3, 4, 5, 7, 2, 3, 6, 7, 2, 3, 6, 8, 1, 2, 3])
    learn_rows(request, {7: [9, 1], 9: [10, 2], 5: [50, 51]})
    tree = request.propose(8)
    tree.check_integrity()
    # 2 3 was followed by 6 more often, but 1 2 3 matches longer; its n-gram of six ends with 7
    assert paths(tree)[-1] == (3, 4, 5, 7, 9, 10)
    assert tree.sources.tolist() == [Source.ROOT, *[Source.RETRIEVAL] * 3, *[Source.LOGITS] * 2]
    assert paths(request.propose(3))[-1] == (3, 4, 5)


def test_the_chain_takes_the_most_frequent_child() -> None:
    request = opened(TreeShape.CHAIN, drafts=Drafts.RETRIEVAL)
    request.learn_text([1, 2, 5, 0, 1, 2, 4, 0, 1, 2, 5, 0, 1, 2, 6, 1, 2])
    assert paths(request.propose(2))[-1] == (2, 5)


def test_the_chain_fills_the_budget_in_one_path() -> None:
    request = opened(TreeShape.CHAIN, top_k=1)
    learn_rows(request, {token: [(token + 1) % 5] for token in range(5)})
    request.learn_text([3])
    assert paths(request.propose(9))[-1] == (3, 4, 0, 1, 2, 3, 4, 0, 1)


def test_store_continuations_join_the_pool() -> None:
    request = opened()
    request.learn_text([1, 2, 3, 9, 1, 2])
    tree = request.propose(5, [Continuation((3, 4), 5, 2), Continuation((6,), 3, 2)])
    tree.check_integrity()
    named = dict(zip(paths(tree), tree.sources.tolist(), strict=True))
    assert named[2, 3] == Source.RETRIEVAL, "the request's own text claims what both know"
    assert named[2, 3, 4] == Source.STORE and named[2, 6] == Source.STORE
    assert paths(tree)[1] == (2, 3)
    chain = opened(TreeShape.CHAIN)
    chain.learn_text([1, 2])
    tree = chain.propose(4, [Continuation((3, 4), 5, 2), Continuation((6, 7), 9, 2)])
    assert paths(tree)[-1] == (2, 6, 7) and tree.sources.tolist() == [Source.ROOT, Source.STORE, Source.STORE]
