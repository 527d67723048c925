"""Structured logs through Ray Serve's JSON logger. No key, prompt or answer is ever among the fields."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from deployments.answering import Record

LOGGER = "ray.serve"
"""Serve's own logger: it writes JSON, and adds application, deployment, replica and request."""


def log_request(record: Record, model: str) -> None:
    """One line for a request that has ended."""
    usage = record.usage
    stats = usage.get("racer", {})
    logging.getLogger(LOGGER).info(
        "request",
        extra={
            "request": record.request_id,
            "kind": record.kind,
            "model": model,
            "namespace": record.namespace,
            "user": record.user,
            "stream": record.stream,
            "status": record.status,
            "outcome": record.outcome,
            "elapsed_s": round(record.elapsed_s, 4),
            "first_token_s": None if record.first_token_s is None else round(record.first_token_s, 4),
            "prompt_tokens": usage.get("prompt_tokens"),
            "completion_tokens": usage.get("completion_tokens"),
            "steps": stats.get("steps"),
            "mat": stats.get("mat"),
        },
    )
