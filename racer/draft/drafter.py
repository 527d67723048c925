"""The drafter: what the engine asks for draft trees.

One :class:`Drafter` serves an engine; one :class:`RequestDrafts` serves a choice of a request, is opened with it and
dropped with it. What it drafts depends on that request's own text and logits, on the prior table, and on the
continuations it is handed, on nothing else.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

from racer.config import Drafts, EngineConfig, TreeShape
from racer.draft.automaton import Automaton
from racer.draft.best import BestParams, grow_best
from racer.draft.known import Arrays, Limits, PriorView
from racer.draft.logits import LogitsTable
from racer.draft.paper import grow_chain, grow_paper
from racer.draft.prior import PriorTable
from racer.draft.sources import Continuation, pool
from racer.draft.tree import DraftTree

BEST_MAX_NODES = 1 << 16
"""Automaton nodes a request may keep with the best-first tree, 40 bytes each: some 15,000 tokens of text."""

_ENDLESS = 1 << 30


class Drafter:
    """Opens the drafts of requests; holds what they share, all of it read-only."""

    def __init__(
        self,
        config: EngineConfig,
        vocab_size: int,
        prior: PriorTable | None = None,
        params: BestParams | None = None,
    ) -> None:
        """``vocab_size``: no token at or above it is ever drafted. ``params``: tuning of the best-first tree."""
        self.config = config
        self.vocab_size = vocab_size
        self.params = params or BestParams()
        empty = np.zeros((0, 1), np.int32), np.zeros((0, 1), np.float32)
        self.no_prior = PriorView(*empty)
        self.prior = self.no_prior
        if prior is not None and config.prior:
            self.prior = PriorView(_int32(prior.tokens), _float32(prior.probs))

    def open(self, drafts: Drafts | None = None, tree: TreeShape | None = None) -> RequestDrafts:
        """State for one request; None stands for the configured source and shape."""
        return RequestDrafts(self, drafts or self.config.drafts, tree or self.config.tree)

    def warm_up(self) -> None:
        """Compile, or load from disk, every kernel, so that no request waits for it."""
        for tree in TreeShape:
            request = self.open(Drafts.RACER, tree)
            request.learn_text([0, 0, 0])
            request.learn_logits([0], [[0]], [[1.0]])
            request.propose(2, [Continuation((0,), 1, 2)])


class RequestDrafts:
    """What one request has taught, and the trees that grow from it. Not for use by two threads at once."""

    def __init__(self, drafter: Drafter, drafts: Drafts, tree: TreeShape) -> None:
        """Called by :meth:`Drafter.open`."""
        config = drafter.config
        self.drafts, self.tree = drafts, tree
        self._drafter = drafter
        self._root: int | None = None
        self._uses_text = drafts in (Drafts.RACER, Drafts.RETRIEVAL)
        self._uses_logits = drafts in (Drafts.RACER, Drafts.LOGITS)
        best = tree is TreeShape.BEST
        self.automaton = Automaton(
            drafter.params.max_match + 1 if best else config.ngram,
            BEST_MAX_NODES if best else config.max_automaton_nodes,
        )
        self.table = LogitsTable(config.top_k)
        self._prior = drafter.prior if best and self._uses_logits else drafter.no_prior

    @property
    def root(self) -> int:
        """The newest decided token."""
        if self._root is None:
            raise ValueError("nothing is decided yet: learn_text first")
        return self._root

    def learn_text(self, tokens: ArrayLike) -> None:
        """Take in decided tokens (int [m], m >= 0) in order, the prompt's first; the last becomes the root."""
        text = _int32(tokens)
        if len(text):
            self._root = int(text[-1])
            if self._uses_text:
                self.automaton.learn(text)

    def learn_logits(self, tokens: ArrayLike, top_tokens: ArrayLike, top_probs: ArrayLike) -> None:
        """Take in the model's next tokens ``top_tokens`` int [m, k] and ``top_probs`` float [m, k] after ``tokens``.

        ``tokens`` int [m] are the prompt's or a verified tree's, rejected nodes included. Later rows win: put a tree's
        rejected nodes before its accepted ones.
        """
        if self._uses_logits:
            self.table.update(
                _int32(tokens),
                _int32(top_tokens),
                _float32(top_probs),
            )

    def propose(
        self, budget: int, continuations: Sequence[Continuation] = (), max_depth: int | None = None
    ) -> DraftTree:
        """A tree of at most ``budget`` nodes, root included, and at most ``max_depth`` tokens below the root.

        ``continuations``: what a store knows for the request's newest tokens. Nodes of the best-first tree come most
        likely first, so that any prefix of the arrays is the best tree of that size.
        """
        root = self.root
        if self.drafts is Drafts.OFF or budget <= 1 or max_depth == 0:
            return DraftTree.root_only(root)
        limits = Limits(budget, _ENDLESS if max_depth is None else max_depth, self._drafter.vocab_size)
        arrays = self._arrays(continuations)
        if self.tree is TreeShape.BEST:
            return DraftTree(*grow_best(root, arrays, self._drafter.params, limits))
        grow = grow_paper if self.tree is TreeShape.PAPER else grow_chain
        return DraftTree(*grow(root, arrays, self._drafter.config.min_depth, limits))

    def feedback(self, tree: DraftTree, accepted_nodes: ArrayLike) -> None:
        """Say which nodes of a verified ``tree`` (indices, int [m]) were accepted."""

    def _arrays(self, continuations: Sequence[Continuation]) -> Arrays:
        text, table = self.automaton, self.table
        return (
            *(text.nodes, text.slots, text.states),
            *(table.slots, table.keys, table.tokens, table.probs),
            *self._prior,
            *pool(continuations if self._uses_text else ()),
        )


def _int32(values: ArrayLike) -> NDArray[np.int32]:
    """As the kernels are compiled for: this dtype, contiguous, writable; any other kind would compile them anew."""
    array = np.ascontiguousarray(values, np.int32)
    return array if array.flags.writeable else array.copy()


def _float32(values: ArrayLike) -> NDArray[np.float32]:
    array = np.ascontiguousarray(values, np.float32)
    return array if array.flags.writeable else array.copy()
