"""The result in plain words: what was saved, how sure that is, and where it did not pay."""

from __future__ import annotations

from collections.abc import Iterator

from loadtest.curves import Cell, Measured, at_equal_latency, saturation
from loadtest.observe import UNANSWERED
from loadtest.statistics import Estimate

LATENCY = ("latency_per_token_ms", "p90")
"""What "latency" is in comparisons: 90 of 100 answers take at most so long for each of their tokens, all included."""


def sentences(measured: Measured) -> list[str]:
    """The summary: for each workload and variant what it gave, then where it lost, then what is not known."""
    found = [sentence for workload in measured.workloads for sentence in _of_workload(measured, workload)]
    found += list(_losses(measured))
    repeats = max((len(cell.runs) for cell in measured.cells.values()), default=0)
    if repeats < 2:
        found.append("Each run was made once: how much the figures would vary is not known.")
    failed = sum(record["figures"]["failed"] for cell in measured.cells.values() for record in cell.runs.values())
    if failed:
        found.append(f"{failed} requests failed; the table says in which runs.")
    found += list(_unanswered(measured))
    if measured.failed:
        found.append(f"{len(measured.failed)} runs could not be made: {measured.failed[0]['error']}")
    return found


def _unanswered(measured: Measured) -> Iterator[str]:
    """Variants whose store was often too late: their figures are those of a store that is hardly there."""
    for variant in measured.variants:
        stores = [
            record["figures"]["store"]
            for cell in measured.cells.values()
            if cell.variant == variant
            for record in cell.runs.values()
            if record["figures"].get("store")
        ]
        asked = sum(sum(store.values()) for store in stores)
        late = sum(store["unanswered"] for store in stores)
        if late > UNANSWERED * asked:
            yield (
                f"{variant}: the store did not answer {late / asked:.0%} of what it was asked in time; with one that "
                "is nearer or less busy these runs may be faster."
            )


def equal_latency(measured: Measured, workload: str, variant: str) -> Estimate | None:
    """Throughput relative to the baseline's, where both keep the latency that the baseline has at its saturation."""
    base = measured.curve(workload, measured.baseline)
    full = saturation(base)
    if full is None:
        return None
    return at_equal_latency(measured.curve(workload, variant), base, full.values(*LATENCY), LATENCY)


def saving(gain: Estimate) -> Estimate:
    """Part of the cost per token that a gain in throughput saves: 2 times the tokens are half the cost."""
    low, high = (None if end is None else 1.0 - 1.0 / end for end in (gain.low, gain.high))
    return Estimate(1.0 - 1.0 / gain.mean, low, high, gain.count)


def times(value: Estimate) -> str:
    """``1.92 (1.85 to 1.99)``."""
    if value.low is None or value.high is None:
        return f"{value.mean:.2f}"
    return f"{value.mean:.2f} ({value.low:.2f} to {value.high:.2f})"


def percent(value: Estimate) -> str:
    """``48% (45% to 50%)``."""
    if value.low is None or value.high is None:
        return f"{value.mean:.0%}"
    return f"{value.mean:.0%} ({value.low:.0%} to {value.high:.0%})"


def _of_workload(measured: Measured, workload: str) -> Iterator[str]:
    for variant in measured.variants:
        curve = measured.curve(workload, variant)
        if variant == measured.baseline or not curve:
            continue
        gains = [(cell, gain) for cell in curve if (gain := measured.speedup(cell)) is not None]
        if not gains:
            continue
        (least, first), (most, last) = gains[0], gains[-1]
        said = f"{workload}: {variant} gave {times(first)} times the tokens per second of "
        said += f"{measured.baseline} at {least.load}"
        if most is not least:
            said += f" and {times(last)} times at {most.load}"
        yield said + "." + _cost(measured, workload, variant)


def _cost(measured: Measured, workload: str, variant: str) -> str:
    gain = equal_latency(measured, workload, variant)
    if gain is None:
        return ""
    where = f" At the latency that {measured.baseline} has when it is saturated, a token"
    if gain.above_one:
        return f"{where} cost {percent(saving(gain))} less."
    if gain.below_one:
        return f"{where} cost more: {times(gain)} times the tokens for the same price."
    return f"{where} cost the same, as far as these runs can tell: {times(gain)} times the tokens for the same price."


def _losses(measured: Measured) -> Iterator[str]:
    """Where a variant gave fewer tokens, or let users wait longer, than the baseline at the same load."""
    base = measured.baseline
    slower: list[tuple[Cell, Estimate]] = []
    later: list[tuple[Cell, Estimate]] = []
    for cell in measured.cells.values():
        if cell.variant == base:
            continue
        gain = None if cell.open_loop else measured.speedup(cell)
        if gain is not None and gain.below_one:
            slower.append((cell, gain))
        wait = measured.against_baseline(cell, *LATENCY)
        if wait is not None and wait.above_one:
            later.append((cell, wait))
    if slower:
        yield f"It did not pay, against {base}, here: {_places(slower)} times its tokens per second."
    if later:
        yield f"Users waited longer for their tokens than with {base} here: {_places(later)} times its latency."
    if not slower and not later and any(cell.variant != base for cell in measured.cells.values()):
        yield f"At no measured load did a variant give fewer tokens per second, or later, than {base} beyond chance."


def _places(cells: list[tuple[Cell, Estimate]]) -> str:
    return "; ".join(f"{cell.workload} at {cell.load} with {cell.variant}: {times(value)}" for cell, value in cells)
