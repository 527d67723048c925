"""What a client counts. Reading and writing are apart: a metrics endpoint takes a snapshot."""

from __future__ import annotations

import bisect
import threading
from collections import Counter
from dataclasses import dataclass

from datastore.breaker import BreakerState

LATENCY_BOUNDS_MS = (0.1, 0.2, 0.3, 0.5, 0.75, 1.0, 1.5, 2.0, 3.0, 5.0, 10.0, 20.0, 50.0, 100.0)


@dataclass(frozen=True, slots=True)
class ClientStats:
    """Counts since the client was made.

    lookups          contexts asked for
    near_hits        of these, answered by the near cache
    hits             contexts for which something was found, by tokens matched
    misses           contexts the store knows nothing of
    late             contexts without an answer at their deadline
    failed           contexts whose question failed, by kind of error
    refused          contexts not asked for, since the breaker was open
    latency_counts   round trips by time, one more than ``LATENCY_BOUNDS_MS``: the last is longer than all
    latency_total_ms sum of these times
    learned          tokens written
    write_failed     tokens whose write failed, by kind of error
    dropped          tokens not written, since the queue was full or writing had stopped working
    queued           tokens waiting to be written
    breaker, write_breaker  state of lookups and of writes
    opened           times that the breaker of lookups opened
    """

    lookups: int
    near_hits: int
    hits: dict[int, int]
    misses: int
    late: int
    failed: dict[str, int]
    refused: int
    latency_counts: tuple[int, ...]
    latency_total_ms: float
    learned: int
    write_failed: dict[str, int]
    dropped: int
    queued: int
    breaker: BreakerState
    write_breaker: BreakerState
    opened: int


class Counters:
    """Counts of one client, safe to add to from several threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.counts: Counter[str] = Counter()
        self.hits: Counter[int] = Counter()
        self.failed: Counter[str] = Counter()
        self.write_failed: Counter[str] = Counter()
        self.latencies = [0] * (len(LATENCY_BOUNDS_MS) + 1)
        self.latency_total_ms = 0.0

    def add(self, name: str, amount: int) -> None:
        """Add to one of the plain counts."""
        with self._lock:
            self.counts[name] += amount

    def hit(self, matched: list[int]) -> None:
        """Contexts for which something was found, with the tokens each matched."""
        with self._lock:
            self.hits.update(matched)

    def fail(self, error: BaseException, contexts: int) -> None:
        """A question that failed."""
        with self._lock:
            self.failed[type(error).__name__] += contexts

    def write_fail(self, error: BaseException, tokens: int) -> None:
        """A write that failed."""
        with self._lock:
            self.write_failed[type(error).__name__] += tokens

    def time(self, elapsed_ms: float) -> None:
        """A round trip that was answered, in time or not."""
        with self._lock:
            self.latencies[bisect.bisect_left(LATENCY_BOUNDS_MS, elapsed_ms)] += 1
            self.latency_total_ms += elapsed_ms

    def snapshot(self, queued: int, breaker: BreakerState, write_breaker: BreakerState, opened: int) -> ClientStats:
        """All counts at one moment."""
        with self._lock:
            counts = self.counts
            return ClientStats(
                lookups=counts["lookups"],
                near_hits=counts["near_hits"],
                hits=dict(sorted(self.hits.items())),
                misses=counts["misses"],
                late=counts["late"],
                failed=dict(self.failed),
                refused=counts["refused"],
                latency_counts=tuple(self.latencies),
                latency_total_ms=self.latency_total_ms,
                learned=counts["learned"],
                write_failed=dict(self.write_failed),
                dropped=counts["dropped"],
                queued=queued,
                breaker=breaker,
                write_breaker=write_breaker,
                opened=opened,
            )
