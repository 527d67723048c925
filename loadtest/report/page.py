"""The report as one HTML file: no script, nothing fetched; light, dark and on paper."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from html import escape
from pathlib import Path

from loadtest.curves import Cell, Json, Measured, saturation
from loadtest.report.figures import figures
from loadtest.report.words import equal_latency, percent, saving, sentences, times
from loadtest.statistics import Estimate

_STYLE = """:root{color-scheme:light dark;--ink:#1f2328;--faint:#59636e;--line:#d8dee4;--back:#fff;--soft:#f6f8fa}
@media(prefers-color-scheme:dark){:root{--ink:#e6edf3;--faint:#9198a1;--line:#3d444d;--back:#0d1117;--soft:#151b23}}
*{box-sizing:border-box}body{margin:0 auto;max-width:1020px;padding:24px 16px 64px;
background:var(--back);color:var(--ink);
font:16px/1.5 system-ui,sans-serif}h1{font-size:26px;margin:0 0 4px}h2{font-size:20px;margin:36px 0 8px}
.charts{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(440px,100%),1fr));gap:16px}
.charts svg{width:100%;height:auto;background:var(--soft);border-radius:8px}
p,li{max-width:75ch}.faint{color:var(--faint)}
.table{overflow-x:auto}table{border-collapse:collapse;font-size:14px;font-variant-numeric:tabular-nums}
th,td{padding:4px 10px;border-bottom:1px solid var(--line);text-align:right;white-space:nowrap}
th:first-child,td:first-child,th:nth-child(2),td:nth-child(2){text-align:left}
@media print{body{max-width:none;padding:0;font-size:11pt}.charts{grid-template-columns:1fr 1fr}
svg,tr{break-inside:avoid}h2{break-after:avoid}.table{overflow:visible}table{font-size:8pt}th,td{padding:2px 5px}}"""


def write_report(records: Sequence[Json], folder: Path, title: str) -> Path:
    """Write ``report.html`` and the charts as files of their own to ``folder``; returns the page's path."""
    measured = Measured(records)
    sections: dict[str, list[str]] = {}
    for section, name, svg in figures(measured):
        (folder / f"{name}.svg").write_text(svg + "\n", encoding="utf-8")
        sections.setdefault(section, []).append(svg)
    parts = [f"<h1>{escape(title)}</h1>", _about(measured, records), "<h2>In short</h2>"]
    parts.append("<ul>" + "".join(f"<li>{escape(sentence)}</li>" for sentence in sentences(measured)) + "</ul>")
    if measured.cells:
        parts.append(_saturation(measured))
    for section, svgs in sections.items():
        parts.append(f"<h2>{escape(section)}</h2>")
        parts.append(f'<div class="charts">{"".join(svgs)}</div>')
    if measured.others:
        parts.append(_others(measured.others))
    parts += [_runs(measured), _words()]
    page = (
        '<!doctype html><html lang="en"><meta charset="utf-8"><meta name="viewport" content="width=device-width">'
        f"<title>{escape(title)}</title><style>{_STYLE}</style><body>{''.join(parts)}</body></html>\n"
    )
    path = folder / "report.html"
    path.write_text(page, encoding="utf-8")
    return path


def _about(measured: Measured, records: Sequence[Json]) -> str:
    times_told = sorted(record["started"] for record in records if "started" in record)
    when = (
        f", {times_told[0][:16].replace('T', ' ')} to {times_told[-1][:16].replace('T', ' ')} UTC" if times_told else ""
    )
    count = sum("error" not in record for record in records)
    return f'<p class="faint">{count} runs{when}. Compared with: {escape(measured.baseline)}.</p>'


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    top = "".join(f"<th>{escape(cell)}</th>" for cell in head)
    body = "".join("<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>" for row in rows)
    return f'<div class="table"><table><thead><tr>{top}</tr></thead><tbody>{body}</tbody></table></div>'


def _saturation(measured: Measured) -> str:
    rows = []
    for workload in measured.workloads:
        for variant in measured.variants:
            full = saturation(measured.curve(workload, variant))
            if full is not None:
                gain = None if variant == measured.baseline else equal_latency(measured, workload, variant)
                saved = "" if gain is None else percent(saving(gain))
                rows.append(
                    [workload, variant, full.load, _mean(full.tokens_per_s), times(gain) if gain else "", saved]
                )
    if not rows:
        return ""
    head = ["workload", "variant", "saturated from", "tokens/s there", "gain at equal latency", "saved per token"]
    return "<h2>Saturation, and cost at equal latency</h2>" + _table(head, rows)


def _others(records: Sequence[Json]) -> str:
    rows = []
    for record in records:
        found = record["figures"]
        told = [reading["replicas"] for reading in record["readings"] if "replicas" in reading]
        replicas = f"{min(told)} to {max(told)}" if told else ""
        lost = f"{found['failed']} of {found['requests']}"
        rows.append([record["workload"], record["variant"], record["load"], replicas, lost, _spread(found["ttft_ms"])])
    head = ["workload", "variant", "load", "replicas", "failed", "first token, ms: p50 / p90 / p99"]
    return _table(head, rows)


def _runs(measured: Measured) -> str:
    rows = []
    for cell in sorted(measured.cells.values(), key=_order(measured)):
        total = [record["figures"] for record in cell.runs.values()]
        gain = measured.speedup(cell) if cell.variant != measured.baseline else None
        first, per_token = cell.mean("ttft_ms", "p50"), cell.mean("time_per_token_ms", "p50")
        row = [cell.workload, cell.variant, cell.load, _mean(cell.tokens_per_s), times(gain) if gain else ""]
        row += [
            _mean(first),
            _mean(cell.mean("ttft_ms", "p99")),
            _mean(per_token),
            _mean(cell.mean("time_per_token_ms", "p99")),
        ]
        row += [_mean(cell.mean("mat")), _mean(cell.mean("cost_per_million_tokens"), 4)]
        held = sum(figures["goodput"]["held"] for figures in total)
        row += [f"{sum(f['failed'] for f in total)} of {sum(f['requests'] for f in total)}", f"{held} of {len(total)}"]
        rows.append(row)
    if not rows:
        return ""
    head = [
        "workload",
        "variant",
        "load",
        "tokens/s",
        "relative",
        "first token p50, ms",
        "p99",
        "per token p50, ms",
        "p99",
    ]
    head += ["MAT", "per million", "failed", "limits held"]
    return "<h2>All runs</h2>" + _table(head, rows)


def _order(measured: Measured) -> Callable[[Cell], tuple[int, bool, float, int]]:
    return lambda c: (measured.workloads.index(c.workload), c.open_loop, c.level, measured.variants.index(c.variant))


def _mean(value: Estimate | None, digits: int = 3) -> str:
    return "" if value is None else f"{value.mean:.{digits}g}" if value.mean < 1000 else f"{value.mean:.0f}"


def _spread(found: Json | None) -> str:
    return "" if found is None else f"{found['p50']:.0f} / {found['p90']:.0f} / {found['p99']:.0f}"


def _words() -> str:
    return (
        '<h2>Words</h2><p class="faint">Tokens are those of the server\'s usage. Time to first token: until the first '
        "content that is not empty. Time per token: from the first to the last piece of an answer, divided by its "
        "tokens "
        "after the first. Latency, in curves: whole time of an answer divided by its tokens, of 90 in 100 answers at "
        "most. Saturated: from this load on, more users gain less than 5% in tokens per second. Intervals are 95% "
        "(Student's t over repeats; ratios are taken repeat by repeat, of their logarithms). MAT: tokens decided per "
        "step; plain decoding is 1.</p>"
    )
