"""Best-first growth against a plain-Python reference that enumerates every path."""

import heapq
from collections import Counter, defaultdict
from dataclasses import dataclass, field

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from racer.config import Drafts, EngineConfig, TreeShape
from racer.draft.drafter import Drafter, RequestDrafts
from racer.draft.logits import LogitsTable
from racer.draft.mixture import (
    FREE_PAIR_ROW,
    FREE_TRIPLE_ROW,
    LATEST_ROW,
    PAIR_ROW,
    PRIOR_ROW,
    MixtureParams,
    default_params,
)
from racer.draft.prior import PriorTable
from racer.draft.sources import Continuation, longest_match
from racer.draft.tree import DraftTree
from racer.draft.trust import StoreTrust
from racer.types import Source

VOCAB, TOP_K = 9, 4
Row = tuple[list[int], list[float]]


@dataclass
class Case:
    """What one request knows, as lists and dicts. ``rows`` and ``free`` are keyed by the last one to three tokens."""

    text: list[int]
    rows: dict[tuple[int, ...], Row]
    prior: list[Row]
    free: dict[tuple[int, ...], Row] = field(default_factory=dict)
    found: list[Continuation] = field(default_factory=list)
    drafts: Drafts = Drafts.RACER
    params: MixtureParams = field(default_factory=default_params)

    def opened(self) -> RequestDrafts:
        free = LogitsTable(TOP_K)
        for key, (tokens, probs) in self.free.items():
            free.update(np.array([key], np.int32), np.array([tokens], np.int32), np.array([probs], np.float32))
        prior = PriorTable(
            np.array([row[0] for row in self.prior], np.int32),
            np.array([row[1] for row in self.prior], np.float32),
            free,
        )
        request = Drafter(EngineConfig(top_k=TOP_K), VOCAB, prior, self.params).open(self.drafts, TreeShape.BEST)
        request.learn_text(self.text)
        for key in sorted(self.rows, key=len, reverse=True):  # a pair's row teaches both tables: single tokens last
            tokens, probs = self.rows[key]
            request.learn_logits([key[-1]], [tokens], [probs], previous=[key[0]] if len(key) == 2 else None)
        return request

    def follows(self, context: list[int]) -> Counter[int]:
        length = len(context)
        ends = range(length, len(self.text))
        return Counter(self.text[end] for end in ends if self.text[end - length : end] == context)

    def pooled(self, path: list[int]) -> Counter[int]:
        pooled: Counter[int] = Counter()
        for one in self.found:
            if list(one.tokens[: len(path)]) == path and len(one.tokens) > len(path):
                pooled[one.tokens[len(path)]] += one.count
        return pooled

    def sources(self, path: list[int]) -> list[tuple[Source, float, dict[int, float]]]:
        """(source, share, distribution) in the order in which they take their share of what is left."""
        listed = [] if self.drafts is Drafts.LOGITS else self.counted(path)
        if self.drafts is Drafts.RETRIEVAL:
            return listed
        context = (*self.text, *path)
        rows = [
            (PAIR_ROW, self.rows.get(context[-2:]) if len(context) > 1 else None),
            (LATEST_ROW, self.row_of(context[-1])),
        ]
        if len(context) > 2:
            rows.append((FREE_TRIPLE_ROW, self.free.get(context[-3:])))
        if len(context) > 1:
            rows.append((FREE_PAIR_ROW, self.free.get(context[-2:])))
        rows.append((PRIOR_ROW, self.prior[context[-1]]))
        for kind, row in rows:
            if row is not None:
                share = float(self.params.row_shares[kind, min(4, int(np.float32(row[1][0]) * 5))])
                listed.append((Source.LOGITS, share, dict(zip(*row, strict=True))))
        return listed

    def row_of(self, token: int) -> Row | None:
        """The latest row behind one token: single rows are learned last, else the last pair that ends with it."""
        if (token,) in self.rows:
            return self.rows[token,]
        pairs = [row for key, row in self.rows.items() if len(key) == 2 and key[-1] == token]
        return pairs[-1] if pairs else None

    def counted(self, path: list[int]) -> list[tuple[Source, float, dict[int, float]]]:
        params, context, listed, seen = self.params, [*self.text, *path], [], 0
        matched = min(longest_match(self.found) + len(path), params.max_match)
        for length in range(params.max_match, params.min_match - 1, -1):
            own = self.follows(context[-length:]) if length <= len(context) else Counter()
            for source, counts in (
                (Source.RETRIEVAL, own),
                (Source.STORE, self.pooled(path) if length == matched else Counter()),
            ):
                total = sum(counts.values())
                if total == 0:
                    continue
                level = 0 if total < 2 else 1 if total < 4 else 2
                share = float(params.ngram_shares[int(len(counts) > 1), length, level])
                if source is Source.STORE:
                    share *= StoreTrust().of(longest_match(self.found))
                if source is Source.RETRIEVAL:
                    if total <= seen:
                        continue
                    share, seen = (params.shorter_share if seen else share), total
                listed.append((source, share, {token: count / total for token, count in counts.items()}))
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
    rows: dict[tuple[int, ...], Row] = {
        (int(token),): row() for token in rng.permutation(VOCAB)[: rng.integers(0, VOCAB)]
    }
    rows |= {(int(rng.integers(VOCAB)), int(rng.integers(VOCAB))): row() for _ in range(rng.integers(0, 40))}
    free = {tuple(rng.integers(0, VOCAB, rng.integers(2, 4)).tolist()): row() for _ in range(rng.integers(0, 80))}
    matched = int(rng.integers(2, 5))
    found = [
        Continuation(tuple(rng.integers(0, VOCAB, rng.integers(1, 5)).tolist()), int(rng.integers(1, 9)), matched)
        for _ in range(rng.integers(0, 5))
    ]
    return Case(text, rows, [row() for _ in range(VOCAB)], free, found, drafts)


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


