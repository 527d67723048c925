"""Throughput and latency over load, as a sweep has measured them."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from loadtest.statistics import Estimate, estimate, ratio

Json = dict[str, Any]

_SATURATED = 0.95


@dataclass
class Cell:
    """All repeats of one variant on one workload at one load. ``level``: users, or conversations per second."""

    variant: str
    workload: str
    load: str
    level: float
    open_loop: bool
    runs: dict[int, Json] = field(default_factory=dict)

    def values(self, *path: str) -> dict[int, float]:
        """A figure by repeat, as far as it is known: ``values("ttft_ms", "p50")``."""
        found: dict[int, float] = {}
        for repeat, record in self.runs.items():
            value: Any = record["figures"]
            for name in path:
                value = None if value is None else value.get(name)
            if value is not None:
                found[repeat] = float(value)
        return found

    def mean(self, *path: str) -> Estimate | None:
        """The same, over the repeats."""
        return estimate(list(self.values(*path).values()))

    @property
    def tokens_per_s(self) -> Estimate | None:
        """Output tokens per second."""
        return self.mean("throughput", "output_tokens_per_s")


class Measured:
    """The runs of a sweep, by workload, variant and load. Runs that failed, or whose users change, are left out."""

    def __init__(self, records: Iterable[Json]) -> None:
        self.cells: dict[tuple[str, str, str], Cell] = {}
        self.failed: list[Json] = []
        self.others: list[Json] = []  # steps and replays: looked at over time
        self.baseline = ""
        for record in records:
            self.baseline = record.get("baseline", self.baseline)
            load = record.get("settings", {}).get("load", {})
            level = load.get("users") or load.get("rate")
            if "error" in record:
                self.failed.append(record)
            elif level is None:
                self.others.append(record)
            else:
                key = (record["workload"], record["variant"], record["load"])
                cell = self.cells.setdefault(
                    key,
                    Cell(record["variant"], record["workload"], record["load"], level, load.get("rate") is not None),
                )
                cell.runs[record["repeat"]] = record
        self.workloads = list(dict.fromkeys(workload for workload, _, _ in self.cells))
        self.variants = sorted(
            dict.fromkeys(variant for _, variant, _ in self.cells), key=lambda name: name != self.baseline
        )

    def curve(self, workload: str, variant: str, *, open_loop: bool = False) -> list[Cell]:
        """The cells of one variant, by rising load."""
        found = (
            c for c in self.cells.values() if (c.workload, c.variant, c.open_loop) == (workload, variant, open_loop)
        )
        return sorted(found, key=lambda cell: cell.level)

    def speedup(self, cell: Cell) -> Estimate | None:
        """Tokens per second relative to the baseline's at the same load, repeat by repeat."""
        return self.against_baseline(cell, "throughput", "output_tokens_per_s")

    def against_baseline(self, cell: Cell, *path: str) -> Estimate | None:
        """A figure relative to the baseline's at the same load, repeat by repeat."""
        base = self.cells.get((cell.workload, self.baseline, cell.load))
        return None if base is None else compared(cell, base, *path)


def compared(cell: Cell, base: Cell, *path: str) -> Estimate | None:
    """A figure of ``cell`` relative to that of ``base``, over the repeats that both have."""
    new, old = cell.values(*path), base.values(*path)
    return ratio([(new[repeat], old[repeat]) for repeat in new if repeat in old])


def saturation(curve: Sequence[Cell]) -> Cell | None:
    """The least load that already gives nearly the most tokens per second; None without figures."""
    known = [(cell, cell.tokens_per_s.mean) for cell in curve if cell.tokens_per_s is not None]
    if not known:
        return None
    most = max(rate for _, rate in known)
    return next(cell for cell, rate in known if rate >= _SATURATED * most)


def throughput_within(points: Sequence[tuple[float, float]], limit: float) -> float | None:
    """Most throughput at a latency of at most ``limit``; ``points`` are (latency, throughput) by rising load.

    Between neighbours, latency and throughput are taken to change together, linearly. None: no load keeps the limit.
    """
    best = max((rate for latency, rate in points if latency <= limit), default=None)
    for (near, slow), (far, fast) in itertools.pairwise(points):
        if near <= limit < far:
            between = slow + (fast - slow) * (limit - near) / (far - near)
            best = between if best is None else max(best, between)
    return best


def points_of(curve: Sequence[Cell], repeat: int, latency: Sequence[str]) -> list[tuple[float, float]]:
    """(latency, tokens per second) of one repeat, by rising load."""
    found = []
    for cell in curve:
        x = cell.values(*latency).get(repeat)
        y = cell.values("throughput", "output_tokens_per_s").get(repeat)
        if x is not None and y is not None:
            found.append((x, y))
    return found


def at_equal_latency(
    curve: Sequence[Cell], base: Sequence[Cell], limits: Mapping[int, float], latency: Sequence[str]
) -> Estimate | None:
    """Throughput of ``curve`` relative to ``base``'s, both kept below a latency limit that each repeat sets."""
    pairs = []
    for repeat, limit in limits.items():
        new = throughput_within(points_of(curve, repeat, latency), limit)
        old = throughput_within(points_of(base, repeat, latency), limit)
        if new is not None and old is not None:
            pairs.append((new, old))
    return ratio(pairs)
