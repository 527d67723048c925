"""Rows of ``bench``: summed over the prompts of a category, as JSON and as a table."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from racer.commands.modes import PLAIN, TRANSFORMERS, Mode
from racer.commands.suites import Question
from racer.commands.wording import number, plural
from racer.types import DRAFT_SOURCES, Source

if TYPE_CHECKING:
    from racer.commands.measure import Measured
    from racer.commands.ties import Difference

Row = dict[str, Any]


@dataclass(frozen=True)
class Result:
    """One turn of a question in one mode: what was measured, and where its ids leave plain decoding's."""

    question: Question
    mode: Mode
    concurrency: int
    measured: Measured
    difference: Difference | None


def build_rows(results: list[Result], groups: list[str]) -> list[Row]:
    """One row for each concurrency, category and mode, in order of first appearance."""
    keys = list(dict.fromkeys((result.concurrency, result.mode) for result in results))
    rows = []
    for group in groups:
        of_group = [result for result in results if group in result.question.groups]
        rates: dict[int, float] = {}
        for concurrency, mode in sorted(keys, key=lambda key: (key[0], key[1] != PLAIN)):
            chosen = [r for r in of_group if r.mode == mode and r.concurrency == concurrency]
            if not chosen:  # the run was interrupted before
                continue
            row = _row(group, chosen)
            rates.setdefault(concurrency, row["tok_per_s"])  # plain decoding comes first
            row["speedup"] = _ratio(row["tok_per_s"], rates[concurrency], 3)
            rows.append(row)
    return rows


def _row(group: str, results: list[Result]) -> Row:
    """Sums and rates; ``speedup`` is filled in by the caller, who knows plain decoding's rate."""
    mode, measured = results[0].mode, [result.measured for result in results]
    steps = sum(one.stats.steps for one in measured)
    timed = sum(one.steps_timed for one in measured)
    tokens = sum(len(one.token_ids) for one in measured)
    differences = [result.difference for result in results if result.difference is not None]
    # a request that ended in its prefill took no step, and its one token says nothing about drafts
    decided = sum(one.stats.decided - 1 for one in measured if one.stats.steps)
    return {
        "drafts": str(mode.drafts),
        "tree": None if mode.tree is None else str(mode.tree),
        "budget": mode.budget,
        "store": mode.store,
        "mean_budget": None
        if mode.drafts in TRANSFORMERS
        else _ratio(steps + sum(sum(one.stats.drafted.values()) for one in measured), steps, 2),
        "concurrency": results[0].concurrency,
        "category": group,
        "prompts": len(results),
        "tokens": tokens,
        "steps": steps,
        "mat": _ratio(decided, steps, 4),
        "tok_per_s": _ratio(tokens, sum(one.busy_s for one in measured), 3),
        "speedup": None,
        "accepted_by_source": {s.label: sum(one.stats.accepted[s] for one in measured) for s in DRAFT_SOURCES},
        "draft_ms_per_step": None
        if mode.drafts in TRANSFORMERS
        else _ratio(sum(one.draft_ms for one in measured), timed, 4),
        "forward_ms_per_step": None
        if mode.drafts in TRANSFORMERS
        else _ratio(sum(one.forward_ms for one in measured), timed, 3),
        "step_ms": _ratio(sum(one.step_ms for one in measured), timed, 3),
        "mismatches": len(differences),
        "near_ties": sum(difference.near_tie for difference in differences),
    }


def _ratio(numerator: float, denominator: float, digits: int) -> float | None:
    """None where nothing was counted: no number would be true."""
    return round(numerator / denominator, digits) if denominator else None


def as_table(rows: list[Row], sources: Sequence[Source]) -> str:
    """Rows as aligned text, a block for each category; ``sources`` are those whose accepted tokens are told."""
    accepted = "/".join(source.label for source in sources)
    headings = ["mode", "conc", "tokens", "steps", "budget", "MAT", "tok/s", "speedup", accepted]
    headings += ["draft ms", "forward ms", "step ms", "differ"]
    blocks = []
    for category in dict.fromkeys(row["category"] for row in rows):
        cells = [headings, *(_cells(row, sources) for row in rows if row["category"] == category)]
        widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
        lines = [
            "  ".join(
                cell.ljust(width) if i == 0 else cell.rjust(width)
                for i, (cell, width) in enumerate(zip(line, widths, strict=True))
            )
            for line in cells
        ]
        blocks.append("\n".join([f"== {category}", *lines]))
    return "\n\n".join(blocks)


def _cells(row: Row, sources: Sequence[Source]) -> list[str]:
    mismatches, ties = row["mismatches"], row["near_ties"]
    return [
        Mode(row["drafts"], row["tree"], row["budget"], row["store"]).label,
        str(row["concurrency"]),
        str(row["tokens"]),
        str(row["steps"]),
        number(row["mean_budget"], 1),
        number(row["mat"], 2),
        number(row["tok_per_s"], 1),
        number(row["speedup"], 2),
        "/".join(str(row["accepted_by_source"][source.label]) for source in sources),
        number(row["draft_ms_per_step"], 2),
        number(row["forward_ms_per_step"], 1),
        number(row["step_ms"], 1),
        f"{mismatches} ({plural(ties, 'near tie')})" if mismatches else "0",
    ]
