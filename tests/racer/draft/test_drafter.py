"""The facade: what each mode may draft from, bounds, independence of requests, memory."""

from typing import Any

import numpy as np
import psutil
import pytest

from racer.config import Drafts, EngineConfig, TreeShape
from racer.draft import automaton, best, frontier, logits, mixture, paper, sources
from racer.draft.drafter import BEST_MAX_NODES, Drafter, RequestDrafts
from racer.draft.prior import PriorTable
from racer.draft.sources import Continuation
from racer.draft.tree import DraftTree
from racer.types import Source

VOCAB, TOP_K = 500, 8
SHAPES, MODES = list(TreeShape), [mode for mode in Drafts if mode is not Drafts.OFF]
FOUND = [Continuation((400, 401, 402), 3, 2), Continuation((400, 403), 1, 2)]


def prior_table(vocab: int = VOCAB, seed: int = 5) -> PriorTable:
    rng = np.random.default_rng(seed)
    probs = -np.sort(-rng.dirichlet([0.3] * (TOP_K + 4), vocab).astype(np.float32), axis=1)[:, :TOP_K]
    tokens = np.stack([rng.permutation(vocab)[:TOP_K] for _ in range(vocab)]).astype(np.int32)
    return PriorTable(tokens, np.ascontiguousarray(probs))


PRIOR = prior_table()


def drafter(prior: PriorTable | None = PRIOR, vocab: int = VOCAB, **settings: Any) -> Drafter:
    return Drafter(EngineConfig(**settings), vocab, prior)


def teach(request: RequestDrafts, seed: int = 0, length: int = 300) -> RequestDrafts:
    rng = np.random.default_rng(seed)
    text = np.minimum(rng.zipf(1.4, length), 90)
    request.learn_text(text)
    seen = rng.integers(0, 60, 80)
    probs = -np.sort(-rng.dirichlet([0.3] * TOP_K, len(seen)), axis=1)
    request.learn_logits(seen, np.stack([100 + rng.permutation(90)[:TOP_K] for _ in seen]), probs)
    return request


def equal(one: DraftTree, other: DraftTree) -> bool:
    return all(
        np.array_equal(getattr(one, name), getattr(other, name))
        for name in ("tokens", "parents", "depths", "sources", "probs")
    )


@pytest.mark.parametrize("tree", SHAPES)
@pytest.mark.parametrize("drafts", MODES)
def test_each_mode_drafts_from_its_own_sources(drafts: Drafts, tree: TreeShape) -> None:
    request = teach(drafter().open(drafts, tree))
    request.learn_text([1, 2])
    sources = set(request.propose(200, FOUND).sources[1:].tolist())
    allowed = {
        Drafts.RACER: {Source.RETRIEVAL, Source.LOGITS, Source.STORE},
        Drafts.RETRIEVAL: {Source.RETRIEVAL, Source.STORE},
        Drafts.LOGITS: {Source.LOGITS},
    }[drafts]
    assert sources <= allowed
    assert sources == allowed or tree is TreeShape.CHAIN, "a large tree uses all it may"


@pytest.mark.parametrize("tree", SHAPES)
def test_off_is_plain_decoding(tree: TreeShape) -> None:
    request = teach(drafter().open(Drafts.OFF, tree))
    request.learn_text([7])
    assert equal(request.propose(64, FOUND), DraftTree.root_only(7))


@pytest.mark.parametrize("tree", SHAPES)
@pytest.mark.parametrize("budget", [-3, 0, 1, 2, 3, 16, 100, 1024])
def test_never_more_than_the_budget(tree: TreeShape, budget: int) -> None:
    request = teach(drafter().open(Drafts.RACER, tree))
    tree_ = request.propose(budget, FOUND)
    tree_.check_integrity()
    assert 1 <= len(tree_) <= max(1, budget)
    assert tree_.tokens[0] == request.root and tree_.probs[0] == 1.0 and tree_.sources[0] == Source.ROOT
    if tree is TreeShape.BEST and budget <= 100:
        assert len(tree_) == max(1, budget), "the prior alone fills such a budget"


