"""What a step did, as an object; logging and exporters read it."""

from __future__ import annotations

from collections import Counter, deque
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from racer.types import Source

DEPTHS = 16


def no_depths() -> NDArray[np.int64]:
    """A count for each depth of a draft tree, all 0."""
    return np.zeros(DEPTHS, np.int64)


def count_depths(depths: NDArray[np.int32]) -> NDArray[np.int64]:
    """Nodes at each depth (1 is a root's child), int64 ``[DEPTHS]``; roots are not counted."""
    counts: NDArray[np.int64] = np.bincount(np.minimum(depths, DEPTHS), minlength=DEPTHS + 1)[1:]
    return counts


@dataclass(frozen=True)
class StepStats:
    """One step over all running sequences. Times are wall-clock milliseconds.

    decoding, prefilling  sequences that took part; tokens  rows of the forward; decided  output tokens delivered
    budgets               nodes of the decoding sequences' trees, roots included
    predicted_ms          what the budget controller took the step to cost, less drafting; None where there is none
    drafted, accepted     draft nodes by source
    drafted_by_depth, accepted_by_depth   int64 [16] the same nodes, a root's children first; the last counts all deeper
    """

    step_ms: float
    draft_ms: float
    forward_ms: float
    predicted_ms: float | None
    decoding: int
    prefilling: int
    tokens: int
    budgets: int
    decided: int
    drafted: Counter[Source]
    accepted: Counter[Source]
    drafted_by_depth: NDArray[np.int64] = field(default_factory=no_depths)
    accepted_by_depth: NDArray[np.int64] = field(default_factory=no_depths)

    @property
    def mean_budget(self) -> float:
        """Nodes verified for each decoding sequence, root included: 1.0 is plain decoding."""
        return self.budgets / self.decoding if self.decoding else 1.0


@dataclass
class EngineMetrics:
    """Totals since the engine started, and the latest steps."""

    steps: int = 0
    step_ms: float = 0.0
    draft_ms: float = 0.0
    forward_ms: float = 0.0
    decided: int = 0
    drafted: Counter[Source] = field(default_factory=Counter)
    accepted: Counter[Source] = field(default_factory=Counter)
    drafted_by_depth: NDArray[np.int64] = field(default_factory=no_depths)
    accepted_by_depth: NDArray[np.int64] = field(default_factory=no_depths)
    recent: deque[StepStats] = field(default_factory=lambda: deque(maxlen=256))

    def record(self, step: StepStats) -> None:
        """Add one step."""
        self.steps += 1
        self.step_ms += step.step_ms
        self.draft_ms += step.draft_ms
        self.forward_ms += step.forward_ms
        self.decided += step.decided
        self.drafted.update(step.drafted)
        self.accepted.update(step.accepted)
        self.drafted_by_depth += step.drafted_by_depth
        self.accepted_by_depth += step.accepted_by_depth
        self.recent.append(step)
