"""Line and bar charts as SVG, in the reader's light or dark theme, without a script."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from html import escape

_WIDTH, _HEIGHT = 460, 310
_LEFT, _RIGHT, _BOTTOM = 58, 12, 42
_COLOURS = 8
_MOST_PLACES = 8
STYLE = """svg{font:12px system-ui,sans-serif}svg text{fill:var(--ink,#1f2328)}svg .faint{fill:var(--faint,#59636e)}
svg .grid{stroke:var(--line,#d8dee4);stroke-width:1}svg .band{opacity:.18;stroke:none}svg .mark{stroke:none}
svg .title{font-weight:600;font-size:13px}svg path.line{fill:none;stroke-width:2}
.c0{--c:#6e7781}.c1{--c:#0969da}.c2{--c:#1a7f37}.c3{--c:#bf5a00}.c4{--c:#8250df}.c5{--c:#bf3989}.c6{--c:#9a6700}.c7{--c:#1b7c83}
.fill{fill:var(--c)}.stroke{stroke:var(--c)}
@media(prefers-color-scheme:dark){svg text{fill:var(--ink,#e6edf3)}svg .faint{fill:var(--faint,#9198a1)}
svg .grid{stroke:var(--line,#3d444d)}
.c0{--c:#9198a1}.c1{--c:#4493f8}.c2{--c:#3fb950}.c3{--c:#f0883e}.c4{--c:#ab7df8}.c5{--c:#f778ba}.c6{--c:#d29922}.c7{--c:#39c5cf}}"""


@dataclass(frozen=True)
class Point:
    """One point; ``low`` to ``high`` is its interval, ``note`` what a pointer over it reads."""

    x: float
    y: float
    low: float | None = None
    high: float | None = None
    note: str = ""


@dataclass
class Series:
    """Points that a line joins, in the colour ``colour`` (0 to 7)."""

    name: str
    points: list[Point] = field(default_factory=list)
    colour: int = 0
    stepped: bool = False


class _Scale:
    """From values to places on an axis, with round numbers to mark it. ``log``: equal ratios are equally far apart."""

    def __init__(self, values: Sequence[float], begin: float, end: float, *, zero: bool, log: bool = False) -> None:
        low, high = min(values), max(values)
        self._log = log and low > 0
        if self._log:
            self._low, self._high = low / 1.1, high * 1.1
            self.ticks = _log_ticks(self._low, self._high)
        else:
            low = 0.0 if zero and low >= 0 else low
            step = _round_step((high - low) or abs(high) or 1.0)
            self._low, self._high = math.floor(low / step) * step, math.ceil(high / step - 1e-9) * step
            if self._high <= self._low:
                self._high = self._low + step
            count = round((self._high - self._low) / step)
            self.ticks = [self._low + number * step for number in range(count + 1)]
        self._begin, self._end = begin, end

    def __call__(self, value: float) -> float:
        """The place of ``value``."""
        if self._log:
            part = math.log(value / self._low) / math.log(self._high / self._low)
        else:
            part = (value - self._low) / (self._high - self._low)
        return round(self._begin + part * (self._end - self._begin), 1)


def _round_step(span: float) -> float:
    rough = span / 5
    power = 10.0 ** math.floor(math.log10(rough))
    return next(step * power for step in (1.0, 2.0, 2.5, 5.0, 10.0) if step * power >= rough)


def _log_ticks(low: float, high: float) -> list[float]:
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    for steps in ((1,), (1, 3), (1, 2, 5)):
        ticks = [step * 10.0**power for power in powers for step in steps if low <= step * 10.0**power <= high]
        if len(ticks) >= 3:
            return ticks
    return ticks


def _number(value: float) -> str:
    if value and abs(value) < 0.01:
        return f"{value:.1e}"
    return f"{value:,.3g}" if abs(value) < 1000 else f"{value:,.0f}"


def line_chart(
    title: str, x_title: str, y_title: str, series: Sequence[Series], *, log_x: bool = False, zero: bool = True
) -> str:
    """Lines with their intervals as bands. An empty string where there is nothing to draw."""
    points = [point for one in series for point in one.points]
    if not points:
        return ""
    legend, top = _legend([one for one in series if one.points])
    x = _Scale([p.x for p in points], _LEFT, _WIDTH - _RIGHT, zero=False, log=log_x)
    places = sorted({p.x for p in points})
    if log_x and len(places) <= _MOST_PLACES:
        x.ticks = places
    heights = [v for p in points for v in (p.y, p.low, p.high) if v is not None]
    y = _Scale(heights, _HEIGHT - _BOTTOM, top, zero=zero)
    parts = [*legend, *_axes(x, y, x_title, y_title)]
    for one in series:
        parts += _band(one, x, y)
    for one in series:
        parts += _line(one, x, y)
    return _svg(title, _HEIGHT, parts)


def _legend(series: Sequence[Series]) -> tuple[list[str], float]:
    """Names beside their colours, in as many lines as they take, and where the chart begins below them."""
    parts, x, y = [], 8.0, 38.0
    for one in series:
        width = 30 + 6.6 * len(one.name)
        if x > 8.0 and x + width > _WIDTH:
            x, y = 8.0, y + 16
        parts.append(
            f'<rect class="c{one.colour % _COLOURS} fill" x="{x:.0f}" y="{y - 9}" width="10" height="10" rx="2"/>'
        )
        parts.append(f'<text x="{x + 15:.0f}" y="{y}">{escape(one.name)}</text>')
        x += width
    return parts, y + 14


def _axes(x: _Scale, y: _Scale, x_title: str, y_title: str) -> list[str]:
    parts = []
    for tick in y.ticks:
        parts.append(f'<line class="grid" x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" y1="{y(tick)}" y2="{y(tick)}"/>')
        parts.append(
            f'<text class="faint" x="{_LEFT - 6}" y="{y(tick) + 4:.1f}" text-anchor="end">{_number(tick)}</text>'
        )
    for tick in x.ticks:
        parts.append(
            f'<text class="faint" x="{x(tick)}" y="{_HEIGHT - _BOTTOM + 16}" '
            f'text-anchor="middle">{_number(tick)}</text>'
        )
    middle = (_LEFT + _WIDTH - _RIGHT) / 2
    parts.append(f'<text x="{middle}" y="{_HEIGHT - 8}" text-anchor="middle">{escape(x_title)}</text>')
    height = (y(y.ticks[0]) + y(y.ticks[-1])) / 2
    parts.append(
        f'<text x="14" y="{height}" text-anchor="middle" transform="rotate(-90 14 {height})">{escape(y_title)}</text>'
    )
    return parts


def _band(one: Series, x: _Scale, y: _Scale) -> list[str]:
    known = [(p.x, p.low, p.high) for p in one.points if p.low is not None and p.high is not None]
    if len(known) < 2:
        return []
    upper = [f"{x(px)},{y(high)}" for px, _, high in known]
    lower = [f"{x(px)},{y(low)}" for px, low, _ in reversed(known)]
    return [f'<polygon class="band c{one.colour % _COLOURS} fill" points="{" ".join(upper + lower)}"/>']


def _line(one: Series, x: _Scale, y: _Scale) -> list[str]:
    colour = f"c{one.colour % _COLOURS}"
    path = ""
    for place, point in enumerate(one.points):
        if one.stepped and place:
            path += f"H{x(point.x)}V{y(point.y)}"
        else:
            path += f"{'L' if place else 'M'}{x(point.x)} {y(point.y)}"
    parts = [f'<path class="line {colour} stroke" d="{path}"/>']
    if not one.stepped:
        for point in one.points:
            note = f"<title>{escape(point.note or one.name)}</title>"
            parts.append(
                f'<circle class="mark {colour} fill" cx="{x(point.x)}" cy="{y(point.y)}" r="3.5">{note}</circle>'
            )
    return parts


def bar_chart(title: str, groups: Sequence[tuple[str, Sequence[Point]]], colours: Sequence[int], unit: str = "") -> str:
    """Horizontal bars: for each group one bar a point, whose ``y`` is its length and ``note`` its name."""
    values = [point.y for _, points in groups for point in points]
    if not values:
        return ""
    label, bar = 150, 18
    scale = (_WIDTH - label - 70) / (max(values) or 1.0)
    parts, top = [], 34.0
    for group, points in groups:
        parts.append(f'<text x="8" y="{top + 12}" font-weight="600">{escape(group)}</text>')
        top += 18
        for point, colour in zip(points, colours, strict=False):
            length = max(point.y * scale, 0.5)
            parts.append(
                f'<text class="faint" x="{label - 6}" y="{top + 13}" text-anchor="end">{escape(point.note)}</text>'
            )
            parts.append(
                f'<rect class="c{colour % _COLOURS} fill" x="{label}" y="{top + 2}" '
                f'width="{length:.1f}" height="{bar - 4}" rx="2"/>'
            )
            if point.low is not None and point.high is not None:
                low, high = label + max(point.low, 0.0) * scale, label + point.high * scale
                parts.append(
                    f'<line stroke="currentColor" x1="{low:.1f}" x2="{high:.1f}" y1="{top + 9}" y2="{top + 9}"/>'
                )
                length = max(length, high - label)
            parts.append(f'<text x="{label + length + 6:.1f}" y="{top + 13}">{_number(point.y)}{escape(unit)}</text>')
            top += bar
        top += 8
    return _svg(title, top + 4, parts)


def _svg(title: str, height: float, parts: Sequence[str]) -> str:
    size = f'viewBox="0 0 {_WIDTH} {height:g}" width="{_WIDTH}" height="{height:g}"'
    head = f'<text class="title" x="8" y="18">{escape(title)}</text>'
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" role="img" {size}><title>{escape(title)}</title>'
        f"<style>{STYLE}</style>"
        f"{head}{''.join(parts)}</svg>"
    )
