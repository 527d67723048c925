"""What the growth kernels read: views of all that is known about one request, as plain arrays."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from racer.draft.sources import PoolView
from racer.numba import njit

Ints = NDArray[np.int32]
Floats = NDArray[np.float32]
Bytes = NDArray[np.uint8]


class TrieView(NamedTuple):
    """Arrays of an :class:`racer.draft.automaton.Automaton`."""

    nodes: Ints
    slots: Ints
    states: Ints


class TableView(NamedTuple):
    """Arrays of a :class:`racer.draft.logits.LogitsTable`."""

    slots: Ints
    keys: Ints
    tokens: Ints
    probs: Floats


class PriorView(NamedTuple):
    """Arrays of a :class:`racer.draft.prior.PriorTable`; no rows where there is none."""

    tokens: Ints
    probs: Floats


class Known(NamedTuple):
    """All that one request's draft is grown from. A source that is not to be used is an empty one.

    latest, pairs  the request's latest next tokens behind one token, and behind two
    free           next tokens behind two or three tokens in the model's own free-running text
    """

    trie: TrieView
    latest: TableView
    pairs: TableView
    free: TableView
    prior: PriorView
    pool: PoolView


Arrays = tuple[
    *tuple[Ints, Ints, Ints],
    *tuple[Ints, Ints, Ints, Floats],
    *tuple[Ints, Ints, Ints, Floats],
    *tuple[Ints, Ints, Ints, Floats],
    *tuple[Ints, Floats],
    *tuple[Ints, int, float],
]
"""The fields of a :class:`Known`, flat. numba takes a plain tuple from Python in a fifth of a nested one's time."""


@njit
def known_of(arrays: Arrays) -> Known:
    """Give the flat fields their names back, inside a kernel."""
    return Known(
        TrieView(arrays[0], arrays[1], arrays[2]),
        TableView(arrays[3], arrays[4], arrays[5], arrays[6]),
        TableView(arrays[7], arrays[8], arrays[9], arrays[10]),
        TableView(arrays[11], arrays[12], arrays[13], arrays[14]),
        PriorView(arrays[15], arrays[16]),
        PoolView(arrays[17], arrays[18], arrays[19]),
    )


class Limits(NamedTuple):
    """Bounds of one draft: nodes (root included), path length in tokens below the root, and the vocabulary.

    ``least_prob``: no node of the best-first tree is less likely.
    """

    budget: int
    max_depth: int
    vocab_size: int
    least_prob: float
