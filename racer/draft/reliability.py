"""How drafted nodes fare against what was promised of them, and what to expect of the next ones."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from racer.draft.tree import DraftTree
from racer.numba import leaf, njit
from racer.types import Source

BUCKETS = 16
"""Classes of estimated probability, half an octave each: above 0.71, 0.5, 0.35, ... and all below 0.0055."""

_SOURCE_PRIOR = 10.0
_BUCKET_PRIOR = 2.0
"""Expected acceptances that a source, and a bucket of it, need before their own ratio counts for half."""

Floats = NDArray[np.float64]


@leaf
def _bucket(prob: float) -> int:
    return min(int(-2.0 * np.log2(prob)), BUCKETS - 1) if prob > 0.0 else BUCKETS - 1


@njit
def _observe(
    expected: Floats,
    accepted: Floats,
    memory: float,
    sources: NDArray[np.uint8],
    probs: NDArray[np.float32],
    path: NDArray[np.int32],
) -> None:
    for node in range(len(probs)):
        source, bucket = sources[node], _bucket(probs[node])
        keep = 1.0 - probs[node] / memory
        expected[source, bucket] = expected[source, bucket] * keep + probs[node]
        accepted[source, bucket] *= keep
    for node in path:
        accepted[sources[node], _bucket(probs[node])] += 1.0


@njit
def _scaled(factors: Floats, sources: NDArray[np.uint8], probs: NDArray[np.float32]) -> Floats:
    scaled = np.empty(len(probs), np.float64)
    for node in range(len(probs)):
        scaled[node] = min(probs[node] * factors[sources[node], _bucket(probs[node])], 1.0)
    return scaled


class Reliability:
    """How often drafted nodes are accepted, against how often they were expected to be; older nodes fade.

    Kept by source and by estimated probability, for drafters misjudge the likely and the unlikely differently. Drafts
    do not depend on it (a request must not notice others): it is for reports and for the budget controller.

    expected, accepted  float64 [sources, BUCKETS]  sums of estimated probabilities, and of accepted nodes. A bucket
    fades as it is seen, not with time: what is not tried for a while is not forgotten.
    """

    def __init__(self, memory: float = 100.0) -> None:
        """Weigh as many of a bucket's latest nodes, roughly, as were to give ``memory`` accepted ones."""
        self._memory = memory
        self.expected = np.zeros((len(Source), BUCKETS))
        self.accepted = np.zeros((len(Source), BUCKETS))

    def observe(self, tree: DraftTree, accepted_nodes: NDArray[np.int32]) -> None:
        """Count one verified tree."""
        _observe(self.expected, self.accepted, self._memory, tree.sources, tree.probs, accepted_nodes)

    def ratio(self, source: Source) -> float:
        """Accepted by expected nodes of ``source``; below 1 it promises too much. 1.0 before any was drafted."""
        expected = float(self.expected[source].sum())
        return float(self.accepted[source].sum()) / expected if expected > 0.0 else 1.0

    def factors(self) -> Floats:
        """What to multiply estimates by, ``[sources, BUCKETS]``.

        A bucket seen seldom follows its source, a source seen seldom its word.
        """
        expected, accepted = self.expected, self.accepted
        source = (accepted.sum(1) + _SOURCE_PRIOR) / (expected.sum(1) + _SOURCE_PRIOR)
        factors: Floats = (accepted + _BUCKET_PRIOR * source[:, None]) / (expected + _BUCKET_PRIOR)
        return factors

    def calibrated(self, sources: NDArray[np.uint8], probs: NDArray[np.float32]) -> Floats:
        """Acceptance probabilities of nodes, float64 [nodes], from the drafters' estimates."""
        return _scaled(self.factors(), sources, probs)
