"""The charts of a report, from measured runs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from loadtest.curves import Cell, Json, Measured, points_of, throughput_within
from loadtest.report.charts import Point, Series, bar_chart, line_chart
from loadtest.report.words import LATENCY
from loadtest.statistics import Estimate, estimate

_LIMITS = 24
_TIMES = {"first token, p90": ("ttft_ms", "p90"), "latency a token, p90": ("latency_per_token_ms", "p90")}


def figures(measured: Measured) -> Iterator[tuple[str, str, str]]:
    """(section, file name, SVG) of every chart there is something for."""
    for workload in measured.workloads:
        for name, svg in (
            ("throughput-latency", _throughput_latency(measured, workload)),
            ("speedup", _speedup(measured, workload)),
            ("cost", _cost(measured, workload)),
            ("cost-equal-latency", _cost_at_latency(measured, workload)),
            ("open-loop", _open_loop(measured, workload)),
        ):
            if svg:
                yield workload, f"{workload.rpartition('/')[2]}-{name}", svg
    for name, svg in (("mat", _mat(measured)), ("sources", _sources(measured))):
        if svg:
            yield "Drafts", name, svg
    for record in measured.others:
        for name, svg in (
            ("replicas", _replicas(record)),
            ("latency", _latency(record)),
            ("throughput", _throughput(record)),
            ("memory", _memory(record)),
        ):
            if svg:
                yield "Over time", f"{record['id']}-{name}", svg


def _series(measured: Measured, variant: str, points: list[Point]) -> Series:
    return Series(variant, points, measured.variants.index(variant))


def _point(x: float, y: Estimate, note: str) -> Point:
    return Point(x, y.mean, y.low, y.high, note)


def _throughput_latency(measured: Measured, workload: str) -> str:
    series = []
    for variant in measured.variants:
        points = []
        for cell in measured.curve(workload, variant):
            rate, latency = cell.tokens_per_s, cell.mean(*LATENCY)
            if rate is not None and latency is not None:
                note = f"{variant}, {cell.load}: {rate.mean:.1f} tokens/s, {latency.mean:.1f} ms a token"
                points.append(Point(latency.mean, rate.mean, note=note))
        series.append(_series(measured, variant, points))
    return line_chart("Throughput against latency", "ms a token, p90", "tokens/s", series)


def _speedup(measured: Measured, workload: str) -> str:
    series = []
    for variant in measured.variants:
        points = [
            _point(cell.level, gain, f"{variant}, {cell.load}: {gain.mean:.2f}")
            for cell in measured.curve(workload, variant)
            if (gain := measured.speedup(cell)) is not None
        ]
        series.append(_series(measured, variant, points))
    if len(series) < 2:
        return ""
    return line_chart(f"Speed relative to {measured.baseline}", "users", "times its tokens/s", series, log_x=True)


def _cost(measured: Measured, workload: str) -> str:
    series = []
    for variant in measured.variants:
        points = [
            _point(cell.level, cost, f"{variant}, {cell.load}: {cost.mean:.4g}")
            for cell in measured.curve(workload, variant)
            if (cost := cell.mean("cost_per_million_tokens")) is not None
        ]
        series.append(_series(measured, variant, points))
    return line_chart("Cost of a million tokens", "users", "price", series, log_x=True)


def _cost_at_latency(measured: Measured, workload: str) -> str:
    """What a million tokens costs if the latency may be at most so much: each variant at the best load for that."""
    curves = {variant: measured.curve(workload, variant) for variant in measured.variants}
    known = [mean.mean for curve in curves.values() for cell in curve if (mean := cell.mean(*LATENCY)) is not None]
    if not known or max(known) <= min(known):
        return ""
    series = []
    for variant, curve in curves.items():
        points = []
        for limit in np.geomspace(min(known), max(known), _LIMITS).tolist():
            costs = estimate([cost for cost in _costs(curve, limit) if cost is not None])
            if costs is not None:
                points.append(
                    Point(limit, costs.mean, note=f"{variant}, at most {limit:.1f} ms a token: {costs.mean:.4g}")
                )
        series.append(_series(measured, variant, points))
    return line_chart(
        "Cost at equal latency", "latency limit: ms a token, p90", "price of a million", series, log_x=True
    )


def _costs(curve: Sequence[Cell], limit: float) -> Iterator[float | None]:
    """By repeat; a server that is fast at low load already has its best throughput within the limit higher up."""
    for repeat in sorted({repeat for cell in curve for repeat in cell.runs}):
        rate = throughput_within(points_of(curve, repeat, LATENCY), limit)
        records = [cell.runs[repeat] for cell in curve if repeat in cell.runs]
        price, replicas = records[0]["figures"]["price_per_replica_hour"], records[0]["figures"]["replicas"]
        yield price * replicas / 3600.0 / rate * 1e6 if rate and price and replicas else None


def _open_loop(measured: Measured, workload: str) -> str:
    series = []
    for variant in measured.variants:
        points = [
            _point(cell.level, first, f"{variant}, {cell.load}: {first.mean:.0f} ms")
            for cell in measured.curve(workload, variant, open_loop=True)
            if (first := cell.mean("ttft_ms", "p90")) is not None
        ]
        series.append(_series(measured, variant, points))
    return line_chart("Open loop: time to first token", "conversations begun a second", "ms, p90", series)


def _mat(measured: Measured) -> str:
    groups = []
    for workload in measured.workloads:
        points = []
        for variant in measured.variants:
            values = [v for cell in measured.curve(workload, variant) for v in cell.values("mat").values()]
            mean = estimate(values)
            points.append(Point(0, mean.mean if mean else 0.0, note=variant))
        if any(point.y for point in points):
            groups.append((workload.rpartition("/")[2], points))
    return bar_chart("Mean accepted tokens (MAT), all loads", groups, range(len(measured.variants)))


def _sources(measured: Measured) -> str:
    """Which source the accepted draft tokens came from, per hundred of them."""
    groups, names = [], list[str]()
    for workload in measured.workloads:
        for variant in measured.variants:
            accepted: dict[str, int] = {}
            for cell in measured.curve(workload, variant):
                for record in cell.runs.values():
                    for source, value in record["figures"]["acceptance"].items():
                        accepted[source] = accepted.get(source, 0) + value["accepted"]
            if total := sum(accepted.values()):
                names += [source for source in accepted if source not in names]
                points = [Point(0, 100 * accepted.get(source, 0) / total, note=source) for source in names]
                groups.append((f"{workload.rpartition('/')[2]}, {variant}", points))
    return bar_chart("Accepted draft tokens by source", groups, range(1, 1 + len(names)), unit="%")


def _replicas(record: Json) -> str:
    told = [reading for reading in record["readings"] if "replicas" in reading]
    if not told:
        return ""
    series = [Series("replicas", [Point(r["at_s"], r["replicas"]) for r in told], 1, stepped=True)]
    users = _users(record)
    if users:
        most, highest = max(point.y for point in users), max(r["replicas"] for r in told)
        scaled = [Point(point.x, point.y * highest / most) for point in users]
        series.append(Series(f"users (of {most:.0f}), scaled", scaled, 0, stepped=True))
    return line_chart(f"{record['variant']}: replicas over time", "s", "replicas", series)


def _users(record: Json) -> list[Point]:
    steps = record["settings"]["load"].get("steps") or []
    points, at = list[Point](), 0.0
    for step in steps:
        points.append(Point(at, step["users"]))
        at += step["seconds"]
        points.append(Point(at, step["users"]))
    return points


def _latency(record: Json) -> str:
    series = []
    for place, (name, path) in enumerate(_TIMES.items()):
        told = [(part["at_s"], part[path[0]]) for part in record["figures"].get("over_time", ()) if part[path[0]]]
        series.append(Series(name, [Point(at_s, found[path[1]]) for at_s, found in told], place + 1))
    return line_chart(f"{record['variant']}: latency over time", "s", "ms", series)


def _throughput(record: Json) -> str:
    points = [Point(part["at_s"], part["output_tokens_per_s"]) for part in record["figures"].get("over_time", ())]
    return line_chart(f"{record['variant']}: throughput over time", "s", "tokens/s", [Series("tokens/s", points, 2)])


def _memory(record: Json) -> str:
    told = [Point(r["at_s"], r["memory_bytes"] / 2**30) for r in record["readings"] if "memory_bytes" in r]
    return line_chart(f"{record['variant']}: memory", "s", "GiB", [Series("memory", told, 4)]) if told else ""
