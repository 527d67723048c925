"""How long the next step takes: the measured curve, corrected by the steps taken.

The machine drifts, contexts grow and other work comes along. Two corrections follow, both fading:

- of the shape: t = a * curve + b * tokens + c * requests + d, by least squares of the relative error. From the sizes
  that happen to be taken it tells what the others cost.
- of the region: a factor for a few neighbouring token counts at about so many requests, for what is left (steps of
  the hardware's block sizes).
"""

from __future__ import annotations

import math
from collections import deque

import numpy as np

from racer.step_curve import Floats, Ints, StepCurve

_KEEP = 1.0 - 1.0 / 60
"""What a step's weight is multiplied by with each later one: some 60 count."""
_SURPRISE, _SURPRISES = 0.2, 4
"""So many steps in a row, all slower than predicted or all faster, by more than this (its logarithm): the machine has
changed, and what it was says nothing of what it is."""
_SHAPE_TRUST = np.diag([0.03, 0.05, 0.05, 0.05])
"""How firmly a, b, c, d stay at 1, 0, 0, 0, in steps: a least, so that a slower machine is slower at all sizes."""
_REGION_TRUST = 1.0
"""Steps at a size that weigh as much as the shape does."""
_LARGEST_SURPRISE = math.log(1.5)
"""One step counts as if it were off by this factor at most: a pause of the machine is not its speed."""
_LEAST = 0.2
"""The shape cannot fall below this share of the curve (of the scaled one if lower), however it was fitted."""
_REGIONS = 128
_REQUEST_OCTAVES = 10


class StepTimes:
    """Predicts step times; give it each step's to keep up with the machine.

    changes  how often the machine was found to be another than before, and what was learned about it dropped
    """

    def __init__(self, curve: StepCurve) -> None:
        self.curve = curve
        self._unit_ms = float(curve.alone_ms(np.array([1]))[0])
        self.changes = 0
        self._latest: deque[tuple[float, float]] = deque(maxlen=_SURPRISES)
        self._restart(1.0)
        self._grow(1024)

    def _restart(self, scale: float) -> None:
        """Know nothing but the curve, ``scale`` times as slow."""
        self._least = _LEAST * min(scale, 1.0)
        self._prior = scale * _SHAPE_TRUST[0]
        self._products = np.zeros((4, 4))
        self._targets = np.zeros(4)
        self._shape = np.array([scale, 0.0, 0.0, 0.0])
        self._seen = np.zeros((_REQUEST_OCTAVES, _REGIONS))
        self._sums = np.zeros((_REQUEST_OCTAVES, _REGIONS))
        self._latest.clear()

    def _grow(self, tokens: int) -> None:
        self._alone_ms = self.curve.alone_ms(np.arange(tokens + 1))
        self._region = _regions(np.arange(tokens + 1))

    def ms(self, tokens: Ints, requests: int) -> Floats:
        """Milliseconds of steps of ``requests`` over ``tokens`` (int [n], ascending); they ascend as well."""
        if len(tokens) and tokens[-1] >= len(self._alone_ms):
            self._grow(2 * int(tokens[-1]))
        row = _row(requests)
        factors = np.exp(self._sums[row] / (self._seen[row] + _REGION_TRUST))
        ms: Floats = np.maximum.accumulate(self._shaped(tokens, requests) * factors[self._region[tokens]])
        return ms

    def step_ms(self, tokens: int, requests: int) -> float:
        """The same for one step."""
        return float(self.ms(np.array([tokens]), requests)[0])

    def observe(self, tokens: int, requests: int, measured_ms: float) -> None:
        """Take in a step that was taken; one without prefill, which the curve does not know."""
        if measured_ms <= 0.0:
            return
        predicted_ms = self.step_ms(tokens, requests)
        surprise = math.log(measured_ms / predicted_ms)
        self._latest.append((surprise, measured_ms / self._curve_ms(tokens, requests)))
        if self._has_changed():
            self.changes += 1
            self._restart(float(np.median([ratio for _, ratio in self._latest])))
            return
        believed_ms = predicted_ms * math.exp(max(-_LARGEST_SURPRISE, min(surprise, _LARGEST_SURPRISE)))
        self._fit(tokens, requests, believed_ms)
        shaped_ms = float(self._shaped(np.array([tokens]), requests)[0])
        self._seen *= _KEEP
        self._sums *= _KEEP
        self._seen[_row(requests), self._region[tokens]] += 1.0
        self._sums[_row(requests), self._region[tokens]] += math.log(believed_ms / shaped_ms)

    def _has_changed(self) -> bool:
        surprises = [surprise for surprise, _ in self._latest]
        return len(surprises) == _SURPRISES and (min(surprises) > _SURPRISE or max(surprises) < -_SURPRISE)

    def _curve_ms(self, tokens: int, requests: int) -> float:
        return float(self._alone_ms[tokens]) + self.curve.extra_ms(requests)

    def _fit(self, tokens: int, requests: int, ms: float) -> None:
        """Least squares of the relative error, with the prior as further rows."""
        curve_ms, unit_ms = self._curve_ms(tokens, requests), self._unit_ms
        features = np.array([curve_ms, tokens * unit_ms / 16, requests * unit_ms / 16, unit_ms]) / ms
        self._products = _KEEP * self._products + np.outer(features, features)
        self._targets = _KEEP * self._targets + features
        self._shape = np.linalg.solve(self._products + _SHAPE_TRUST, self._targets + self._prior)

    def _shaped(self, tokens: Ints, requests: int) -> Floats:
        a, b, c, d = self._shape.tolist()
        curve_ms = self._alone_ms[tokens] + self.curve.extra_ms(requests)
        ms = a * curve_ms + (b * self._unit_ms / 16) * tokens + self._unit_ms * (c * requests / 16 + d)
        shaped: Floats = np.maximum(ms, self._least * curve_ms)
        return shaped


def _regions(tokens: Ints) -> Ints:
    """Up to 16 tokens each its own, up to 64 by fours, then eight to an octave, ending at multiples of their width."""
    ends = [*range(1, 17), *range(20, 65, 4)]
    while len(ends) < _REGIONS - 8:
        width = ends[-1] // 8
        ends += [ends[-1] + i * width for i in range(1, 9)]
    return np.searchsorted(ends, tokens)


def _row(requests: int) -> int:
    return min(round(math.log2(max(requests, 1))), _REQUEST_OCTAVES - 1)
