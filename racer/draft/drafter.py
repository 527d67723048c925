"""The drafter: what the engine asks for draft trees.

One :class:`Drafter` serves an engine; one :class:`RequestDrafts` serves a choice of a request, is opened with it and
dropped with it. What it drafts depends on that request's own text and logits, on the prior table, and on the
continuations it is handed and how they fared, on nothing else.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

from racer.config import Drafts, EngineConfig, TreeShape
from racer.draft.automaton import Automaton
from racer.draft.best import grow_best
from racer.draft.known import Arrays, Limits, PriorView
from racer.draft.logits import LogitsTable, update_tree
from racer.draft.mixture import MixtureParams, default_params
from racer.draft.paper import grow_chain, grow_paper
from racer.draft.prior import PriorTable
from racer.draft.reliability import Reliability
from racer.draft.sources import Continuation, longest_match, pool
from racer.draft.tree import DraftTree
from racer.draft.trust import StoreTrust
from racer.patience import told_if_slow

_log = logging.getLogger(__name__)

BEST_MAX_NODES = 1 << 16
"""Automaton nodes a request may keep with the best-first tree, 40 bytes each: some 15,000 tokens of text."""

_TAIL = 3
_MOST_WAITING = 64
"""Tokens and rows that may wait to be taken in; a long prompt does not wait, its time belongs to its own step."""
_ENDLESS = 1 << 30


class Drafter:
    """Opens the drafts of requests; holds what they share: read-only tables, and tallies of how drafts fare, by shape.

    A tally counts what :meth:`RequestDrafts.feedback` is told.
    """

    def __init__(
        self,
        config: EngineConfig,
        vocab_size: int,
        prior: PriorTable | None = None,
        params: MixtureParams | None = None,
    ) -> None:
        """``vocab_size``: no token at or above it is ever drafted.

        ``prior`` is the model's, ``params`` tunes the mixture; both are for the best-first tree only.
        """
        self.config = config
        self.vocab_size = vocab_size
        self.params = params or default_params()
        self.no_prior = PriorView(np.zeros((0, 1), np.int32), np.zeros((0, 1), np.float32))
        self.no_rows = LogitsTable(1, 1)
        self.reliability = {shape: Reliability() for shape in TreeShape}
        self.prior, self.free = self.no_prior, self.no_rows
        if prior is not None and config.prior:
            self.prior = PriorView(_int32(prior.tokens), _float32(prior.probs))
            self.free = prior.free or self.no_rows

    def open(self, drafts: Drafts | None = None, tree: TreeShape | None = None) -> RequestDrafts:
        """State for one request; None stands for the configured source and shape."""
        return RequestDrafts(self, drafts or self.config.drafts, tree or self.config.tree)

    def warm_up(self) -> None:
        """Compile, or load from disk, every kernel, so that no request waits for it."""
        with told_if_slow(_log, "compiling the draft kernels, once"):
            self._call_everything()

    def _call_everything(self) -> None:
        many = np.arange(400, dtype=np.int32)  # enough for every table to grow once
        rows = np.zeros((len(many), 1), np.int32), np.ones((len(many), 1), np.float32)
        for shape in TreeShape:
            request = self.open(Drafts.RACER, shape)
            request.learn_text(many)
            request.learn_prompt(many, *rows)
            tree = request.propose(2, [Continuation((0,), 1, 2)])
            request.learn_tree(tree, [0], rows[0][: len(tree)], rows[1][: len(tree)])
            spare = Reliability()
            spare.observe(tree, _int32([0]))
            spare.calibrated(tree.sources, tree.probs)


class RequestDrafts:
    """What one request has taught, and the trees that grow from it. Not for use by two threads at once.

    Text, and rows of steps without drafts, are taken in when a tree is to grow from them: where drafting pauses, many
    steps' at once.
    """

    def __init__(self, drafter: Drafter, drafts: Drafts, tree: TreeShape) -> None:
        """Called by :meth:`Drafter.open`."""
        config = drafter.config
        self.drafts, self.tree = drafts, tree
        self._drafter = drafter
        self._tail = np.full(_TAIL, -1, np.int32)
        self._before_root = -1
        self._uses_text = drafts in (Drafts.RACER, Drafts.RETRIEVAL)
        self._uses_logits = drafts in (Drafts.RACER, Drafts.LOGITS)
        self._best = tree is TreeShape.BEST
        self._automaton = Automaton(
            drafter.params.max_match + 1 if self._best else config.ngram,
            BEST_MAX_NODES if self._best else config.max_automaton_nodes,
        )
        self.latest, self.pairs = LogitsTable(config.top_k), LogitsTable(config.top_k)
        self._new_text: list[NDArray[np.int32]] = []
        self._waiting = 0
        self._new_rows: list[tuple[tuple[int, int], NDArray[np.int32], NDArray[np.float32]]] = []
        model_too = self._best and self._uses_logits
        self._prior = drafter.prior if model_too else drafter.no_prior
        knows_both = model_too and self._uses_text and drafter.prior is not drafter.no_prior
        self.learns_prompt_logits = self._uses_logits and not knows_both
        """Prompts' logits add nothing to text and the model's prior table (docs/log.md), and cost a large product."""
        self._free = drafter.free if model_too else drafter.no_rows
        self._trust = StoreTrust()
        self._pooled = (0, 1.0)
        """Tokens that the latest tree's continuations match, and the trust they were given."""

    @property
    def automaton(self) -> Automaton:
        """Of all text learned."""
        self._catch_up()
        return self._automaton

    @property
    def root(self) -> int:
        """The newest decided token."""
        if self._tail[-1] < 0:
            raise ValueError("nothing is decided yet: learn_text first")
        return int(self._tail[-1])

    def learn_text(self, tokens: ArrayLike) -> None:
        """Take in decided tokens (int [m], m >= 0) in order, the prompt's first; the last becomes the root."""
        text = np.array(tokens, np.int32)  # a copy: it may wait
        if len(text):
            self._tail = np.concatenate((self._tail, text[-_TAIL:]))[-_TAIL:]
            if self._uses_text:
                self._new_text.append(text)
                self._wait(len(text))

    def learn_logits(
        self, tokens: ArrayLike, top_tokens: ArrayLike, top_probs: ArrayLike, previous: ArrayLike | None = None
    ) -> None:
        """Take in the model's next tokens ``top_tokens`` int [m, k] and ``top_probs`` float [m, k] behind ``tokens``.

        ``tokens`` int [m] are the prompt's or a verified tree's, rejected nodes included, and ``previous`` int [m] the
        token before each (-1 at the start); without it only the table behind one token learns. Later rows win: put a
        tree's rejected nodes before its accepted ones, or use :meth:`learn_tree`.
        """
        if not self._uses_logits:
            return
        seen, tops, probs = _int32(tokens), _int32(top_tokens), _float32(top_probs)
        self.latest.update(seen[:, None], tops, probs)
        if self._best and previous is not None:
            self.pairs.update(np.stack((_int32(previous), seen), 1), tops, probs)

    def learn_prompt(self, tokens: ArrayLike, top_tokens: ArrayLike, top_probs: ArrayLike, before: int = -1) -> None:
        """Take in a run of prompt tokens (int [m]) and the model's next tokens behind each ([m, k]).

        ``before`` is the token in front of the run: a prompt may come in chunks. Text is learned apart (learn_text).
        """
        seen = _int32(tokens)
        self.learn_logits(seen, top_tokens, top_probs, previous=np.concatenate(([before], seen[:-1])))

    def learn_tree(
        self, tree: DraftTree, accepted_nodes: ArrayLike, top_tokens: ArrayLike, top_probs: ArrayLike
    ) -> None:
        """Take in what the model said behind every node of the verified ``tree``, the latest one proposed.

        ``accepted_nodes`` int [a]: indices of the accepted path, the root (0) included. ``top_tokens`` and
        ``top_probs`` [nodes, k] are in node order. The decided tokens are learned apart (learn_text), before or after.
        """
        if not self._uses_logits:
            return
        tops, probs = _int32(top_tokens), _float32(top_probs)
        if len(tops) != len(tree) or len(probs) != len(tree):
            raise ValueError(f"{len(tops)} rows for a tree of {len(tree)} nodes: give one for each, in node order")
        if len(tree) == 1:
            self._new_rows.append(((self._before_root, int(tree.tokens[0])), tops.copy(), probs.copy()))
            self._wait(1)
            return
        self._catch_up()
        accepted = _int32(accepted_nodes)
        update_tree(self.latest, self.pairs, tree.tokens, tree.parents, self._before_root, accepted, tops, probs)

    def propose(
        self,
        budget: int,
        continuations: Sequence[Continuation] = (),
        max_depth: int | None = None,
        least_prob: float = 0.0,
    ) -> DraftTree:
        """A tree of at most ``budget`` nodes, root included, and at most ``max_depth`` tokens below the root.

        ``continuations``: what a store knows for the request's newest tokens. Nodes of the best-first tree come most
        likely first, so that any prefix of the arrays is the best tree of that size; it has none less likely than
        ``least_prob``.
        """
        root = self.root
        self._before_root = int(self._tail[-2])
        if self.drafts is Drafts.OFF or budget <= 1 or max_depth == 0:
            return DraftTree.root_only(root)
        self._catch_up()
        limits = Limits(budget, _ENDLESS if max_depth is None else max_depth, self._drafter.vocab_size, least_prob)
        matched = longest_match(continuations)
        self._pooled = matched, self._trust.of(matched)
        arrays = self._arrays(continuations)
        if self._best:
            return DraftTree(*grow_best(self._tail, arrays, self._drafter.params, limits))
        grow = grow_paper if self.tree is TreeShape.PAPER else grow_chain
        return DraftTree(*grow(root, arrays, self._drafter.config.min_depth, limits))

    def feedback(self, tree: DraftTree, accepted_nodes: ArrayLike) -> None:
        """Say which nodes of a verified ``tree`` (indices, int [a], the root may be among them) were accepted."""
        if len(tree) > 1:
            accepted = _int32(accepted_nodes)
            self._drafter.reliability[self.tree].observe(tree, accepted)
            if self._pooled[0]:
                self._trust.observe(tree, accepted, *self._pooled)

    def _wait(self, items: int) -> None:
        self._waiting += items
        if self._waiting > _MOST_WAITING:
            self._catch_up()

    def _catch_up(self) -> None:
        """Take in what waits to be."""
        self._waiting = 0
        if self._new_text:
            self._automaton.learn(np.concatenate(self._new_text))
            self._new_text.clear()
        if self._new_rows:
            seen, tops, probs = zip(*self._new_rows, strict=True)
            last = np.array(seen, np.int32)
            self.learn_logits(last[:, 1], np.concatenate(tops), np.concatenate(probs), previous=last[:, 0])
            self._new_rows.clear()

    def _arrays(self, continuations: Sequence[Continuation]) -> Arrays:
        text, latest, pairs, free = self._automaton, self.latest, self.pairs, self._free
        return (
            *(text.nodes, text.slots, text.states),
            *(latest.slots, latest.keys, latest.tokens, latest.probs),
            *(pairs.slots, pairs.keys, pairs.tokens, pairs.probs),
            *(free.slots, free.keys, free.tokens, free.probs),
            *self._prior,
            *pool(continuations if self._uses_text else (), self._pooled[1]),
        )


def _int32(values: ArrayLike) -> NDArray[np.int32]:
    """As the kernels are compiled for: this dtype, contiguous, writable; any other kind would compile them anew."""
    array = np.ascontiguousarray(values, np.int32)
    return array if array.flags.writeable else array.copy()


def _float32(values: ArrayLike) -> NDArray[np.float32]:
    array = np.ascontiguousarray(values, np.float32)
    return array if array.flags.writeable else array.copy()
