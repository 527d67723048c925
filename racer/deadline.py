"""How long a step waits for the shared n-gram store."""

from __future__ import annotations

from racer.config import SourceDeadline

LEAST_MS = 2.0
PART = 0.2
"""Of a step's other time. What a warm store gives is worth more, and a store that is always late is left alone soon."""

_WEIGHT = 0.1


class LookupDeadline:
    """The longest wait: a fixed one, or for "auto" a part of what steps have taken lately, that wait left out.

    A store answers in a millisecond. Where engine, store and clients share few processors, its answer takes as much
    longer as everything else does.
    """

    def __init__(self, deadline: SourceDeadline) -> None:
        self._fixed_ms = None if deadline == "auto" else deadline
        self._step_ms = 0.0

    @property
    def ms(self) -> float:
        """Milliseconds that the next step may wait."""
        return max(LEAST_MS, PART * self._step_ms) if self._fixed_ms is None else self._fixed_ms

    def observe(self, step_ms: float) -> None:
        """A step that only decoded has taken so long, drafting and so the wait left out."""
        self._step_ms += _WEIGHT * (step_ms - self._step_ms)
