"""How many replicas a traffic needs, and what they cost, from measured curves."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from loadtest.curves import Cell, Measured
from loadtest.errors import UserError

Json = dict[str, Any]

TTFT, PER_TOKEN = ("ttft_ms", "p90"), ("time_per_token_ms", "p90")


@dataclass(frozen=True)
class Slo:
    """What 90 in 100 requests must keep; None: no limit."""

    ttft_ms: float | None = None
    time_per_token_ms: float | None = None


@dataclass(frozen=True)
class Level:
    """One replica under one load, means over the repeats.

    users           conversations at a time, of one replica
    requests_per_s  requests it answers in a second
    ttft_ms, time_per_token_ms   their 90th percentiles
    tokens          output tokens a request; tokens_p50, tokens_p90: how they are distributed
    """

    users: float
    requests_per_s: float
    tokens_per_s: float
    ttft_ms: float
    time_per_token_ms: float
    tokens: float
    tokens_p50: float
    tokens_p90: float


_RATES = ("requests_per_s", "tokens_per_s")


class ReplicaCurve:
    """How one replica behaves with so many conversations at a time, from a closed loop's runs.

    Between measured levels, times change linearly with the users, and rates as the time that a request then takes
    makes them (users / time). Beyond the last level rates stay: what is more waits.
    """

    def __init__(self, levels: Sequence[Level]) -> None:
        if len(levels) < 2:
            raise UserError("a curve needs at least two loads with users; measure more of them")
        self.levels = sorted(levels, key=lambda level: level.users)
        self._x = [level.users for level in self.levels]

    @classmethod
    def of(cls, cells: Sequence[Cell]) -> ReplicaCurve:
        """From a sweep's cells.

        Raises:
            UserError: there are fewer than two.
        """
        return cls([level for cell in cells if (level := _level(cell)) is not None])

    def at(self, users: float, figure: str) -> float:
        """A figure of :class:`Level` at ``users``."""
        if figure in _RATES:
            times = [level.users / getattr(level, figure) for level in self.levels]
            return min(users, self._x[-1]) / float(np.interp(users, self._x, times))
        return float(np.interp(users, self._x, [getattr(level, figure) for level in self.levels]))

    def capacity(self, slo: Slo) -> tuple[float, float] | None:
        """Most requests per second that one replica answers within ``slo``, and the users there; None: not even one."""
        grid = np.geomspace(self.levels[0].users, self.levels[-1].users, 400).tolist()
        fit = [users for users in grid if self._keeps(users, slo)]
        if not fit:
            return None
        best = max(fit, key=lambda users: self.at(users, "requests_per_s"))
        return self.at(best, "requests_per_s"), best

    def _keeps(self, users: float, slo: Slo) -> bool:
        ttft = slo.ttft_ms is None or self.at(users, "ttft_ms") <= slo.ttft_ms
        return ttft and (slo.time_per_token_ms is None or self.at(users, "time_per_token_ms") <= slo.time_per_token_ms)

    def held_out_errors(self) -> list[Json]:
        """Each inner level predicted from the others: relative errors of throughput and latencies."""
        found = []
        for place in range(1, len(self.levels) - 1):
            left_out = self.levels[place]
            others = ReplicaCurve([level for level in self.levels if level is not left_out])
            row: Json = {"users": left_out.users}
            for figure in ("tokens_per_s", "ttft_ms", "time_per_token_ms"):
                truth = getattr(left_out, figure)
                row[figure] = round(others.at(left_out.users, figure) / truth - 1.0, 4) if truth else None
            found.append(row)
        return found


def _level(cell: Cell) -> Level | None:
    """Divided by the replicas that served it."""
    wanted = [
        cell.mean("throughput", "requests_per_s"),
        cell.tokens_per_s,
        cell.mean(*TTFT),
        cell.mean(*PER_TOKEN),
        cell.mean("completion_tokens", "mean"),
        cell.mean("completion_tokens", "p50"),
        cell.mean("completion_tokens", "p90"),
    ]
    if cell.open_loop or any(value is None for value in wanted):
        return None
    requests, tokens_per_s, ttft, per_token, tokens, p50, p90 = (value.mean for value in wanted if value is not None)
    if requests <= 0.0 or tokens_per_s <= 0.0:
        return None
    told = cell.mean("replicas")
    replicas = told.mean if told is not None else 1.0
    return Level(cell.level / replicas, requests / replicas, tokens_per_s / replicas, ttft, per_token, tokens, p50, p90)


@dataclass(frozen=True)
class Traffic:
    """Requests per second over time: ``(seconds, rate)`` of each part."""

    parts: tuple[tuple[float, float], ...]

    @property
    def hours(self) -> float:
        """Length of it all."""
        return sum(seconds for seconds, _ in self.parts) / 3600.0

    @property
    def requests(self) -> float:
        """Requests in it all."""
        return sum(seconds * rate for seconds, rate in self.parts)


def replicas_for(rate: float, capacity: float, headroom: float) -> int:
    """Replicas that leave ``headroom`` (0.2: a fifth) of their capacity free; at least one."""
    return max(1, math.ceil(rate / (capacity * (1.0 - headroom)) - 1e-9))


def fixed_fleet(traffic: Traffic, curve: ReplicaCurve, slo: Slo, headroom: float, price: float | None) -> Json | None:
    """Replicas for each part of a traffic, and the cost of all; None: the limits cannot be kept at any load."""
    found = curve.capacity(slo)
    if found is None:
        return None
    capacity, users = found
    needed = [replicas_for(rate, capacity, headroom) for _, rate in traffic.parts]
    hours = sum(count * seconds / 3600.0 for count, (seconds, _) in zip(needed, traffic.parts, strict=True))
    tokens = traffic.requests * curve.at(users, "tokens")
    return {
        "requests_per_s_per_replica": round(capacity, 4),
        "users_per_replica": round(users, 2),
        "replicas": needed,
        "most_replicas": max(needed),
        "replica_hours": round(hours, 3),
        "cost": None if price is None else round(hours * price, 4),
        "cost_per_million_tokens": None if price is None or not tokens else round(hours * price / tokens * 1e6, 6),
    }


def curves(measured: Measured, workload: str) -> dict[str, ReplicaCurve]:
    """The curve of every variant that has one.

    Raises:
        UserError: the workload was not measured, or at too few loads.
    """
    if workload not in measured.workloads:
        raise UserError(f"workload {workload!r} was not measured; measured are {', '.join(measured.workloads)}")
    found = {}
    for variant in measured.variants:
        cells = measured.curve(workload, variant)
        if len(cells) >= 2:
            found[variant] = ReplicaCurve.of(cells)
    if not found:
        raise UserError(f"workload {workload!r} was measured at one load only; a curve needs at least two")
    return found