@given(st.integers(0, 10_000), st.sampled_from([0.01, 0.05, 0.2]))
@settings(max_examples=40, deadline=None)
def test_no_node_is_less_likely_than_asked_for(seed: int, least_prob: float) -> None:
    case = make_case(seed)
    request = case.opened()
    whole = request.propose(1000, case.found)
    likely = whole.probs >= least_prob
    cut = request.propose(1000, case.found, least_prob=least_prob)
    kept = whole.tokens[likely].tolist()  # unlikely nodes leave no room in the whole tree for those that come late
    assert cut.tokens.tolist()[: len(kept)] == kept
    assert (cut.probs >= least_prob).all()
    cut.check_integrity()


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
    params = default_params()
    params.ngram_shares[0, 2] = 0.3
    params.row_shares[LATEST_ROW], params.row_shares[PRIOR_ROW] = 0.5, 0.25
    prior: list[Row] = [([8, 7, 6, 5], [0.4, 0.0, 0.0, 0.0])] * VOCAB
    case = Case([1, 2, 3, 1, 2], {(2,): ([4, 3, 0, 5], [0.5, 0.25, 0.0, 0.0])}, prior, params=params)
    tree = case.opened().propose(4)
    # 3 gets 0.3; left 0.7: 4 gets 0.7*0.5*0.5, 3 adds 0.7*0.5*0.25; left 0.35: 8 gets 0.35*0.25*0.4
    three, four, eight = 0.3 + 0.0875, 0.175, 0.35 * 0.25 * 0.4
    assert paths(tree)[:3] == [(), (3,), (4,)]
    assert tree.probs[:3].tolist() == pytest.approx([1.0, three, four])
    assert tree.sources[:3].tolist() == [Source.ROOT, Source.RETRIEVAL, Source.LOGITS]
    # below 3: 1 2 3 -> 1 and 2 3 -> 1, each once: the longer speaks, with the share of a match of three
    assert paths(tree)[3] == (3, 1)
    assert tree.probs[3] == pytest.approx(three * params.ngram_shares[0, 3, 0])
    assert eight < tree.probs[3] * params.damping


def test_the_draft_follows_its_own_path() -> None:
    """A match may begin in the text and end in the draft: 5 6 is drafted, 6 7 is known, so 7 follows."""
    nothing: list[Row] = [([0, 1, 2, 3], [0.0] * 4)] * VOCAB
    case = Case([1, 5, 6, 7, 2, 3, 5], {(5,): ([6, 0, 1, 2], [0.9, 0.0, 0.0, 0.0])}, nothing)
    tree = case.opened().propose(8)
    assert (6, 7) in paths(tree)
    assert tree.sources[paths(tree).index((6, 7))] == Source.RETRIEVAL


def test_two_tokens_know_more_than_one() -> None:
    nothing: list[Row] = [([0, 1, 2, 3], [0.0] * 4)] * VOCAB
    request = Case([4, 5], {}, nothing).opened()
    request.learn_prompt(
        [4, 5, 7, 5], [[0, 1, 2, 3], [6, 1, 2, 3], [0, 1, 2, 3], [8, 1, 2, 3]], [[0.9, 0.0, 0.0, 0.0]] * 4
    )
    assert paths(request.propose(3)) == [(), (6,), (8,)], "6 followed 4 5; 8 followed the latest 5"


@pytest.mark.parametrize("name", [*MixtureParams._fields])
def test_each_parameter_changes_the_draft(name: str) -> None:
    def drafted(params: MixtureParams) -> bytes:
        trees = []
        for seed in range(20):
            case = make_case(seed)
            case.params = params
            tree = case.opened().propose(24, case.found)
            trees.append(tree.tokens.tobytes() + tree.probs.tobytes())
        return b"".join(trees)

    default = default_params()
    small = {"max_match": 3, "min_match": 3, "scan": 1}
    values = default._asdict() | {name: small[name] if name in small else getattr(default, name) * 0.5}
    assert drafted(default) != drafted(MixtureParams(**values))
