"""What a simulated fleet is told, and what comes of it."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from loadtest.plan import ReplicaCurve


@dataclass(frozen=True)
class Scaling:
    """How many replicas there are, by the rules of the service's own autoscaler.

    target     requests that a replica should have under way
    slowdown   how many times as long an answer takes then as alone, as the autoscaler is told (its setting's name)
    delays_s   how long more, and how long fewer, must be wanted before it is done
    start_s    from the decision to the first request a new replica can take
    initial    replicas at the beginning; None: the least
    """

    least: int = 1
    most: int = 1
    target: float = 8.0
    upscale_delay_s: float = 5.0
    downscale_delay_s: float = 60.0
    start_s: float = 60.0
    interval_s: float = 1.0
    initial: int | None = None
    slowdown: float = 1.0

    def wanted(self, requests: float, replicas: int) -> int:
        """Replicas wanted where ``replicas`` serve and so many requests are under way."""
        load = requests / self.target
        used = load / max(1, replicas)
        if used < 1.0:  # each would have more at a time with fewer replicas, and take longer for each
            load *= self.slowdown / (1.0 + (self.slowdown - 1.0) * used)
        return min(self.most, max(self.least, math.ceil(load - 1e-9)))


@dataclass(frozen=True)
class SharedStore:
    """Replicas share what they learn: the fleet's speed goes from the cold curve to the warm one.

    ``requests``: after so many the way is done to 63%.
    """

    warm: ReplicaCurve
    requests: float


@dataclass
class Finished:
    """One request's times: seconds since the simulation began, and since it arrived."""

    arrived_s: float
    first_s: float
    end_s: float
    tokens: float


@dataclass
class FleetResult:
    """What a simulation gave. ``replicas``: (time, how many that are paid for) at each change."""

    finished: list[Finished] = field(default_factory=list)
    replicas: list[tuple[float, int]] = field(default_factory=list)
    ended_s: float = 0.0

    @property
    def replica_hours(self) -> float:
        """Time that replicas were paid for."""
        ends = [time for time, _ in self.replicas[1:]] + [self.ended_s]
        parts = ((end - begin) * count for (begin, count), end in zip(self.replicas, ends, strict=True))
        return sum(parts) / 3600.0
