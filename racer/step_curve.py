"""How long a step takes, as measured: t(tokens, requests) = alone(tokens) + extra(requests)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Points = tuple[tuple[float, float], ...]


@dataclass(frozen=True)
class StepCurve:
    """Measured step times, ascending in tokens and in requests.

    alone  (tokens, ms) of one request;  extra  (requests, ms) that more requests add at equal tokens, 0 for one.
    Raises ValueError unless both ascend, in time at least weakly, and all times are finite.
    """

    alone: Points
    extra: Points = ((1.0, 0.0),)

    def __post_init__(self) -> None:
        for points in (self.alone, self.extra):
            table = np.array(points, np.float64)
            if table.ndim != 2 or table.shape[1] != 2 or not np.isfinite(table).all():
                raise ValueError(f"{points} are not pairs of finite numbers")
            if table.min() < 0.0 or (np.diff(table[:, 0]) <= 0).any() or (np.diff(table[:, 1]) < 0).any():
                raise ValueError(f"{points} do not ascend")
        if self.alone[0][1] <= 0.0:
            raise ValueError(f"{self.alone[0][1]} ms is no step time")

    def alone_ms(self, tokens: Ints) -> Floats:
        """Milliseconds of steps over ``tokens`` of one request; beyond the last point as steep as before it."""
        return _interpolate(self.alone, tokens)

    def extra_ms(self, requests: int) -> float:
        """Milliseconds that so many requests add to a step."""
        return float(_interpolate(self.extra, np.array([requests]))[0])


def _interpolate(points: Points, at: Ints) -> Floats:
    x, y = np.array(points, np.float64).T
    values: Floats = np.interp(at, x, y)
    if len(x) > 1:
        values += np.maximum(at - x[-1], 0.0) * (y[-1] - y[-2]) / (x[-1] - x[-2])
    return values


def monotone(values: Floats) -> Floats:
    """The ascending sequence nearest to ``values`` (least squares: neighbours that fall are averaged)."""
    blocks: list[tuple[float, int]] = []
    for value in values.tolist():
        mean, size = value, 1
        while blocks and blocks[-1][0] > mean:
            before, count = blocks.pop()
            mean, size = (before * count + mean * size) / (count + size), count + size
        blocks.append((mean, size))
    return np.repeat([mean for mean, _ in blocks], [size for _, size in blocks])
