"""Which contexts are stored, and how much follows each.

Short contexts foresee little, but often: every position of a text is learned, with a few tokens each. Behind a long
context a text mostly goes on as it did before, so a long run is worth storing, but neighbouring positions would store
nearly the same run: of every ``window`` positions only the one is learned whose token hashes lowest (winnowing). A
lookup finds that position from its own tokens, and drops from the run what the text has decided since.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray


class Level(NamedTuple):
    """One length of context.

    context       tokens of the context
    window        one position in this many, roughly half of it on average, is learned; 1: every position
    continuation  tokens stored behind it, at most
    """

    context: int
    window: int
    continuation: int


LEVELS = (Level(2, 1, 3), Level(3, 1, 4), Level(5, 4, 14), Level(8, 8, 30))
"""What schema 1 stores; measured in docs/log.md. To change it is to change the schema."""

REACH = max(level.context + level.window - 1 for level in LEVELS)
"""Newest tokens of a text that decide what a lookup finds."""


def as_array() -> NDArray[np.int32]:
    """int32 [levels, 3] for the kernels, in the order of the fields of :class:`Level`."""
    return np.array(LEVELS, np.int32)
