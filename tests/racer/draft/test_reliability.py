"""Calibration: what was promised against what was accepted, by source and by size of the promise."""

from __future__ import annotations

import numpy as np
import pytest

from racer.draft.reliability import Reliability
from racer.draft.tree import DraftTree
from racer.types import Source


def tree(probs: list[float], source: Source) -> DraftTree:
    """A root with children of these estimated probabilities."""
    n = len(probs) + 1
    parents = np.zeros(n, np.int32)
    parents[0] = -1
    sources = np.array([Source.ROOT, *[source] * (n - 1)], np.uint8)
    return DraftTree(
        np.arange(n, dtype=np.int32), parents, (parents + 1).clip(0, 1), sources, np.array([1.0, *probs], np.float32)
    )


def test_estimates_become_what_is_accepted() -> None:
    """Retrieval promises 0.8 and keeps 0.4; it promises 0.1 and keeps 0.2; logits keep what they promise."""
    rng, reliability = np.random.default_rng(0), Reliability()
    for _ in range(1500):
        for source, chances in ((Source.RETRIEVAL, (0.4, 0.2)), (Source.LOGITS, (0.8, 0.1))):
            draw = rng.random()
            path = [0, 1] if draw < chances[0] else [0, 2] if draw < sum(chances) else [0]
            reliability.observe(tree([0.8, 0.1], source), np.array(path, np.int32))
    probs = np.array([0.8, 0.1, 0.8, 0.1], np.float32)
    sources = np.repeat(np.array([Source.RETRIEVAL, Source.LOGITS], np.uint8), 2)
    assert reliability.calibrated(sources, probs).tolist() == pytest.approx([0.4, 0.2, 0.8, 0.1], rel=0.2)


def test_a_change_is_followed_and_what_is_not_tried_is_not_forgotten() -> None:
    reliability, hit, miss = Reliability(memory=50), np.array([0, 1], np.int32), np.array([0], np.int32)
    likely, unlikely = tree([0.8], Source.LOGITS), tree([0.1], Source.LOGITS)
    for _ in range(300):
        reliability.observe(unlikely, miss)
    before = reliability.accepted[Source.LOGITS].sum(), reliability.expected[Source.LOGITS].copy()
    for _ in range(400):
        reliability.observe(likely, hit)
    assert reliability.calibrated(likely.sources[1:], likely.probs[1:])[0] > 0.95
    for _ in range(400):
        reliability.observe(likely, miss)
    assert reliability.calibrated(likely.sources[1:], likely.probs[1:])[0] < 0.05
    assert before[0] == 0.0 and reliability.expected[Source.LOGITS][before[1] > 0] == pytest.approx(before[1].max())


def test_nothing_known_changes_nothing_and_no_probability_exceeds_one() -> None:
    probs, sources = np.array([1.0, 0.5, 0.001, 0.0], np.float32), np.full(4, Source.STORE, np.uint8)
    reliability = Reliability()
    assert reliability.calibrated(sources, probs).tolist() == pytest.approx(probs.tolist())
    for _ in range(200):
        reliability.observe(tree([0.5], Source.STORE), np.array([0, 1], np.int32))
    assert reliability.calibrated(sources, probs).max() == 1.0


@pytest.mark.parametrize("nodes", [1, 2, 3, 9])
def test_a_prefix_of_a_tree_is_a_tree(nodes: int) -> None:
    whole = tree([0.5, 0.3, 0.1], Source.LOGITS)
    part = whole.prefix(nodes)
    part.check_integrity()
    assert len(part) == min(nodes, 4) and part.tokens.tolist() == whole.tokens[:nodes].tolist()
