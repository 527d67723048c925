"""Means with their uncertainty, and ratios of runs that were made in pairs."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

CONFIDENCE = 0.95


@dataclass(frozen=True)
class Estimate:
    """A mean and its confidence interval; ``low`` and ``high`` are None where there is one value only."""

    mean: float
    low: float | None = None
    high: float | None = None
    count: int = 1

    @property
    def above_one(self) -> bool:
        """Whether the whole interval, or the only value, lies above 1."""
        return (self.mean if self.low is None else self.low) > 1.0

    @property
    def below_one(self) -> bool:
        """Whether the whole interval, or the only value, lies below 1."""
        return (self.mean if self.high is None else self.high) < 1.0


def estimate(values: Sequence[float]) -> Estimate | None:
    """Mean and Student's t interval of repeats; None without a value."""
    if not values:
        return None
    mean = float(np.mean(values))
    if len(values) < 2:
        return Estimate(mean)
    from scipy import stats  # takes seconds

    half = float(stats.t.ppf(0.5 + CONFIDENCE / 2, len(values) - 1)) * float(stats.sem(values))
    return Estimate(mean, mean - half, mean + half, len(values))


def ratio(pairs: Sequence[tuple[float, float]]) -> Estimate | None:
    """Geometric mean of ``new / base`` over pairs ``(new, base)``, with the interval of the logarithms."""
    logs = estimate([math.log(new / base) for new, base in pairs if new > 0.0 and base > 0.0])
    if logs is None:
        return None
    if logs.low is None or logs.high is None:
        return Estimate(math.exp(logs.mean))
    return Estimate(math.exp(logs.mean), math.exp(logs.low), math.exp(logs.high), logs.count)
