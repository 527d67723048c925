"""Inputs, and what became of them."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from deployments.batch.journal import Journal
from deployments.batch.locations import expand
from deployments.batch.outputs import Outputs
from deployments.batch.plan import Plan, make_plan
from deployments.batch.requests import Reading


def batch_line(custom_id: str, prompt: str, **body: Any) -> dict[str, Any]:
    """A line in OpenAI's form."""
    return {
        "custom_id": custom_id,
        "method": "POST",
        "url": "/v1/completions",
        "body": {"model": "demo", "prompt": prompt} | body,
    }


def write_lines(path: Path, lines: Iterable[Any]) -> Path:
    """A file of them: texts as they are, all else as JSON."""
    with path.open("w") as file:
        for line in lines:
            file.write((line if isinstance(line, str) else json.dumps(line)) + "\n")
    return path


def records(path: Path) -> list[dict[str, Any]]:
    """A file's records; none if there is no file."""
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def plan_of(*paths: Path | str, lines: int = 8, folder: Path | None = None, **reading: Any) -> Plan:
    """The plan for some inputs."""
    return make_plan(expand([str(path) for path in paths]), Reading(**reading), lines, folder or Path("/nonexistent"))


def journal_of(output: Path, plan: Plan) -> Journal:
    """A journal that was begun, or goes on where there is one."""
    journal = Journal(Outputs(str(output)).parts, plan.requests)
    if journal.job() is None:
        journal.begin({})
    else:
        journal.resume()
    return journal


def text_of(record: dict[str, Any]) -> str:
    """The text of a completion's record."""
    text: str = record["response"]["body"]["choices"][0]["text"]
    return text
