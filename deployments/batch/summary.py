"""What a run came to."""

from __future__ import annotations

from typing import Any

from deployments.batch.journal import Journal


def summarise(journal: Journal, job: dict[str, Any], price_per_hour: float | None) -> dict[str, Any]:
    """Figures over all records, those of earlier runs of the same job included. ``price_per_hour``: of one worker."""
    totals, tally = journal.totals, journal.totals.tally
    elapsed_s = journal.earlier["elapsed_s"] + journal.spent["elapsed_s"]
    replica_s = journal.earlier["replica_s"] + journal.spent["replica_s"]
    rate = tally.completion_tokens / elapsed_s if elapsed_s else 0.0
    found: dict[str, Any] = {
        "requests": totals.requests,
        "errors": totals.errors,
        "prompt_tokens": tally.prompt_tokens,
        "completion_tokens": tally.completion_tokens,
        "steps": tally.steps,
        "mat": None if totals.mat is None else round(totals.mat, 4),
        "accepted": tally.accepted,
        "elapsed_s": round(elapsed_s, 3),
        "replica_s": round(replica_s, 3),
        "tokens_per_s": round(rate, 2),
        "tokens_per_s_per_replica": round(tally.completion_tokens / replica_s, 2) if replica_s else None,
        "price_per_hour": price_per_hour,
        "cost": None if price_per_hour is None else round(replica_s / 3600 * price_per_hour, 6),
    }
    return found | {"job": job}


def sentence(summary: dict[str, Any]) -> str:
    """The same in one line."""
    parts = [
        f"{summary['requests'] - summary['errors']} answered, {summary['errors']} errors",
        f"{summary['completion_tokens']} tokens in {summary['elapsed_s']:.1f} s",
        f"{summary['tokens_per_s']:.1f} tok/s",
    ]
    if summary["tokens_per_s_per_replica"] is not None:
        parts.append(f"{summary['tokens_per_s_per_replica']:.1f} a replica")
    if summary["mat"] is not None:
        parts.append(f"MAT {summary['mat']:.2f}")
    if summary["cost"] is not None:
        parts.append(f"cost {summary['cost']:g}")
    return ", ".join(parts)
