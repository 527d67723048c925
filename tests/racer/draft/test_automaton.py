"""The automaton against plain-Python models: counts without eviction, counts and recency with it."""

from collections import Counter, OrderedDict

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from racer.draft.automaton import COLUMNS, Automaton, live_state

Ngram = tuple[int, ...]


def ints(values: list[int] | range) -> np.ndarray:
    return np.array(values, np.int32)


def held(automaton: Automaton) -> dict[Ngram, int]:
    """All n-grams in the automaton and their counts, by walking parents."""
    grams: dict[int, Ngram] = {0: ()}

    def gram(node: int) -> Ngram:
        if node not in grams:
            grams[node] = (*gram(int(automaton.nodes[node, 1])), int(automaton.nodes[node, 0]))
        return grams[node]

    return {gram(node): int(automaton.nodes[node, 2]) for node in range(1, len(automaton) + 1)}


def counted(text: list[int], ngram: int) -> Counter[Ngram]:
    return Counter(
        tuple(text[end - length : end]) for end in range(1, len(text) + 1) for length in range(1, min(ngram, end) + 1)
    )


class Model:
    """What the automaton should hold: n-grams in order of their last touch, and its suffix states."""

    def __init__(self, ngram: int, max_nodes: int) -> None:
        self.ngram, self.room = ngram, max_nodes - 1  # one row is the root
        self.grams: OrderedDict[Ngram, list[int]] = OrderedDict()
        self.states: list[tuple[Ngram, list[int]] | None] = [None] * ngram

    def touch(self, gram: Ngram) -> None:
        for length in range(len(gram), 0, -1):
            self.grams.move_to_end(gram[:length])

    def evict(self, spared: Ngram) -> None:
        if next(iter(self.grams)) == spared:
            self.touch(spared)
        oldest, _ = self.grams.popitem(last=False)
        assert not any(gram[: len(oldest)] == oldest for gram in self.grams), "an inner node was evicted"

    def learn(self, token: int) -> None:
        new: list[tuple[Ngram, list[int]] | None] = [None] * self.ngram
        for length in range(self.ngram - 1, -1, -1):
            state = self.states[length - 1] if length else ((), [])
            if state is None or (length and self.grams.get(state[0]) is not state[1]):
                continue
            gram = (*state[0], token)
            if gram not in self.grams:
                if len(self.grams) == self.room:
                    self.evict(state[0])
                self.grams[gram] = [0]
            self.grams[gram][0] += 1
            self.touch(gram)
            new[length] = (gram, self.grams[gram])
        self.states = new


@given(st.lists(st.integers(0, 3), max_size=120), st.integers(2, 8), st.integers(1, 40))
@settings(max_examples=60, deadline=None)
def test_counts_equal_a_counter(text: list[int], ngram: int, cut: int) -> None:
    automaton = Automaton(ngram, 100_000)
    automaton.learn(ints(text[:cut]))
    automaton.learn(ints(text[cut:]))
    automaton.check_integrity()
    assert held(automaton) == counted(text, ngram)


@given(st.lists(st.integers(0, 9), min_size=30, max_size=200), st.integers(2, 6), st.integers(8, 60))
@settings(max_examples=80, deadline=None)
def test_eviction_follows_the_model(text: list[int], ngram: int, max_nodes: int) -> None:
    automaton, model = Automaton(ngram, max_nodes), Model(ngram, max_nodes)
    for token in text:
        automaton.learn(ints([token]))
        model.learn(token)
    automaton.check_integrity()
    assert held(automaton) == {gram: count[0] for gram, count in model.grams.items()}


def test_counts_survive_growth_and_token_ids_of_any_size() -> None:
    rng = np.random.default_rng(1)
    text = (rng.zipf(1.3, 3000) % 1_000_003 + (1 << 30)).astype(np.int32)
    automaton = Automaton(5, 1 << 20)
    automaton.learn(text)
    automaton.check_integrity()
    assert held(automaton) == counted(text.tolist(), 5)


def test_suffix_states_are_the_failure_chain() -> None:
    automaton = Automaton(4, 1000)
    automaton.learn(ints([1, 2, 3, 1, 2]))
    nodes = [live_state(automaton.nodes, automaton.states, length) for length in range(5)]
    grams = held(automaton)
    by_node = {node: gram for gram, node in ((gram, _node(automaton, gram)) for gram in grams)}
    assert [by_node.get(node, ()) for node in nodes] == [(), (2,), (1, 2), (3, 1, 2), (2, 3, 1, 2)]


def _node(automaton: Automaton, gram: Ngram) -> int:
    for node in range(1, len(automaton) + 1):
        path, at = [], node
        while at:
            path.append(int(automaton.nodes[at, 0]))
            at = int(automaton.nodes[at, 1])
        if tuple(reversed(path)) == gram:
            return node
    raise AssertionError(gram)


def test_the_least_recently_touched_leaf_goes_first() -> None:
    automaton = Automaton(2, 8)  # root and seven n-grams
    automaton.learn(ints([1, 2, 3, 4]))  # 1 2 3 4, 12 23 34
    automaton.learn(ints([2]))  # adds 42: the leaf touched least recently is 12, its prefix 1 is touched later
    assert held(automaton) == {(1,): 1, (2,): 2, (3,): 1, (4,): 1, (2, 3): 1, (3, 4): 1, (4, 2): 1}
    automaton.learn(ints([5]))  # adds 25 and 5: now 1 is a leaf and goes, then 23 (2 is its prefix and stays)
    assert held(automaton) == {(2,): 2, (3,): 1, (4,): 1, (5,): 1, (3, 4): 1, (4, 2): 1, (2, 5): 1}


def test_an_evicted_state_is_seen_as_absent() -> None:
    automaton = Automaton(6, 9)  # fewer rows than the suffix states and their prefixes need
    for token in np.random.default_rng(2).integers(0, 50, 400):
        automaton.learn(ints([int(token)]))
        automaton.check_integrity()
        for length in range(1, 7):
            node = live_state(automaton.nodes, automaton.states, length)
            assert node == -1 or automaton.nodes[node, 0] == token


@pytest.mark.parametrize("max_nodes", [64, 1000])
def test_memory_is_bounded_whatever_the_text(max_nodes: int) -> None:
    automaton = Automaton(10, max_nodes)
    automaton.learn(np.random.default_rng(3).integers(0, 50_000, 30_000).astype(np.int32))
    assert len(automaton) == max_nodes - 1
    assert automaton.nodes.shape == (max_nodes, COLUMNS)
    assert automaton.slots.size <= 4 * max_nodes
    automaton.check_integrity()


def test_nothing_learned() -> None:
    automaton = Automaton(3, 100)
    automaton.learn(ints([]))
    assert len(automaton) == 0
    assert automaton.count((1,)) == 0
    automaton.check_integrity()
