"""How long the next step takes: the measured curve, corrected by the steps taken.

The machine drifts, contexts grow and other work comes along. Two corrections follow, both fading:

- of the shape: t = a * curve + b * tokens + c * requests + d, by least squares of the relative error. From the sizes
  that happen to be taken it tells what the others cost.
- of the region: a factor for a few neighbouring token counts at about so many requests, for what is left (steps of
  the hardware's block sizes).
"""

from __future__ import annotations

import math

import numpy as np

from racer.step_curve import Floats, Ints, StepCurve

_SHAPE_MEMORY = 60
_REGION_MEMORY = 60
"""Steps that weigh, roughly."""
_SHAPE_TRUST = np.diag([0.25, 1.0, 1.0, 1.0])
"""How firmly a, b, c, d stay at 1, 0, 0, 0, in steps: a first, so that one odd step is taken for a slower machine."""
_REGION_TRUST = 3.0
_LARGEST_SURPRISE = math.log(1.5)
"""One step counts as if it were off by this factor at most: a pause of the machine is not its speed."""
_LEAST = 0.2
"""The shape cannot fall below this share of the curve, however it was fitted."""
_REGIONS = 128
_REQUEST_OCTAVES = 10


class StepTimes:
    """Predicts step times; give it each step's to keep up with the machine."""

    def __init__(self, curve: StepCurve) -> None:
        self.curve = curve
        self._unit_ms = float(curve.alone_ms(np.array([1]))[0])
        self._products = np.zeros((4, 4))
        self._targets = np.zeros(4)
        self._shape = np.array([1.0, 0.0, 0.0, 0.0])
        self._seen = np.zeros((_REQUEST_OCTAVES, _REGIONS))
        self._sums = np.zeros((_REQUEST_OCTAVES, _REGIONS))
        self._grow(1024)

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
        believed_ms = predicted_ms * math.exp(max(-_LARGEST_SURPRISE, min(surprise, _LARGEST_SURPRISE)))
        self._fit(tokens, requests, believed_ms)
        shaped_ms = float(self._shaped(np.array([tokens]), requests)[0])
        keep = 1.0 - 1.0 / _REGION_MEMORY
        self._seen *= keep
        self._sums *= keep
        self._seen[_row(requests), self._region[tokens]] += 1.0
        self._sums[_row(requests), self._region[tokens]] += math.log(believed_ms / shaped_ms)

    def _fit(self, tokens: int, requests: int, ms: float) -> None:
        """Least squares of the relative error, with the prior as further rows."""
        curve_ms = float(self._alone_ms[tokens]) + self.curve.extra_ms(requests)
        unit_ms = self._unit_ms
        features = np.array([curve_ms, tokens * unit_ms / 16, requests * unit_ms / 16, unit_ms]) / ms
        keep = 1.0 - 1.0 / _SHAPE_MEMORY
        self._products = keep * self._products + np.outer(features, features)
        self._targets = keep * self._targets + features
        self._shape = np.linalg.solve(self._products + _SHAPE_TRUST, self._targets + _SHAPE_TRUST[0])

    def _shaped(self, tokens: Ints, requests: int) -> Floats:
        a, b, c, d = self._shape.tolist()
        curve_ms = self._alone_ms[tokens] + self.curve.extra_ms(requests)
        ms = a * curve_ms + (b * self._unit_ms / 16) * tokens + self._unit_ms * (c * requests / 16 + d)
        shaped: Floats = np.maximum(ms, _LEAST * curve_ms)
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
