"""A fleet in a discrete-event simulation: replicas that behave as measured, a router, an autoscaler, a shared store.

A replica with n requests delivers the tokens per second that were measured at n users, divided equally among them
(processor sharing); beyond the last measured level it admits no more, and requests wait for any replica. Prompts are
part of this: a request's work is its answer's tokens, plus what its first token took longer than a token.
"""

from __future__ import annotations

import heapq
import math
import random
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import cast

from loadtest.fleets import Finished, FleetResult, Scaling, SharedStore
from loadtest.plan import ReplicaCurve, Traffic

_NORMAL_P90 = 1.2815515655446004


class _Replica:
    """Processor sharing by attained service: all requests under way get tokens at one rate."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.attained = 0.0  # tokens that a request which has always been here would have got
        self.updated_s = 0.0
        self.running: list[tuple[float, int, _Request]] = []  # by the attained service at which they end
        self.version = 0  # of its next departure: older ones are void
        self.draining = False

    @property
    def load(self) -> int:
        return len(self.running)


@dataclass
class _Request:
    arrived_s: float
    tokens: float
    work: float
    first_s: float = 0.0


class Fleet:
    """One simulation.

    Args:
        curve: a replica's behaviour.
        scaling: the autoscaler.
        seed: of lengths and arrivals, so that a run repeats exactly.
        store: the shared store, if replicas learn from each other.
        tokens: draws a request's answer length; by default log-normal, as the curve's answers are distributed.
    """

    def __init__(
        self,
        curve: ReplicaCurve,
        scaling: Scaling,
        *,
        seed: int = 1,
        store: SharedStore | None = None,
        tokens: Callable[[random.Random], float] | None = None,
    ) -> None:
        self._curve, self._scaling, self._store = curve, scaling, store
        self._rng = random.Random(f"fleet/{seed}")
        self._tokens = tokens or lengths_of(curve)
        self._most_running = max(1, round(curve.levels[-1].users))
        self._rates: dict[int, tuple[float, float]] = {}
        self._events: list[tuple[float, int, str, object]] = []
        self._sequence = 0
        initial = scaling.least if scaling.initial is None else scaling.initial
        self._usable = [_Replica(number) for number in range(initial)]
        self._draining = 0
        self._starting = 0
        self._open = 0
        self._waiting: deque[_Request] = deque()
        self._seen = 0
        self._above_s: float | None = None
        self._below_s: float | None = None
        self.result = FleetResult(replicas=[(0.0, initial)])

    def run(self, traffic: Traffic) -> FleetResult:
        """Let a traffic come, with Poisson arrivals, until its last request has been answered."""
        arrivals = self._arrivals(traffic)
        end_s = traffic.hours * 3600.0
        self._next_arrival(arrivals)
        if self._scaling.most > self._scaling.least:
            self._push(self._scaling.interval_s, "scale", None)
        now = 0.0
        while self._events:
            now, _, kind, what = heapq.heappop(self._events)
            if kind == "arrival":
                self._arrive(now)
                self._next_arrival(arrivals)
            elif kind == "departure":
                self._depart(now, what)
            elif kind == "started":
                self._start(now)
            elif now < end_s or self._open:
                self._scale(now)
                self._push(now + self._scaling.interval_s, "scale", None)
        self.result.ended_s = max(now, end_s)
        return self.result

    # --- requests

    def _arrivals(self, traffic: Traffic) -> Iterator[float]:
        begin = 0.0
        for seconds, rate in traffic.parts:
            time = begin + (self._rng.expovariate(rate) if rate > 0 else math.inf)
            while time < begin + seconds:
                yield time
                time += self._rng.expovariate(rate)
            begin += seconds

    def _next_arrival(self, arrivals: Iterator[float]) -> None:
        time = next(arrivals, None)
        if time is not None:
            self._push(time, "arrival", None)

    def _arrive(self, now: float) -> None:
        tokens = self._tokens(self._rng)
        level = self._curve.levels[0]
        prompt = max(0.0, level.ttft_ms / level.time_per_token_ms - 1.0)  # in tokens' time, at the least load
        request = _Request(now, tokens, tokens + prompt)
        one, other = self._rng.choice(self._usable), self._rng.choice(self._usable)
        replica = one if one.load <= other.load else other
        if replica.load >= self._most_running:
            replica = min(self._usable, key=lambda one: one.load)
        self._open += 1
        self._waiting.append(request)
        self._fill(replica, now)

    def _fill(self, replica: _Replica, now: float) -> None:
        """Give ``replica`` what waits, as far as it has places."""
        self._advance(replica, now)
        while self._waiting and replica.load < self._most_running and not replica.draining:
            self._admit(replica, self._waiting.popleft(), now)
        self._schedule(replica, now)

    def _admit(self, replica: _Replica, request: _Request, now: float) -> None:
        self._sequence += 1
        heapq.heappush(replica.running, (replica.attained + request.work, self._sequence, request))
        prompt = request.work - request.tokens + 1.0
        request.first_s = now - request.arrived_s + prompt / self._rate(len(replica.running))

    def _depart(self, now: float, what: object) -> None:
        replica, version = cast("tuple[_Replica, int]", what)
        if replica.version != version:
            return
        self._advance(replica, now)
        while replica.running and replica.running[0][0] <= replica.attained + 1e-6:
            request = heapq.heappop(replica.running)[2]
            took = now - request.arrived_s
            self.result.finished.append(Finished(request.arrived_s, min(request.first_s, took), took, request.tokens))
            self._open -= 1
            self._seen += 1
        if replica.draining and not replica.load:
            self._draining -= 1
            self._count(now)
        else:
            self._fill(replica, now)

    def _advance(self, replica: _Replica, now: float) -> None:
        if replica.running:
            replica.attained += (now - replica.updated_s) * self._rate(len(replica.running))
        replica.updated_s = now

    def _schedule(self, replica: _Replica, now: float) -> None:
        replica.version += 1
        if replica.running:
            left = max(0.0, replica.running[0][0] - replica.attained)
            self._push(now + left / self._rate(len(replica.running)), "departure", (replica, replica.version))

    def _rate(self, running: int) -> float:
        """Tokens per second that each of ``running`` requests gets, its prompt's share of work included."""
        if running not in self._rates:
            warm = self._store.warm if self._store is not None else self._curve
            self._rates[running] = (_each(self._curve, running), _each(warm, running))
        cold, warm_rate = self._rates[running]
        if self._store is None:
            return cold
        return cold + (warm_rate - cold) * (1.0 - math.exp(-self._seen / self._store.requests))

    # --- replicas

    def _scale(self, now: float) -> None:
        scaling = self._scaling
        there = len(self._usable) + self._starting
        wanted = scaling.wanted(self._open, len(self._usable))
        self._above_s = (self._above_s if self._above_s is not None else now) if wanted > there else None
        self._below_s = (self._below_s if self._below_s is not None else now) if wanted < there else None
        if self._above_s is not None and now - self._above_s >= scaling.upscale_delay_s:
            for _ in range(wanted - there):
                self._starting += 1
                self._push(now + scaling.start_s, "started", None)
            self._above_s = None
            self._count(now)
        elif self._below_s is not None and now - self._below_s >= scaling.downscale_delay_s:
            self._usable.sort(key=lambda one: -one.load)
            for _ in range(min(there - wanted, len(self._usable) - max(1, scaling.least))):
                replica = self._usable.pop()
                if replica.load:
                    replica.draining = True
                    self._draining += 1
            self._below_s = None
            self._count(now)

    def _start(self, now: float) -> None:
        self._starting -= 1
        replica = _Replica(self._sequence)
        replica.updated_s = now
        self._usable.append(replica)
        self._fill(replica, now)

    def _count(self, now: float) -> None:
        self.result.replicas.append((now, len(self._usable) + self._draining + self._starting))

    def _push(self, time: float, kind: str, what: object) -> None:
        self._sequence += 1
        heapq.heappush(self._events, (time, self._sequence, kind, what))


def _each(curve: ReplicaCurve, running: int) -> float:
    """Work per second for each of ``running`` requests: tokens, and the prompt's work in tokens' time."""
    level = curve.levels[0]
    prompt = max(0.0, level.ttft_ms / level.time_per_token_ms - 1.0)
    users = max(float(running), level.users)
    return curve.at(users, "tokens_per_s") / users * (1.0 + prompt / level.tokens)


def lengths_of(curve: ReplicaCurve) -> Callable[[random.Random], float]:
    """Draws answer lengths: log-normal through the median and the 90th percentile that were measured."""
    level = curve.levels[0]
    median = max(1.0, level.tokens_p50)
    sigma = max(0.0, math.log(max(level.tokens_p90, 1.0) / median)) / _NORMAL_P90
    return lambda rng: max(1.0, rng.lognormvariate(math.log(median), sigma))
