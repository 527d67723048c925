"""A sweep with servers of its own: the demo model on Ray Serve, and a real Redis that replicas share."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from loadtest.runs import read_runs
from loadtest.workloads.words import TOPICS
from tests.loadtest.commands import loadtest

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]

MODEL = {
    "name": "demo",
    "engine": {"model": "demo", "prior": False, "compile": False, "budget": 16, "max_running": 8},
    "num_cpus": 1,
    "threads": 2,
}
GRID: dict[str, Any] = {
    "servers": {"own": {"config": {"models": [MODEL], "store": {"url": "embedded:"}}}},
    "variants": [{"name": "cold", "store": "cold"}, {"name": "warm", "store": "warm"}],
    "loads": [{"users": 1}],
    "repeats": 1,
    "run": {"duration_s": 2.0},
    "settle": 0,
    "warm": {"conversations": 4, "users": 2},
}


def test_a_warm_store_drafts_from_the_first_request_on(tmp_path: Path) -> None:
    questions, out = tmp_path / "questions.jsonl", tmp_path / "out"
    lines = [{"turns": [f"Tell me in a few sentences {what}."], "max_tokens": 60} for what in TOPICS[:4]]
    questions.write_text("".join(json.dumps(line) + "\n" for line in lines))
    (tmp_path / "grid.yaml").write_text(yaml.safe_dump(GRID | {"workloads": [str(questions)]}))
    done = loadtest("sweep", str(tmp_path / "grid.yaml"), "--output", str(out), timeout_s=350)
    assert done.returncode == 0, done.stderr
    records = {record["variant"]: record for record in read_runs(out)}
    assert all(record["figures"]["failed"] == 0 for record in records.values())
    first = {}
    for variant, record in records.items():
        samples = (out / "samples" / record["id"] / "samples.jsonl").read_text().splitlines()
        first[variant] = json.loads(samples[0])
    assert first["cold"]["conversation"] == first["warm"]["conversation"] == "questions-0"
    assert first["cold"]["accepted"].get("store", 0) == 0  # the cold run's namespace began empty
    assert first["warm"]["accepted"]["store"] > 10, done.stderr  # warming has asked the same
    assert first["warm"]["steps"] < first["cold"]["steps"]