@pytest.mark.parametrize("tree", SHAPES)
@pytest.mark.parametrize("max_depth", [0, 1, 2, 5])
def test_paths_are_no_longer_than_asked(tree: TreeShape, max_depth: int) -> None:
    request = teach(drafter().open(Drafts.RACER, tree))
    grown = request.propose(64, FOUND, max_depth=max_depth)
    grown.check_integrity()
    assert grown.depths.max() == max_depth
    if max_depth == 0:
        assert len(grown) == 1


@pytest.mark.parametrize("tree", SHAPES)
@pytest.mark.parametrize("drafts", MODES)
def test_nothing_known_drafts_nothing(drafts: Drafts, tree: TreeShape) -> None:
    request = drafter(prior=None).open(drafts, tree)
    with pytest.raises(ValueError, match="learn_text first"):
        request.propose(8)
    request.learn_text([3])
    assert equal(request.propose(32), DraftTree.root_only(3))


@pytest.mark.parametrize("tree", SHAPES)
def test_tokens_off_the_vocabulary_are_never_drafted(tree: TreeShape) -> None:
    """A padded embedding, a multimodal placeholder, a store that serves another tokenizer, a damaged row."""
    request = drafter(prior=prior_table(VOCAB), vocab=100).open(Drafts.RACER, tree)
    request.learn_text([1, 2, 150, 3, 1, 2, 150, 3, 1, 2, 99, 1, 2])
    request.learn_logits([2, 99, 150], [[700, -1, 5], [100, 99, 98], [1, 2, 3]], [[0.5, 0.3, 0.1]] * 3)
    grown = request.propose(
        200, [Continuation((100,), 9, 2), Continuation((-7, 5), 9, 2), Continuation((7, 2**30), 5, 2)]
    )
    grown.check_integrity()
    assert len(grown) > 3 and grown.tokens.max() < 100 and grown.tokens.min() >= 0


@pytest.mark.parametrize("tree", SHAPES)
def test_a_key_with_500_continuations(tree: TreeShape) -> None:
    request = drafter(prior=None).open(Drafts.RACER, tree)
    request.learn_text([1, 2, 3])
    found = [Continuation((10 + i % 400, 20 + i % 300, i % 97, 5), 1 + i % 7, 3) for i in range(500)]
    grown = request.propose(16, found)
    grown.check_integrity()
    assert len(grown) == (5 if tree is TreeShape.CHAIN else 16)
    assert set(grown.sources[1:].tolist()) == {Source.STORE}


@pytest.mark.parametrize("tree", SHAPES)
def test_proposing_changes_nothing(tree: TreeShape) -> None:
    """A step whose whole tree is rejected leaves the drafts as they were."""
    request = teach(drafter().open(Drafts.RACER, tree))
    first = request.propose(48, FOUND)
    request.propose(7)
    assert equal(first, request.propose(48, FOUND))


@pytest.mark.parametrize("tree", SHAPES)
def test_text_learned_in_pieces_is_the_same_text(tree: TreeShape) -> None:
    text = np.minimum(np.random.default_rng(3).zipf(1.3, 2000), 90)
    whole, pieces = drafter().open(Drafts.RETRIEVAL, tree), drafter().open(Drafts.RETRIEVAL, tree)
    whole.learn_text(text)
    for start in range(0, len(text), 7):
        pieces.learn_text(text[start : start + 7].tolist())
        pieces.learn_text([])
    assert equal(whole.propose(64), pieces.propose(64))


@pytest.mark.parametrize("tree", SHAPES)
def test_a_short_request_after_a_long_one_drafts_as_on_a_fresh_server(tree: TreeShape) -> None:
    used, fresh = drafter(), drafter()
    long = used.open(Drafts.RACER, tree)
    teach(long, seed=1, length=20_000)
    long.propose(64)
    after, first = teach(used.open(Drafts.RACER, tree), seed=2), teach(fresh.open(Drafts.RACER, tree), seed=2)
    assert equal(after.propose(64), first.propose(64))


def test_requests_do_not_share_what_they_learn() -> None:
    shared = drafter()
    one, other = shared.open(), shared.open()
    teach(one, seed=1)
    other.learn_text([3])
    assert equal(other.propose(20), _alone([3]).propose(20))


