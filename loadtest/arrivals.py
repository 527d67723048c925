"""When an open loop's requests begin: independent of how fast they are answered."""

from __future__ import annotations

import random
from collections.abc import Iterator


def poisson(rate: float, seed: int, until_s: float) -> Iterator[float]:
    """Times in seconds, ``rate`` per second on average, with exponential gaps; the same for a seed."""
    rng = random.Random(f"arrivals/{seed}")
    time = rng.expovariate(rate)
    while time < until_s:
        yield time
        time += rng.expovariate(rate)


def shared(times: Iterator[float], index: int, of: int) -> Iterator[tuple[int, float]]:
    """Number and time of every arrival that falls to generator ``index`` out of ``of``, in turn."""
    return ((number, time) for number, time in enumerate(times) if number % of == index)
