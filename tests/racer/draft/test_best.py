"""Best-first growth against a plain-Python reference that enumerates every path."""

import heapq
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from racer.config import Drafts, EngineConfig, TreeShape
from racer.draft.best import BestParams
from racer.draft.drafter import Drafter, RequestDrafts
from racer.draft.prior import PriorTable
from racer.draft.sources import Continuation
from racer.draft.tree import DraftTree
from racer.types import Source

VOCAB, TOP_K = 9, 4
Row = tuple[list[int], list[float]]


@dataclass
class Case:
    """What one request knows, as lists and dicts."""

    text: list[int]
    rows: dict[int, Row]
    prior: list[Row]
    found: list[Continuation] = field(default_factory=list)
    drafts: Drafts = Drafts.RACER
    params: BestParams = field(default_factory=BestParams)

    def opened(self) -> RequestDrafts:
        prior = PriorTable(
            np.array([row[0] for row in self.prior], np.int32), np.array([row[1] for row in self.prior], np.float32)
        )
        request = Drafter(EngineConfig(top_k=TOP_K), VOCAB, prior, self.params).open(self.drafts, TreeShape.BEST)
        request.learn_text(self.text)
        for token, (tokens, probs) in self.rows.items():
            request.learn_logits([token], [tokens], [probs])
        return request

    def follows(self, context: list[int]) -> Counter[int]:
        length = len(context)
        ends = range(length, len(self.text))
        return Counter(self.text[end] for end in ends if self.text[end - length : end] == context)

    def sources(self, path: list[int]) -> list[tuple[Source, float, dict[int, float]]]:
        """(source, share, distribution) in the order in which they take their share of what is left."""
        params, context, listed = self.params, [*self.text, *path], []
        pooled: Counter[int] = Counter()
        for one in self.found:
            if list(one.tokens[: len(path)]) == path and len(one.tokens) > len(path):
                pooled[one.tokens[len(path)]] += one.count
        matched = min(max((one.matched for one in self.found), default=0) + len(path), params.max_match)
        for length in range(params.max_match, 0, -1):
            own = (
                self.follows(context[-length:]) if length <= len(context) and length >= params.min_match else Counter()
            )
            for source, counts in ((Source.RETRIEVAL, own), (Source.STORE, pooled if length == matched else Counter())):
                if counts and (self.drafts is not Drafts.LOGITS):
                    total = sum(counts.values())
                    certainty = min(params.ngram_cap, params.ngram_base + params.ngram_slope * length)
                    share = total / (total + params.ngram_doubt) * certainty
                    listed.append((source, share, {token: count / total for token, count in counts.items()}))
        if self.drafts is not Drafts.RETRIEVAL:
            if context[-1] in self.rows:
                listed.append((Source.LOGITS, params.latest_share, dict(zip(*self.rows[context[-1]], strict=True))))
            listed.append((Source.LOGITS, params.prior_share, dict(zip(*self.prior[context[-1]], strict=True))))
        return listed

    def children(self, path: list[int]) -> dict[int, tuple[float, Source]]:
        """Probability of each next token, and the source that contributes most to it."""
        rest, parts = 1.0, defaultdict(list)
        for source, share, distribution in self.sources(path):
            for token, prob in distribution.items():
                parts[token].append((rest * share * prob, source))
            rest *= 1 - share
        return {
            token: (sum(part[0] for part in given), max(given, key=lambda part: part[0])[1])
            for token, given in parts.items()
        }

    def grown(self, budget: int) -> list[tuple[float, float, tuple[int, ...], Source]]:
        """(damped probability, probability, path, source) of the best nodes, best first."""
        heap: list[tuple[float, int, float, tuple[int, ...], Source]] = [(-1.0, 0, 1.0, (), Source.ROOT)]
        serial, nodes = 0, list[tuple[float, float, tuple[int, ...], Source]]()
        while heap and len(nodes) < budget:
            key, _, prob, path, source = heapq.heappop(heap)
            nodes.append((-key, prob, path, source))
            for token, (conditional, by) in self.children(list(path)).items():
                serial += 1
                if conditional > 0:
                    key_ = key * conditional * self.params.damping
                    heapq.heappush(heap, (key_, serial, prob * conditional, (*path, token), by))
        return nodes


def paths(tree: DraftTree) -> list[tuple[int, ...]]:
    """Paths below the root."""
    found: list[tuple[int, ...]] = []
    for node in range(len(tree)):
        parent = int(tree.parents[node])
        found.append((*found[parent], int(tree.tokens[node])) if parent >= 0 else ())
    return found


def make_case(seed: int, drafts: Drafts = Drafts.RACER) -> Case:
    rng = np.random.default_rng(seed)

    def row() -> Row:
        probs = -np.sort(-rng.dirichlet([0.5] * (TOP_K + 1)))[:TOP_K]
        return rng.permutation(VOCAB)[:TOP_K].tolist(), probs.tolist()

    text = rng.integers(0, int(rng.integers(2, VOCAB + 1)), int(rng.integers(1, 60))).tolist()
    rows = {int(token): row() for token in rng.permutation(VOCAB)[: rng.integers(0, VOCAB + 1)]}
    matched = int(rng.integers(2, 5))
    found = [
        Continuation(tuple(rng.integers(0, VOCAB, rng.integers(1, 5)).tolist()), int(rng.integers(1, 9)), matched)
        for _ in range(rng.integers(0, 5))
    ]
    return Case(text, rows, [row() for _ in range(VOCAB)], found, drafts)


