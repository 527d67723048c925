"""Pauses of drafting: a request whose drafts do not earn the time that they take goes without for a while."""

from __future__ import annotations

from dataclasses import dataclass

_MEMORY_STEPS = 5
_TRIED_STEPS = 3
_LONGEST = 16


@dataclass
class DraftPause:
    """Weighs, for one request, what its drafts save against what proposing them takes.

    Where the latest steps with drafts took more than they saved, on average, ``_TRIED_STEPS`` times in a row, one step
    goes without a draft, then two, four, at most ``_LONGEST``, with a step between that tries again.
    """

    earned_ms: float = 0.0
    """Saved less taken, averaged over the latest steps with drafts."""
    _in_vain: int = 0
    _left: int = 0

    def skips(self) -> bool:
        """This step goes without a draft. Call it once a step."""
        self._left -= 1
        return self._left >= 0

    def settle(self, saved_ms: float, taken_ms: float) -> None:
        """A step with a draft: what its nodes save as predicted, next to plain decoding, and what proposing took."""
        self.earned_ms += (saved_ms - taken_ms - self.earned_ms) / _MEMORY_STEPS
        self._in_vain = self._in_vain + 1 if self.earned_ms < 0 else 0
        over = self._in_vain - _TRIED_STEPS
        self._left = min(1 << over, _LONGEST) if over >= 0 else 0
