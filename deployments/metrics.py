"""What a replica exports, through Ray's exporter. Ray puts ``ray_`` before each name and labels it with the replica."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from ray.serve.metrics import Counter, Gauge, Histogram

from datastore.breaker import BreakerState
from deployments.signals import cache_use
from racer.types import DRAFT_SOURCES

if TYPE_CHECKING:
    from datastore.counters import ClientStats
    from deployments.answering import Record
    from deployments.calls import Learn
    from racer.engine import Engine

_FIRST_TOKEN_S = [0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0]
_PER_TOKEN_S = [0.001, 0.0025, 0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.2, 0.5, 1.0]
_REQUEST_S = [0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0]
_STEP_MS = [2.0, 5.0, 10.0, 20.0, 30.0, 40.0, 60.0, 80.0, 120.0, 200.0, 400.0, 1000.0]
_MAT = [1.0, 1.25, 1.5, 2.0, 2.5, 3.0, 4.0, 5.0, 6.0, 8.0, 12.0, 16.0]
_BUDGET = [1.0, 2.0, 4.0, 8.0, 12.0, 16.0, 24.0, 32.0, 48.0, 64.0, 128.0]


class ReplicaMetrics:
    """Metrics of one replica, all labelled with its ``model``; those of requests with ``namespace`` where asked."""

    def __init__(self, model: str, *, by_namespace: bool) -> None:
        self._model = {"model": model}
        self._by_namespace = by_namespace
        labels = ("model", "namespace")
        self._requests = Counter("racer_requests", "Requests that have ended, by outcome.", (*labels, "outcome"))
        self._prompt_tokens = Counter("racer_prompt_tokens", "Tokens of prompts.", labels)
        self._completion_tokens = Counter("racer_completion_tokens", "Tokens delivered.", labels)
        self._first_token = Histogram(
            "racer_time_to_first_token_s", "Seconds to the first token.", _FIRST_TOKEN_S, labels
        )
        self._per_token = Histogram("racer_time_per_token_s", "Seconds a token after the first.", _PER_TOKEN_S, labels)
        self._duration = Histogram("racer_request_s", "Seconds from arrival to the end.", _REQUEST_S, labels)
        self._mat = Histogram("racer_mat", "Mean accepted tokens of a request; plain decoding is 1.", _MAT, labels)
        one = ("model",)
        self._steps = Counter("racer_steps", "Steps of the engine.", one)
        self._step_ms = Histogram("racer_step_ms", "Milliseconds of a step.", _STEP_MS, one)
        self._draft_ms = Counter("racer_draft_ms", "Milliseconds spent on drafting.", one)
        self._step_total_ms = Counter("racer_step_total_ms", "Milliseconds spent on steps.", one)
        self._budget = Histogram("racer_budget", "Nodes of a draft tree, root included, mean of a step.", _BUDGET, one)
        self._drafted = Counter("racer_drafted_tokens", "Draft nodes verified.", ("model", "source"))
        self._accepted = Counter("racer_accepted_tokens", "Draft nodes accepted.", ("model", "source"))
        self._drafted_depth = Counter("racer_drafted_by_depth", "Draft nodes verified.", ("model", "depth"))
        self._accepted_depth = Counter("racer_accepted_by_depth", "Draft nodes accepted.", ("model", "depth"))
        self._open = Gauge("racer_open_requests", "Requests open in the replica.", one)
        self._running = Gauge("racer_running_sequences", "Sequences being decoded.", one)
        self._waiting = Gauge("racer_waiting_sequences", "Sequences waiting for a place.", one)
        self._cache = Gauge("racer_cache_use", "Part of the key-value cache in use, 0 to 1.", one)
        self._store = Counter("racer_store_contexts", "Contexts asked of the store, by result.", (*labels, "result"))
        self._learned = Counter("racer_store_learned_tokens", "Tokens written to the store.", labels)
        self._dropped = Counter("racer_store_dropped_tokens", "Tokens not written to the store.", labels)
        self._breaker = Gauge("racer_store_breaker", "1 while lookups do not reach the store, 0.5 on trial.", labels)
        self._seen_steps = 0
        self._seen: dict[tuple[Any, ...], float] = {}

    def _labels(self, namespace: str | None) -> dict[str, str]:
        return self._model | {"namespace": (namespace or "") if self._by_namespace else ""}

    def observe(self, record: Record) -> None:
        """A request has ended."""
        labels, usage = self._labels(record.namespace), record.usage
        self._requests.inc(1, labels | {"outcome": record.outcome})
        self._duration.observe(record.elapsed_s, labels)
        if record.first_token_s is not None:
            self._first_token.observe(record.first_token_s, labels)
        tokens = usage.get("completion_tokens", 0)
        for counter, amount in (
            (self._prompt_tokens, usage.get("prompt_tokens", 0)),
            (self._completion_tokens, tokens),
        ):
            if amount:
                counter.inc(amount, labels)
        if tokens > 1 and record.first_token_s is not None:
            self._per_token.observe((record.elapsed_s - record.first_token_s) / (tokens - 1), labels)
        if (mat := usage.get("racer", {}).get("mat")) is not None:
            self._mat.observe(mat, labels)

    def collect(self, engine: Engine, store: Sequence[tuple[str, Learn, ClientStats]], open_requests: int) -> None:
        """Take over what the engine and the store's clients have counted since the last call."""
        metrics, scheduler = engine.metrics, engine.scheduler
        self._open.set(open_requests, self._model)
        self._running.set(len(scheduler.running), self._model)
        self._waiting.set(len(scheduler.waiting), self._model)
        self._cache.set(cache_use(engine), self._model)
        steps = metrics.steps
        for step in list(metrics.recent)[-(steps - self._seen_steps) :] if steps > self._seen_steps else ():
            self._step_ms.observe(step.step_ms, self._model)
            if step.decoding:
                self._budget.observe(step.mean_budget, self._model)
        self._seen_steps = steps
        self._advance(self._steps, metrics.steps, self._model)
        self._advance(self._step_total_ms, metrics.step_ms, self._model)
        self._advance(self._draft_ms, metrics.draft_ms, self._model)
        for source in DRAFT_SOURCES:
            labels = self._model | {"source": source.label}
            self._advance(self._drafted, metrics.drafted[source], labels)
            self._advance(self._accepted, metrics.accepted[source], labels)
        for counter, by_depth in (
            (self._drafted_depth, metrics.drafted_by_depth),
            (self._accepted_depth, metrics.accepted_by_depth),
        ):
            for depth, amount in enumerate(by_depth.tolist(), start=1):
                self._advance(counter, amount, self._model | {"depth": str(depth)})
        for namespace, learn, stats in store:
            self._collect_store(self._labels(namespace), (namespace, learn), stats)

    def _collect_store(self, labels: dict[str, str], client: tuple[str, ...], stats: ClientStats) -> None:
        results = {
            "hit": sum(stats.hits.values()),
            "miss": stats.misses,
            "late": stats.late,
            "failed": sum(stats.failed.values()),
            "refused": stats.refused,
        }
        for result, amount in results.items():
            self._advance(self._store, amount, labels | {"result": result}, *client)
        self._advance(self._learned, stats.learned, labels, *client)
        self._advance(self._dropped, stats.dropped + sum(stats.write_failed.values()), labels, *client)
        self._breaker.set(stats.breaker.value / BreakerState.OPEN.value, labels)

    def _advance(self, counter: Counter, total: float, labels: dict[str, str], *of: str) -> None:
        """Bring an exported counter up to a ``total`` that is counted elsewhere; a total that fell began anew."""
        key = (id(counter), *sorted(labels.items()), *of)
        before = self._seen.get(key, 0.0)
        self._seen[key] = total
        amount = total - before if total >= before else total
        if amount > 0:
            counter.inc(amount, labels)