def _alone(text: list[int]) -> RequestDrafts:
    request = drafter().open()
    request.learn_text(text)
    return request


def test_the_prior_is_for_the_best_tree_and_can_be_switched_off() -> None:
    for request, nodes in (
        (drafter().open(Drafts.RACER, TreeShape.BEST), 16),
        (drafter(prior=None).open(Drafts.RACER, TreeShape.BEST), 1),
        (Drafter(EngineConfig(prior=False), VOCAB, PRIOR).open(Drafts.RACER, TreeShape.BEST), 1),
        (drafter().open(Drafts.RACER, TreeShape.PAPER), 1),
        (drafter().open(Drafts.RETRIEVAL, TreeShape.BEST), 1),
    ):
        request.learn_text([3])
        assert len(request.propose(16)) == nodes


def test_the_configured_source_and_shape_are_the_default() -> None:
    request = drafter(drafts="logits", tree="chain").open()
    assert (request.drafts, request.tree) == (Drafts.LOGITS, TreeShape.CHAIN)


def test_settings_reach_the_automaton() -> None:
    request = drafter(ngram=4, max_automaton_nodes=100).open(Drafts.RACER, TreeShape.PAPER)
    teach(request, length=2000)
    assert (request.automaton.ngram, len(request.automaton)) == (4, 99)


@pytest.mark.parametrize("kind", ["list", "int64", "read-only", "strided"])
def test_arrays_of_any_kind_are_taken(kind: str) -> None:
    text = np.array([1, 2, 3, 1, 2], np.int32)
    tops, probs = np.array([[4, 5, 6, 7]] * 3, np.int32), np.array([[0.4, 0.3, 0.2, 0.1]] * 3, np.float32)
    expected = drafter().open()
    expected.learn_text(text)
    expected.learn_logits(text[:3], tops, probs)

    def converted(array: np.ndarray) -> Any:
        if kind == "list":
            return array.tolist()
        if kind == "int64":
            return array.astype(np.int64 if array.dtype == np.int32 else np.float64)
        if kind == "strided":
            return np.repeat(array, 2, axis=-1)[..., ::2]
        array = array.copy()
        array.flags.writeable = False
        return array

    request = drafter().open()
    request.learn_text(converted(text))
    request.learn_logits(converted(text[:3]), converted(tops), converted(probs))
    assert equal(request.propose(20), expected.propose(20))


def test_nothing_is_compiled_after_the_warm_up() -> None:
    """A kernel that compiles while requests run would hold all of them up for seconds."""
    shared = drafter()
    shared.warm_up()

    def compiled() -> dict[str, int]:
        modules = (automaton, best, frontier, logits, mixture, paper, sources)
        kernels = [(module.__name__, name, value) for module in modules for name, value in vars(module).items()]
        return {
            f"{where}.{name}": len(value.signatures) for where, name, value in kernels if hasattr(value, "signatures")
        }

    before = compiled()
    for tree in SHAPES:
        for drafts in MODES:
            for length in (3, 2000):
                request = teach(shared.open(drafts, tree), length=length)
                request.learn_prompt(list(range(300)), np.zeros((300, 8)), np.zeros((300, 8)))
                grown = request.propose(16, FOUND)
                request.feedback(grown, [0])
                request.learn_tree(grown, (0,), np.zeros((len(grown), 9), np.int64), np.ones((len(grown), 9)))
                request.propose(2, max_depth=1)
    assert compiled() == before
    assert before["racer.draft.best.grow_best"] >= 1


def resident_bytes() -> int:
    return int(psutil.Process().memory_info().rss)


def test_memory_levels_off_over_50_000_requests() -> None:
    shared = drafter()
    levels = []
    for i in range(50_000):
        request = shared.open()
        request.learn_text([i % VOCAB, (i * 7) % VOCAB, (i * 13) % VOCAB])
        request.learn_logits([i % VOCAB], PRIOR.tokens[:1], PRIOR.probs[:1])
        request.feedback(request.propose(8), [0])
        if i % 10_000 == 9_999:
            levels.append(resident_bytes())
    assert levels[-1] - levels[0] < 4 << 20, levels


