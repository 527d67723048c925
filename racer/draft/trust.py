"""How far a request trusts what a store tells it: other texts may be about its subject, or about anything.

A few tokens of context are found in nearly every store, whatever that was taught. What followed them there may be worth
less than what followed them in the request's own text, and then takes nodes from better guesses.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from racer.draft.tree import DraftTree
from racer.types import Source

LONG_MATCH = 5
"""Tokens from which a match counts as long: such a text has been there before, or a very similar one."""

_START = (0.75, 1.0)
"""Trust in short and in long matches before anything was seen."""

_MEMORY = 20.0
"""Promised acceptances after which an older one counts for a third."""

_PRIOR = 1.0
"""Expected acceptances, at full trust, after which what was seen counts as much as the start."""

_LEAST, _MOST = 0.15, 1.0
"""With less nothing of the store would be drafted any more, and nothing learned about it."""


_SCALED = 0.5
"""A node's probability is the store's share of it and what other sources add: below this trust, mostly the latter."""


class StoreTrust:
    """Accepted over promised store nodes of one request, for short and for long matches.

    It depends on the request's own text and on what the store has told it, as all that a request drafts does.
    """

    def __init__(self) -> None:
        self._promised = [0.0, 0.0]
        self._accepted = [0.0, 0.0]

    def of(self, matched: int) -> float:
        """Part of the share of a match in the request's own text."""
        kind = matched >= LONG_MATCH
        trust = (_PRIOR * _START[kind] + self._accepted[kind]) / (_PRIOR + self._promised[kind])
        return min(max(trust, _LEAST), _MOST)

    def observe(self, tree: DraftTree, accepted: NDArray[np.int32], matched: int, trust: float) -> None:
        """Count a verified tree, drafted with continuations of so long a match, at this trust."""
        from_store = tree.sources == Source.STORE
        promised = float(tree.probs[from_store].sum()) / max(trust, _SCALED)
        if promised > 0.0:
            kind = matched >= LONG_MATCH
            keep = max(0.0, 1.0 - promised / _MEMORY)
            self._promised[kind] = self._promised[kind] * keep + promised
            self._accepted[kind] = self._accepted[kind] * keep + float(from_store[accepted].sum())