@given(st.integers(0, 10_000), st.integers(2, 40), st.sampled_from([Drafts.RACER, Drafts.RETRIEVAL, Drafts.LOGITS]))
@settings(max_examples=120, deadline=None)
def test_the_most_likely_nodes_in_order(seed: int, budget: int, drafts: Drafts) -> None:
    case = make_case(seed, drafts)
    tree = case.opened().propose(budget, case.found)
    tree.check_integrity()
    expected = case.grown(budget)
    assert len(tree) == len(expected)
    damped = tree.probs * np.float32(case.params.damping) ** tree.depths
    assert damped == pytest.approx([node[0] for node in expected], rel=1e-4)
    assert (np.diff(damped) <= 1e-6).all(), "most likely first"
    by_path = {node[2]: node for node in case.grown(4 * budget)}
    for path, prob in zip(paths(tree), tree.probs, strict=True):
        assert prob == pytest.approx(by_path[path][1], rel=1e-4)


@given(st.integers(0, 10_000))
@settings(max_examples=60, deadline=None)
def test_a_node_is_credited_to_its_largest_contribution(seed: int) -> None:
    case = make_case(seed)
    tree = case.opened().propose(24, case.found)
    for path, source in list(zip(paths(tree), tree.sources.tolist(), strict=True))[1:]:
        largest: dict[int, float] = defaultdict(float)
        rest = 1.0
        for by, share, distribution in case.sources(list(path[:-1])):
            largest[by] = max(largest[by], rest * share * distribution.get(path[-1], 0.0))
            rest *= 1 - share
        assert largest[source] == pytest.approx(max(largest.values()), rel=1e-4)


@given(st.integers(0, 10_000), st.integers(2, 30))
@settings(max_examples=40, deadline=None)
def test_any_prefix_is_the_best_tree_of_that_size(seed: int, budget: int) -> None:
    case = make_case(seed)
    request = case.opened()
    whole = request.propose(30, case.found)
    part = request.propose(budget, case.found)
    for name in ("tokens", "parents", "depths", "sources", "probs"):
        assert np.array_equal(getattr(part, name), getattr(whole, name)[: len(part)])


@given(st.integers(0, 10_000))
@settings(max_examples=40, deadline=None)
def test_siblings_share_at_most_their_parents_probability(seed: int) -> None:
    case = make_case(seed)
    tree = case.opened().propose(60, case.found)
    total = np.zeros(len(tree))
    np.add.at(total, tree.parents[1:], tree.probs[1:])
    assert (total <= tree.probs * (1 + 1e-5)).all()


def test_values_by_hand() -> None:
    """Text 1 2 3 1 2: the match 1 2 was followed by 3 once; then the latest row of 2; then the prior."""
    params = BestParams(
        max_match=2, min_match=2, ngram_doubt=1.0, ngram_base=0.2, ngram_slope=0.2, ngram_cap=0.9,
        latest_share=0.5, prior_share=0.25, damping=0.8,
    )  # fmt: skip
    prior: list[Row] = [([8, 7, 6, 5], [0.4, 0.0, 0.0, 0.0])] * VOCAB
    case = Case([1, 2, 3, 1, 2], {2: ([4, 3, 0, 5], [0.5, 0.25, 0.0, 0.0])}, prior, params=params)
    tree = case.opened().propose(4)
    # 1 2 -> 3: 1/(1+1) * (0.2+0.2*2) = 0.3; left 0.7: 4 gets 0.7*0.5*0.5, 3 adds 0.7*0.5*0.25; left 0.35: 8
    three, four, eight = 0.3 + 0.0875, 0.175, 0.35 * 0.25 * 0.4
    assert paths(tree)[:3] == [(), (3,), (4,)]
    assert tree.probs[:3].tolist() == pytest.approx([1.0, three, four])
    assert tree.sources[:3].tolist() == [Source.ROOT, Source.RETRIEVAL, Source.LOGITS]
    # below 3: 2 3 -> 1 once (0.3), nothing latest, prior (0.7 * 0.25 * 0.4 for 8)
    assert paths(tree)[3] == (3, 1) and tree.probs[3] == pytest.approx(three * 0.3)
    assert eight < three * 0.3 * 0.8


def test_the_draft_follows_its_own_path() -> None:
    """A match may begin in the text and end in the draft: 5 6 is drafted, 6 7 is known, so 7 follows."""
    case = Case([1, 5, 6, 7, 2, 3, 5], {5: ([6, 0, 1, 2], [0.9, 0.0, 0.0, 0.0])}, [([0, 1, 2, 3], [0.0] * 4)] * VOCAB)
    tree = case.opened().propose(8)
    assert (6, 7) in paths(tree)
    assert tree.sources[paths(tree).index((6, 7))] == Source.RETRIEVAL


@pytest.mark.parametrize(
    "changed",
    [
        {"max_match": 3}, {"min_match": 3}, {"ngram_doubt": 5.0}, {"ngram_base": 0.1}, {"ngram_slope": 0.02},
        {"ngram_cap": 0.3}, {"latest_share": 0.2}, {"prior_share": 0.1}, {"damping": 0.3}, {"scan": 1},
    ],
)  # fmt: skip
def test_each_parameter_changes_the_draft(changed: dict[str, Any]) -> None:
    def drafted(params: BestParams) -> bytes:
        trees = []
        for seed in range(20):
            case = make_case(seed)
            case.params = params
            tree = case.opened().propose(24, case.found)
            trees.append(tree.tokens.tobytes() + tree.probs.tobytes())
        return b"".join(trees)

    assert drafted(BestParams()) != drafted(BestParams()._replace(**changed))
