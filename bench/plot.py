"""Draws speed-ups of ``racer bench --json`` as bars, by suite and mode: ``python bench/plot.py RUN.json OUT.svg``.

The picture follows the reader's light or dark theme.
"""

from __future__ import annotations

import argparse
import json
import sys
from html import escape
from pathlib import Path
from typing import Any

Row = dict[str, Any]

_COLOURS = ("#8c959f", "#bf8700", "#0969da", "#8250df", "#1a7f37", "#cf222e", "#bc4c00")
_BAR, _GAP, _LABEL, _WIDTH = 16, 26, 190, 760
_STYLE = """text{font:13px system-ui,sans-serif;fill:#1f2328}line{stroke:#d0d7de}.t{font-weight:600}
@media(prefers-color-scheme:dark){text{fill:#e6edf3}line{stroke:#3d444d}}"""


def mode_name(row: Row) -> str:
    """A row's mode as a reader would call it."""
    names = {"off": "plain", "generate": "model.generate", "lookup": "prompt lookup (transformers)"}
    if row["tree"] is None:
        return names[row["drafts"]]
    store = " + store" if row.get("store") else ""
    return f"{row['drafts']}, {row['tree']} tree, budget {row['budget']}{store}"


def draw(rows: list[Row]) -> str:
    """An SVG of one group of bars for each category; a bar's length is the speed relative to plain decoding."""
    groups = list(dict.fromkeys(row["category"] for row in rows))
    modes = list(dict.fromkeys(mode_name(row) for row in rows))
    longest = max(row["speedup"] or 0.0 for row in rows)
    scale = (_WIDTH - _LABEL - 130) / longest
    parts, y = [], 10
    for group in groups:
        y += 16
        parts.append(f'<text class="t" x="8" y="{y}">{escape(group)}</text>')
        y += 8
        for row in (row for row in rows if row["category"] == group):
            colour = _COLOURS[modes.index(mode_name(row)) % len(_COLOURS)]
            length = (row["speedup"] or 0.0) * scale
            figures = f"{row['speedup']:.2f} x, MAT {row['mat']:.2f}"
            parts.append(
                f'<text x="{_LABEL - 6}" y="{y + 12}" text-anchor="end">{escape(_short(mode_name(row)))}</text>'
            )
            parts.append(
                f'<rect x="{_LABEL}" y="{y}" width="{length:.1f}" height="{_BAR - 2}" rx="2" fill="{colour}"/>'
            )
            parts.append(f'<text x="{_LABEL + length + 6:.1f}" y="{y + 12}">{figures}</text>')
            y += _BAR
        y += _GAP - _BAR
    one = _LABEL + scale
    parts.append(f'<line x1="{one:.1f}" y1="20" x2="{one:.1f}" y2="{y}" stroke-dasharray="3 3"/>')
    size = f'width="{_WIDTH}" height="{y + 6}" viewBox="0 0 {_WIDTH} {y + 6}"'
    title = "<title>Speed relative to plain decoding, and tokens decided per forward (MAT)</title>"
    return f'<svg xmlns="http://www.w3.org/2000/svg" {size}><style>{_STYLE}</style>{title}{"".join(parts)}</svg>\n'


def _short(name: str) -> str:
    return name.replace(", best tree", "").replace(" (transformers)", "")


def main() -> int:
    """Read the last line of a run, write the picture."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path, help="output of racer bench; its last line is read")
    parser.add_argument("out", type=Path, help="SVG file to write")
    args = parser.parse_args()
    try:
        rows = json.loads(args.run.read_text().strip().splitlines()[-1])["rows"]
    except (OSError, ValueError, IndexError, KeyError) as error:
        print(f"error: {args.run} is no output of racer bench ({error})", file=sys.stderr)
        return 2
    suites = [row for row in rows if "/" not in row["category"]]
    args.out.write_text(draw(suites))
    return 0


if __name__ == "__main__":
    sys.exit(main())
