"""What the growth kernels read: views of all that is known about one request, as plain arrays."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from racer.draft.sources import PoolView

Ints = NDArray[np.int32]
Floats = NDArray[np.float32]


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
    """All that one request's draft is grown from. A source that is not to be used is an empty one."""

    trie: TrieView
    table: TableView
    prior: PriorView
    pool: PoolView


class Limits(NamedTuple):
    """Bounds of one draft: nodes (root included), path length in tokens below the root, and the vocabulary."""

    budget: int
    max_depth: int
    vocab_size: int
