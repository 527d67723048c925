"""A decoding machine made up for tests: true acceptance and true step times are known, nothing is timed."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from racer.budget import BudgetController
from racer.draft.reliability import Reliability
from racer.draft.tree import DraftTree
from racer.pause import DraftPause
from racer.step_curve import StepCurve
from racer.step_time import StepTimes
from racer.types import Source

Floats = NDArray[np.float64]
TrueMs = Callable[[Floats, int], Floats]

NODES = 64
_CHILDREN = 4


def memory_bound(tokens: Floats, requests: int) -> Floats:
    """Flat up to 32 tokens, then linear: a processor or a GPU that waits for its weights."""
    return 20.0 + 0.4 * np.maximum(tokens - 32, 0.0) + 0.5 * (requests - 1)


def compute_bound(tokens: Floats, requests: int) -> Floats:
    """Every token costs."""
    return 10.0 + 2.5 * tokens + 0.5 * (requests - 1)


def steppy(tokens: Floats, requests: int) -> Floats:
    """In blocks of 16 tokens."""
    return 12.0 + 6.0 * np.ceil(tokens / 16) + 0.5 * (requests - 1)


@dataclass(frozen=True)
class Grown:
    """A draft tree, and how likely each of its nodes truly is, by itself and behind its parent."""

    tree: DraftTree
    true: Floats
    conditional: Floats

    def likely(self, least_prob: float) -> Grown:
        """The tree as it grows where nodes that promise less than ``least_prob`` are left out."""
        kept = self.tree.probs >= least_prob
        new, tree = np.cumsum(kept) - 1, self.tree
        parents = np.where(tree.parents[kept] < 0, -1, new[tree.parents[kept]]).astype(np.int32)
        cut = DraftTree(tree.tokens[kept], parents, tree.depths[kept], tree.sources[kept], tree.probs[kept])
        return Grown(cut, self.true[kept], self.conditional[kept])

    def fails(self) -> Grown:
        """The same tree where the model wants something else."""
        nothing = np.zeros(len(self.true))
        nothing[0] = 1.0
        return Grown(self.tree, nothing, np.zeros(len(self.true)))


def grow(rng: np.random.Generator, ease: float, bias: float) -> Grown:
    """A best-first tree whose estimates are the true conditionals to the power of ``bias`` (below 1: optimistic)."""
    heap: list[tuple[float, int, int, float, float, float]] = []
    parents, depths, true, conditional, estimate = [-1], [0], [1.0], [1.0], [1.0]
    offered = 0
    for node in range(NODES - 1):
        rest = 1.0
        for _ in range(_CHILDREN):
            q = rest * float(rng.beta(4 * ease, 4 * (1 - ease)))
            rest -= q
            estimated = estimate[node] * q**bias
            heapq.heappush(heap, (-estimated * 0.85 ** depths[node], offered, node, true[node] * q, q, estimated))
            offered += 1
        _, _, parent, p, q, estimated = heapq.heappop(heap)
        parents.append(parent)
        depths.append(depths[parent] + 1)
        true.append(p)
        conditional.append(q)
        estimate.append(estimated)
    sources = rng.choice([Source.RETRIEVAL, Source.LOGITS], NODES).astype(np.uint8)
    sources[0] = Source.ROOT
    tree = DraftTree(
        np.arange(NODES, dtype=np.int32), np.array(parents, np.int32), np.array(depths, np.int32), sources,
        np.array(estimate, np.float32),
    )  # fmt: skip
    return Grown(tree, np.array(true), np.array(conditional))


def grow_many(bias: float, seed: int = 0, trees: int = 120) -> list[Grown]:
    """Drafts of easy and hard places of a text, a third each of hard, middling and easy."""
    rng = np.random.default_rng(seed)
    return [grow(rng, (0.15, 0.5, 0.85)[i % 3], bias) for i in range(trees)]


def accepted(rng: np.random.Generator, grown: Grown, nodes: int) -> list[int]:
    """The path that the target model takes through the first ``nodes`` nodes."""
    path = [0]
    while True:
        children = np.flatnonzero(grown.tree.parents[:nodes] == path[-1])
        draw, reached = rng.random(), np.cumsum(grown.conditional[children])
        taken = int(np.searchsorted(reached, draw))
        if taken == len(children):
            return path
        path.append(int(children[taken]))


@dataclass(frozen=True)
class Regime:
    """How fast the machine is, how many requests there are, and what their drafts promise."""

    true_ms: TrueMs
    requests: int
    drafts: list[Grown]


@dataclass(frozen=True)
class Outcome:
    """Expected tokens per millisecond over the same drafts: by the controller, and with every fixed tree size.

    What drafting takes is charged to both; a tree of one node takes none.
    """

    rate: float
    fixed: Floats

    @property
    def against_best(self) -> float:
        return self.rate / float(self.fixed.max())

    @property
    def against_plain(self) -> float:
        return self.rate / float(self.fixed[0])


class Machine:
    """Runs a controller through regimes. ``draft_ms``: what proposing takes for each request that does not pause."""

    def __init__(self, curve: StepCurve, seed: int = 1, noise: float = 0.05, draft_ms: float = 0.0) -> None:
        self.reliability = Reliability()
        self.controller = BudgetController(StepTimes(curve), self.reliability, NODES)
        self._rng = np.random.default_rng(seed)
        self._noise = noise
        self._draft_ms = draft_ms
        self._pauses: list[DraftPause] = []

    def run(self, regime: Regime, steps: int) -> Outcome:
        """Decode for ``steps`` steps."""
        tokens = ms = 0.0
        sums, sizes_ms = np.zeros(NODES), regime.true_ms(regime.requests * np.arange(1.0, NODES + 1), regime.requests)
        for _ in range(steps):
            whole = [regime.drafts[i] for i in self._rng.integers(0, len(regime.drafts), regime.requests)]
            limit, least_prob = self.controller.limit, self.controller.least_prob
            drafts = [one.likely(least_prob) for one in whole]
            if len(self._pauses) != regime.requests:
                self._pauses = [DraftPause() for _ in range(regime.requests)]
            limits = [1 if pause.skips() else limit for pause in self._pauses]
            trees = [one.tree.prefix(own) for one, own in zip(drafts, limits, strict=True)]
            sizes, saved_ms = self.controller.choose(trees, paused=limits.count(1))
            for pause, saved, own in zip(self._pauses, saved_ms, limits, strict=True):
                if own > 1:
                    pause.settle(saved, self._draft_ms)
            step_ms = float(regime.true_ms(np.array([float(sum(sizes))]), regime.requests)[0])
            tokens += sum(float(one.true[:size].sum()) for one, size in zip(drafts, sizes, strict=True))
            ms += step_ms + self._draft_ms * sum(own > 1 for own in limits)
            sums += np.sum([one.true.cumsum() for one in whole], axis=0)
            noise = float(self._rng.lognormal(0.0, self._noise))
            self.controller.step_times.observe(sum(sizes), regime.requests, step_ms * noise)
            for one, size in zip(drafts, sizes, strict=True):
                path = np.array(accepted(self._rng, one, size), np.int32)
                self.reliability.observe(one.tree.prefix(size), path)
        drafting_ms = self._draft_ms * regime.requests * (np.arange(NODES) > 0)
        return Outcome(tokens / ms, sums / (steps * (sizes_ms + drafting_ms)))


def measured(true_ms: TrueMs) -> StepCurve:
    """What a start-up measurement of this machine finds."""
    tokens, requests = np.array([1.0, 2, 4, 8, 16, 32, 64, 128, 256, 512]), (1, 4, 16, 64)
    alone = true_ms(tokens, 1)
    extra = [float(true_ms(np.array([64.0]), r)[0] - true_ms(np.array([64.0]), 1)[0]) for r in requests]
    return StepCurve(
        tuple(zip(tokens.tolist(), alone.tolist(), strict=True)),
        tuple(zip(map(float, requests), extra, strict=True)),
    )
