"""Types of options: each takes the text, and says in one sentence what it must be."""

from __future__ import annotations

import argparse
import math


def whole_number(text: str) -> int:
    """A whole number from 1."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not valid: it must be a whole number from 1")
    return int(text)


def positive_number(text: str) -> float:
    """A number above 0."""
    value = _number(text)
    if not 0.0 < value < math.inf:
        raise argparse.ArgumentTypeError(f"{text!r} is not valid: it must be a number above 0")
    return value


def share(text: str) -> float:
    """A number from 0 to below 1."""
    value = _number(text)
    if not 0.0 <= value < 1.0:
        raise argparse.ArgumentTypeError(f"{text!r} is not valid: it must be a number from 0 to below 1")
    return value


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return math.nan
