"""From samples to the figures of a run."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from loadtest.observe import Reading, mean_replicas, store_results
from loadtest.sample import Sample
from loadtest.settings import Limits, RunSettings

Json = dict[str, Any]

PERCENTILES = (50, 90, 99)
_PARTS = 24


def summarise(
    settings: RunSettings, samples: Sequence[Sample], begin_s: float, end_s: float, readings: Sequence[Reading] = ()
) -> Json:
    """All figures of the window from ``begin_s`` to ``end_s``, in seconds since the load began.

    Requests count if they were due in the window, however long they took; throughput counts the requests that ended in
    it without error, and the tokens that came in it.
    """
    window_s = max(end_s - begin_s, 1e-9)
    counted = [sample for sample in samples if begin_s <= sample.start_s < end_s]
    whole = [sample for sample in counted if sample.error is None]
    ended = sum(s.error is None and begin_s <= s.start_s + s.end_s < end_s for s in samples)
    tokens = sum(sample.tokens_between(begin_s, end_s) for sample in samples)
    tokens_per_s = tokens / window_s
    replicas = settings.replicas or mean_replicas(readings, begin_s, end_s)
    return {
        "window_s": round(window_s, 3),
        "requests": len(counted),
        "failed": len(counted) - len(whole),
        "errors": dict(Counter(sample.error for sample in counted if sample.error is not None).most_common(10)),
        "throughput": {
            "requests_per_s": round(ended / window_s, 4),
            "output_tokens_per_s": round(tokens_per_s, 3),
        },
        "offered_per_s": round(len(counted) / window_s, 4),
        "ttft_ms": spread(sample.ttft_ms for sample in whole),
        "time_per_token_ms": spread(sample.time_per_token_ms for sample in whole),
        "latency_per_token_ms": spread(sample.latency_per_token_ms for sample in whole),
        "gap_ms": spread(gap for sample in whole for gap in sample.gaps_ms),
        "request_s": spread((sample.end_s for sample in whole), digits=4),
        "prompt_tokens": spread(sample.prompt_tokens for sample in whole),
        "completion_tokens": spread(sample.completion_tokens for sample in whole),
        "goodput": goodput(settings.limits, counted, window_s),
        "mat": mat(whole) or mat_of_counters(readings, begin_s, end_s),
        "acceptance": acceptance(whole),
        "store": store_results(readings),
        "replicas": None if replicas is None else round(replicas, 3),
        "price_per_replica_hour": settings.price_per_replica_hour,
        "cost_per_million_tokens": cost_per_million(settings.price_per_replica_hour, replicas, tokens_per_s),
        "late_ms": spread(sample.late_s * 1e3 for sample in counted),
        "over_time": over_time(samples, begin_s, end_s),
    }


def over_time(samples: Sequence[Sample], begin_s: float, end_s: float) -> list[Json]:
    """The window in equal parts: tokens per second that came in each, and times of the requests that were due in it."""
    edges = np.linspace(begin_s, end_s, _PARTS + 1).tolist()
    parts = []
    for begin, end in itertools.pairwise(edges):
        due = [sample for sample in samples if begin <= sample.start_s < end]
        whole = [sample for sample in due if sample.error is None]
        tokens = sum(sample.tokens_between(begin, end) for sample in samples)
        parts.append(
            {
                "at_s": round((begin + end) / 2, 2),
                "requests": len(due),
                "failed": len(due) - len(whole),
                "output_tokens_per_s": round(tokens / max(end - begin, 1e-9), 3),
                "ttft_ms": spread(sample.ttft_ms for sample in whole),
                "latency_per_token_ms": spread(sample.latency_per_token_ms for sample in whole),
            }
        )
    return parts


def spread(values: Iterable[float | None], digits: int = 2) -> Json | None:
    """Mean and percentiles (linear between neighbours); None where there is no value."""
    known = np.array([value for value in values if value is not None], dtype=float)
    if not known.size:
        return None
    found = {f"p{p}": round(float(np.percentile(known, p)), digits) for p in PERCENTILES}
    return {"mean": round(float(known.mean()), digits), **found, "max": round(float(known.max()), digits)}


def goodput(limits: Limits, counted: Sequence[Sample], window_s: float) -> Json:
    """How many requests kept the limits, and whether enough of them did. A failed request is never good."""
    good = sum(is_good(limits, sample) for sample in counted)
    failed = sum(sample.error is not None for sample in counted)
    share = good / len(counted) if counted else 0.0
    held = bool(counted) and failed / len(counted) <= limits.error_share
    if limits.ttft_ms is not None or limits.time_per_token_ms is not None:
        held = held and share >= limits.good_share
    return {
        "limits": limits.model_dump(),
        "good_share": round(share, 5),
        "good_requests_per_s": round(good / window_s, 4),
        "held": held,
    }


def is_good(limits: Limits, sample: Sample) -> bool:
    """Whether a request succeeded within its limits; a time that it does not have keeps its limit."""
    times = ((sample.ttft_ms, limits.ttft_ms), (sample.time_per_token_ms, limits.time_per_token_ms))
    return sample.error is None and all(time is None or most is None or time <= most for time, most in times)


def mat(samples: Iterable[Sample]) -> float | None:
    """Tokens decided per step, over all requests; None if the server does not tell."""
    told = [(sample.mat, sample.steps) for sample in samples if sample.mat is not None and sample.steps]
    steps = sum(count for _, count in told)
    return round(sum(value * count for value, count in told) / steps, 4) if steps else None


def mat_of_counters(readings: Sequence[Reading], begin_s: float, end_s: float) -> float | None:
    """The same from vLLM's counters: each step decides one token more than it accepts.

    Taken between the last reading before the window and the first after it, or the nearest there are.
    """
    told = [(r.at_s, r.generated, r.accepted) for r in readings if r.generated is not None and r.accepted is not None]
    if len(told) < 2:
        return None
    _, generated_before, accepted_before = next((one for one in reversed(told) if one[0] <= begin_s), told[0])
    _, generated_after, accepted_after = next((one for one in told if one[0] >= end_s), told[-1])
    generated, accepted = generated_after - generated_before, accepted_after - accepted_before
    return round(generated / (generated - accepted), 4) if generated > accepted else None


def acceptance(samples: Iterable[Sample]) -> Json:
    """Drafted and accepted tokens by source, and the part that was accepted."""
    drafted: Counter[str] = Counter()
    accepted: Counter[str] = Counter()
    for sample in samples:
        drafted.update(sample.drafted)
        accepted.update(sample.accepted)
    return {
        source: {"drafted": count, "accepted": accepted[source], "share": round(accepted[source] / count, 4)}
        for source, count in drafted.items()
        if count
    }


def cost_per_million(price: float | None, replicas: float | None, tokens_per_s: float) -> float | None:
    """Price of a million output tokens: what the replicas cost in the time that they take for them."""
    if price is None or replicas is None or tokens_per_s <= 0.0:
        return None
    return round(price * replicas / 3600.0 / tokens_per_s * 1e6, 6)
