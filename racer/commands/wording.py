"""Numbers in sentences and tables."""

from __future__ import annotations


def plural(count: int, noun: str) -> str:
    """``count`` and ``noun``, with an s unless it is one."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def number(value: float | None, digits: int) -> str:
    """``value`` with so many decimals; a dash where there is nothing to tell."""
    return "-" if value is None else f"{value:.{digits}f}"
