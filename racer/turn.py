"""One sequence's turn in a step: what it puts into the forward, and what the logits decide for it."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from racer.draft.tree import DraftTree
from racer.errors import LogitsError
from racer.model.layout import Segment
from racer.scheduler import Slot
from racer.sequence import Sequence
from racer.types import DRAFT_SOURCES, Source
from racer.verify.accept import walk
from racer.verify.sampling import token_logprob


@dataclass(frozen=True)
class Scores:
    """What the forward said about a turn's scored rows, which are ``rows`` of ``step_logits`` ``[all, vocab]``.

    top_tokens int32 and top_probs float32 ``[rows, k]``, most likely first
    """

    step_logits: Tensor
    rows: slice
    top_tokens: NDArray[np.int32]
    top_probs: NDArray[np.float32]

    def logits(self, row: int) -> Tensor:
        """Logits ``[vocab]`` of one of the turn's rows."""
        return self.step_logits[self.rows.start + row]


@dataclass(frozen=True)
class Turn:
    """A slot of the step with the draft tree that hangs behind its last pending token (the tree's root)."""

    slot: Slot
    tree: DraftTree

    @property
    def sequence(self) -> Sequence:
        """Whose turn it is."""
        return self.slot.sequence

    @property
    def tokens(self) -> int:
        """Rows of the forward."""
        return self.slot.chain - 1 + len(self.tree)

    @property
    def scored_from(self) -> int:
        """First row whose logits are needed: prompt rows teach the logits table, or are asked for."""
        drafts = self.sequence.drafts
        if self.sequence.params.prompt_logprobs is not None or (drafts is not None and drafts.learns_prompt_logits):
            return 0
        return self.slot.chain - 1 if self._completes else self.slot.chain

    @property
    def _completes(self) -> bool:
        """No pending token is left for later, so that the next token can be decided."""
        return self.slot.chain == self.sequence.pending

    def segment(self, start: int) -> Segment:
        """The pending tokens with the tree behind them; ``start`` is the first place of the sequence's region."""
        before = self.slot.chain - 1
        parents = np.concatenate([np.arange(-1, before, dtype=np.int32), self.tree.parents[1:] + before])
        tokens = np.concatenate([self.sequence.chain(self.slot.chain), self.tree.tokens[1:]])
        return Segment(tokens, parents, start, self.sequence.cached, self.scored_from)

    def verify(self, scores: Scores) -> list[int]:
        """Decide the sequence's next tokens and teach its drafts; returns the accepted nodes, the root first."""
        self._score_prompt(scores)
        self._learn_prompt(scores)
        if not self._completes:
            return [0]
        sequence, decoding, known = self.sequence, self.sequence.decoding, len(self.sequence.tokens)
        if decoding:
            self._count_drafts()
        try:
            path = self._walk(scores)
        except LogitsError as error:
            sequence.fail(error)
            return [0]
        if sequence.drafts is not None and not sequence.finished:
            if decoding:
                sequence.drafts.learn_tree(self.tree, path, scores.top_tokens, scores.top_probs)
                sequence.drafts.feedback(self.tree, path)
            sequence.drafts.learn_text(sequence.tokens[known:])
        return path

    def _walk(self, scores: Scores) -> list[int]:
        sequence = self.sequence
        root = len(scores.top_tokens) - len(self.tree)  # its row; those before are the prompt's

        def choose(node: int) -> int:
            if not math.isfinite(scores.top_probs[root + node, 0]):
                raise LogitsError(
                    "the model's logits are not finite; its weights may be damaged, or overflow in this dtype"
                )
            if sequence.takes_argmax:
                return int(scores.top_tokens[root + node, 0])
            return sequence.choose(scores.logits(root + node))

        def decide(node: int, token: int, source: Source) -> bool:
            row = None if sequence.params.logprobs is None else scores.logits(root + node)
            return sequence.decide(token, source, row)

        return walk(self.tree, choose, decide).path

    def _count_drafts(self) -> None:
        stats = self.sequence.stats
        stats.steps += 1
        if len(self.tree) > 1:
            counts = np.bincount(self.tree.sources, minlength=len(Source))
            for source in DRAFT_SOURCES:
                stats.drafted[source] += int(counts[source])

    def _learn_prompt(self, scores: Scores) -> None:
        """Let the logits of prompt rows teach the drafts."""
        sequence = self.sequence
        if sequence.drafts is not None and not sequence.decoding and sequence.drafts.learns_prompt_logits:
            before = sequence.tokens[sequence.cached - 1] if sequence.cached else -1
            sequence.drafts.learn_prompt(
                sequence.chain(self.slot.chain), scores.top_tokens, scores.top_probs, before=before
            )

    def _score_prompt(self, scores: Scores) -> None:
        """Log-probabilities of the prompt tokens that follow the turn's rows."""
        sequence = self.sequence
        found, top = sequence.prompt_logprobs, sequence.params.prompt_logprobs
        if found is None or top is None:
            return
        for position in range(len(found) - 1, min(sequence.cached + self.slot.chain, sequence.prompt_length - 1)):
            row = scores.logits(position - sequence.cached)
            found.append(token_logprob(row, sequence.tokens[position + 1], top))
