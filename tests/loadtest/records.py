"""Records of runs as a sweep writes them, made by a law instead of a server."""

from __future__ import annotations

from typing import Any

Record = dict[str, Any]


def spread(value: float) -> dict[str, float]:
    return {"mean": value, "p50": value, "p90": 1.2 * value, "p99": 1.5 * value, "max": 2 * value}


def record(
    variant: str,
    users: int,
    tokens_per_s: float,
    *,
    repeat: int = 0,
    workload: str = "support",
    mat: float = 1.0,
    price: float | None = 1.0,
    failed: int = 0,
    load: dict[str, Any] | None = None,
    readings: list[dict[str, Any]] | None = None,
    tokens: float = 100.0,
    ttft_ms: float = 100.0,
    store: dict[str, int] | None = None,
) -> Record:
    """One run whose requests have 100 tokens each; with ``users`` at a time a token takes users / rate."""
    per_token_ms = 1e3 * users / tokens_per_s
    cost = None if price is None else price / 3600 / tokens_per_s * 1e6
    settings_load = load or {"users": users}
    label = "steps" if "steps" in settings_load else f"{users} user{'s' if users > 1 else ''}"
    if "rate" in settings_load:
        label = f"{settings_load['rate']:g}/s"
    figures = {
        "window_s": 60.0,
        "requests": 100,
        "failed": failed,
        "errors": {},
        "throughput": {"requests_per_s": tokens_per_s / tokens, "output_tokens_per_s": tokens_per_s},
        "offered_per_s": tokens_per_s / tokens,
        "ttft_ms": spread(ttft_ms),
        "time_per_token_ms": spread(per_token_ms),
        "latency_per_token_ms": spread(per_token_ms),
        "gap_ms": spread(per_token_ms),
        "request_s": spread(per_token_ms * tokens / 1e3),
        "prompt_tokens": spread(300),
        "completion_tokens": spread(tokens),
        "goodput": {"limits": {}, "good_share": 1.0, "good_requests_per_s": 1.0, "held": failed == 0},
        "mat": mat,
        "acceptance": {} if mat == 1.0 else {"logits": {"drafted": 300, "accepted": 100, "share": 0.333}},
        "store": store,
        "replicas": 1.0,
        "price_per_replica_hour": price,
        "cost_per_million_tokens": cost,
        "late_ms": spread(0.1),
        "over_time": [
            {
                "at_s": at_s,
                "requests": 10,
                "failed": 0,
                "output_tokens_per_s": tokens_per_s,
                "ttft_ms": spread(ttft_ms),
                "latency_per_token_ms": spread(per_token_ms),
            }
            for at_s in (10.0, 30.0, 50.0)
        ],
    }
    return {
        "id": f"{workload}_{label}_{variant}_r{repeat}",
        "variant": variant,
        "options": {},
        "workload": workload,
        "load": label,
        "repeat": repeat,
        "baseline": "plain",
        "started": "2026-01-01T10:00:00+00:00",
        "settings": {"load": settings_load, "url": "http://127.0.0.1/v1"},
        "figures": figures,
        "readings": readings or [],
    }
