"""The table of a run is what README shows of one."""

from __future__ import annotations

import re
from pathlib import Path

from loadtest.tables import _ROWS, run_table

README = Path(__file__).parents[2] / "README.md"


def shape(text: str) -> list[str]:
    return [" ".join(re.sub(r"[\d.]+", "0", line).split()) for line in text.splitlines()]


def test_readme_shows_a_run_as_it_is_printed() -> None:
    spread = {"p50": 1.0, "p90": 2.0, "p99": 3.0, "max": 4.0}
    figures = {name: spread for _, name in _ROWS} | {
        "window_s": 30.0,
        "requests": 8,
        "failed": 0,
        "throughput": {"output_tokens_per_s": 12.9, "requests_per_s": 0.13},
        "goodput": {"held": True, "good_share": 1.0, "good_requests_per_s": 0.27},
        "mat": 2.8,
        "acceptance": {name: {"share": 0.2} for name in ("retrieval", "logits", "store")},
        "store": {"hits": 54, "misses": 151, "unanswered": 0},
        "price_per_replica_hour": 0.1,
        "replicas": 1.0,
        "cost_per_million_tokens": 2.16,
        "errors": {},
    }
    printed = shape(run_table("support", "4 users", figures))
    shown = README.read_text(encoding="utf-8").partition("```\nsupport, 4 users")[2].partition("\n```")[0]
    assert shape("support, 4 users" + shown) == printed
