"""Figures of a run for the terminal."""

from __future__ import annotations

from typing import Any

Json = dict[str, Any]

_ROWS = (
    ("time to first token, ms", "ttft_ms"),
    ("time per token, ms", "time_per_token_ms"),
    ("wait for the next piece, ms", "gap_ms"),
    ("whole answer, s", "request_s"),
    ("prompt tokens", "prompt_tokens"),
    ("answer tokens", "completion_tokens"),
    ("sent late, ms", "late_ms"),
)


def run_table(workload: str, load: str, figures: Json) -> str:
    """The figures of ``summarise`` as lines of text."""
    rate = figures["throughput"]
    lines = [
        f"{workload}, {load}, {figures['window_s']:g} s: {figures['requests']} requests, {figures['failed']} failed",
        f"{'':28}{'p50':>10}{'p90':>10}{'p99':>10}{'max':>10}",
    ]
    for title, name in _ROWS:
        if (found := figures[name]) is not None:
            lines.append(f"{title:28}" + "".join(f"{found[p]:10.1f}" for p in ("p50", "p90", "p99", "max")))
    lines.append(f"{rate['output_tokens_per_s']:.1f} tokens/s, {rate['requests_per_s']:.2f} requests/s")
    good = figures["goodput"]
    said = "held" if good["held"] else "not held"
    lines.append(f"within limits: {good['good_share']:.1%}, {good['good_requests_per_s']:.2f} requests/s ({said})")
    if figures["mat"] is not None:
        sources = ", ".join(f"{name} {value['share']:.0%}" for name, value in figures["acceptance"].items())
        lines.append(f"MAT {figures['mat']:.2f}" + (f"; accepted of drafted: {sources}" if sources else ""))
    if (store := figures["store"]) is not None:
        lines.append(
            f"store: {store['hits']} contexts known, {store['misses']} not, {store['unanswered']} not answered in time"
        )
    if figures["price_per_replica_hour"] is not None and figures["replicas"] is None:
        lines.append("no cost: the server does not tell how many replicas it has; give --replicas")
    if figures["cost_per_million_tokens"] is not None:
        lines.append(
            f"{figures['cost_per_million_tokens']:.4g} per million tokens with {figures['replicas']:g} replicas"
        )
    lines += [f"{count} times: {error}" for error, count in figures["errors"].items()]
    return "\n".join(lines)
