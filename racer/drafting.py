"""The drafts of a step: which trees to verify for the sequences that decode."""

from __future__ import annotations

import time
from collections.abc import Sequence as SequenceOf

import numpy as np

from racer.budget import BudgetController
from racer.config import Budget, TreeShape
from racer.deadline import LookupDeadline
from racer.draft.sources import Continuation, NgramSource
from racer.draft.tree import DraftTree
from racer.sequence import Sequence

FIXED_BUDGET = 64
"""Nodes of a paper or chain tree where the budget is chosen: these trees are not in order of probability."""

_CONTEXT_FOR_SOURCE = 16
"""Newest tokens of a sequence that an n-gram source gets to see."""


class StepDrafts:
    """Proposes draft trees for a step and cuts them to what pays.

    ``controller`` chooses where the budget is "auto"; None where it never is. ``source``: a shared n-gram store, waited
    as long as ``deadline`` says in each step.
    """

    def __init__(
        self, controller: BudgetController | None, source: NgramSource | None, deadline: LookupDeadline
    ) -> None:
        self._controller = controller
        self._source = source
        self._deadline = deadline

    def propose(
        self, sequences: SequenceOf[Sequence], budget: Budget, prefill_tokens: int, prefilling: int
    ) -> dict[Sequence, DraftTree]:
        """The tree of each of the decoding ``sequences``, as large as ``budget`` and its request allow.

        ``prefill_tokens`` of ``prefilling`` other sequences will be in the same step.
        """
        started = time.perf_counter()
        limits = {sequence: self._limit(sequence, budget) for sequence in sequences}
        found = self._lookup([sequence for sequence, limit in limits.items() if limit > 1])
        controller = self._controller if budget == "auto" else None
        least_prob = controller.least_prob if controller is not None else 0.0
        trees = {
            sequence: _tree(sequence, limit, found.get(sequence, ()), least_prob) for sequence, limit in limits.items()
        }
        if controller is None:
            return trees
        chosen = [sequence for sequence in sequences if _ordered(sequence)]
        fixed = prefill_tokens + sum(len(tree) for sequence, tree in trees.items() if not _ordered(sequence))
        tried = [sequence for sequence in chosen if limits[sequence] > 1]
        sizes, saved_ms = controller.choose(
            [trees[sequence] for sequence in chosen],
            fixed,
            prefilling + len(trees) - len(chosen),
            paused=len(chosen) - len(tried),
        )
        for sequence, size in zip(chosen, sizes, strict=True):
            trees[sequence] = trees[sequence].prefix(size)
        if tried:
            saved = dict(zip(chosen, saved_ms, strict=True))
            taken_ms = (time.perf_counter() - started) * 1e3 / len(tried)
            for sequence in tried:
                sequence.pause.settle(saved[sequence], taken_ms)
        return trees

    def _limit(self, sequence: Sequence, budget: Budget) -> int:
        """Nodes that the sequence's tree may have, root included.

        A draft deeper than what may still be decided is useless, so the last token is decided without one.
        """
        if sequence.drafts is None or sequence.remaining <= 1:
            return 1
        if budget == "auto" and _ordered(sequence) and sequence.pause.skips():
            return 1
        own = sequence.params.budget
        most = self._limit_of_all(_ordered(sequence)) if budget == "auto" else budget
        return most if own is None else min(own, most)

    def _limit_of_all(self, ordered: bool) -> int:
        if self._controller is None:
            return FIXED_BUDGET
        return self._controller.limit if ordered else min(FIXED_BUDGET, self._controller.max_budget)

    def _lookup(self, sequences: list[Sequence]) -> dict[Sequence, list[Continuation]]:
        """What each sequence's source knows; several sources share the time there is."""
        asking: dict[NgramSource, list[Sequence]] = {}
        for sequence in sequences:
            own = sequence.request.source
            source = self._source if own is None else own
            if source is not None:
                asking.setdefault(source, []).append(sequence)
        found: dict[Sequence, list[Continuation]] = {}
        deadline_ms = self._deadline.ms
        for source, group in asking.items():
            contexts = [np.array(sequence.tokens[-_CONTEXT_FOR_SOURCE:], np.int32) for sequence in group]
            found.update(zip(group, source.lookup(contexts, deadline_ms / len(asking)), strict=True))
        return found


def _tree(sequence: Sequence, limit: int, continuations: SequenceOf[Continuation], least_prob: float) -> DraftTree:
    if sequence.drafts is None:
        return DraftTree.root_only(sequence.tokens[-1])
    return sequence.drafts.propose(limit, continuations, max_depth=sequence.remaining - 1, least_prob=least_prob)


def _ordered(sequence: Sequence) -> bool:
    """Any prefix of the sequence's tree is the best tree of that size."""
    return sequence.drafts is None or sequence.drafts.tree is TreeShape.BEST