@pytest.mark.parametrize("tree", SHAPES)
def test_a_very_long_text_is_bounded_and_still_drafts(tree: TreeShape) -> None:
    vocab = 40_000
    request = drafter(prior=None, vocab=vocab).open(Drafts.RACER, tree)
    text = np.random.default_rng(0).integers(0, vocab, 30_000)
    request.learn_text(text)
    request.learn_text(text[-3:])
    cap = BEST_MAX_NODES if tree is TreeShape.BEST else 10_000
    assert len(request.automaton) == cap - 1
    assert request.automaton.nodes.nbytes <= cap * 40
    grown = request.propose(32)
    grown.check_integrity()
    assert request.automaton.count(tuple(text[-3:].tolist())) == 2


def test_learning_a_tree_lets_accepted_rows_win_and_knows_what_stood_before() -> None:
    request = drafter(prior=None).open(Drafts.LOGITS, TreeShape.BEST)
    request.learn_text([8, 1])
    request.learn_prompt([8, 1], [[1, 2], [2, 3]], [[0.6, 0.3], [0.6, 0.3]])
    tree = request.propose(3)
    assert tree.tokens.tolist() == [1, 2, 3]
    twice = DraftTree(np.array([1, 2, 2], np.int32), np.array([-1, 0, 1], np.int32), np.arange(3, dtype=np.int32),
                      tree.sources, tree.probs)  # fmt: skip
    request.learn_text([2, 9])
    request.learn_tree(twice, [0, 1], [[20, 0], [21, 0], [22, 0]], [[0.9, 0.0]] * 3)
    for key, top in (((2,), 21), ((1, 2), 21), ((2, 2), 22), ((1,), 20), ((8, 1), 20)):
        row = (request.latest if len(key) == 1 else request.pairs).get(*key)
        assert row is not None and row[0][0] == top, key
    assert request.pairs.get(9, 1) is None
    with pytest.raises(ValueError, match="2 rows for a tree of 3 nodes"):
        request.learn_tree(twice, [0], [[1], [2]], [[0.5], [0.5]])


def test_feedback_compares_accepted_with_expected() -> None:
    shared = drafter(prior=None)
    reliability = shared.reliability[TreeShape.PAPER]
    request = shared.open(Drafts.LOGITS, TreeShape.PAPER)
    assert reliability.ratio(Source.LOGITS) == 1.0
    request.learn_text([1])
    request.learn_logits([1, 2], [[2, 3], [4, 5]], [[0.5, 0.25], [0.5, 0.25]])
    tree = request.propose(5)
    assert tree.tokens.tolist() == [1, 2, 3, 4, 5] and tree.probs.sum() == pytest.approx(1 + 0.75 + 0.375)
    request.feedback(tree, [0, 1])
    assert reliability.ratio(Source.LOGITS) == pytest.approx(1 / 1.125, rel=1e-2)
    assert reliability.ratio(Source.RETRIEVAL) == 1.0
    request.feedback(tree, [0])
    assert reliability.ratio(Source.LOGITS) == pytest.approx(0.5 / 1.125, rel=1e-2)


@pytest.mark.parametrize("tree", SHAPES)
@pytest.mark.parametrize("steps", [5, 200])
def test_a_pause_of_drafting_forgets_nothing(tree: TreeShape, steps: int) -> None:
    """What steps without drafts decided and said counts in the next tree as if each had been taken in at once."""
    own, rng = drafter(), np.random.default_rng(2)
    paused, eager = (teach(own.open(Drafts.RACER, tree)) for _ in range(2))
    for _ in range(steps):
        root, before = eager.root, int(eager._tail[-2])
        tops, probs = rng.permutation(VOCAB)[None, :TOP_K], -np.sort(-rng.dirichlet([0.3] * TOP_K, 1), axis=1)
        paused.learn_tree(paused.propose(1), [0], tops, probs)
        eager.learn_logits([root], tops, probs, previous=[before])
        token = int(rng.integers(0, 90))
        for request in (paused, eager):
            request.learn_text([token])
        assert eager.automaton.count((root, token)) > 0  # taken in at once
    assert equal(paused.propose(60, FOUND), eager.propose(60, FOUND))
