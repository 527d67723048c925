"""What the growth kernels write: the nodes of the tree, and the candidates for the next one."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from racer.numba import leaf, njit

Ints = NDArray[np.int32]
Floats = NDArray[np.float32]
Bytes = NDArray[np.uint8]


class Nodes(NamedTuple):
    """Arrays of a :class:`racer.draft.tree.DraftTree` while it grows, each of ``budget`` elements."""

    tokens: Ints
    parents: Ints
    depths: Ints
    sources: Bytes
    probs: Floats


Tree = tuple[Ints, Ints, Ints, Bytes, Floats]
"""The fields of a :class:`Nodes`, flat, cut to the nodes in use."""


class Frontier(NamedTuple):
    """Candidates for the next node, sorted; only as many are kept as the tree still has room for.

    keys, slots  float32, int32 [budget]  ascending by key: the best is the last, the first is dropped when full
    tokens, parents, probs, sources       fields of a candidate, by slot
    used         int32 [1]                candidates held; ``slots`` beyond it are free ones
    """

    keys: Floats
    slots: Ints
    tokens: Ints
    parents: Ints
    probs: Floats
    sources: Bytes
    used: Ints


@njit
def new_nodes(budget: int, root: int) -> Nodes:
    """Room for ``budget`` nodes, the first of them the root."""
    nodes = Nodes(
        np.empty(budget, np.int32),
        np.empty(budget, np.int32),
        np.empty(budget, np.int32),
        np.empty(budget, np.uint8),
        np.empty(budget, np.float32),
    )
    nodes.tokens[0] = root
    nodes.parents[0] = -1
    nodes.depths[0] = 0
    nodes.sources[0] = 0
    nodes.probs[0] = 1.0
    return nodes


@njit
def finished(nodes: Nodes, size: int) -> Tree:
    """What a growth kernel returns: the first ``size`` nodes."""
    return (
        nodes.tokens[:size],
        nodes.parents[:size],
        nodes.depths[:size],
        nodes.sources[:size],
        nodes.probs[:size],
    )


@leaf
def put_node(nodes: Nodes, node: int, token: int, parent: int, source: int, prob: float) -> None:
    """Write one node below ``parent``; ``prob`` is the product along its path."""
    nodes.tokens[node] = token
    nodes.parents[node] = parent
    nodes.depths[node] = nodes.depths[parent] + 1
    nodes.sources[node] = source
    nodes.probs[node] = prob


@njit
def new_frontier(budget: int) -> Frontier:
    """An empty frontier for a tree of ``budget`` nodes."""
    return Frontier(
        np.empty(budget, np.float32),
        np.arange(budget).astype(np.int32),
        np.empty(budget, np.int32),
        np.empty(budget, np.int32),
        np.empty(budget, np.float32),
        np.empty(budget, np.uint8),
        np.zeros(1, np.int32),
    )


@leaf
def offer(frontier: Frontier, room: int, key: float, token: int, parent: int, prob: float, source: int) -> None:
    """Keep the candidate if it is among the ``room`` best; of equals, the one offered first."""
    keys, slots = frontier.keys, frontier.slots
    used = frontier.used[0]
    if used >= room and (room <= 0 or np.float32(key) <= keys[0]):
        return
    if used >= room:
        slot, place = slots[0], 0
        while place + 1 < used and keys[place + 1] < np.float32(key):
            keys[place], slots[place] = keys[place + 1], slots[place + 1]
            place += 1
    else:
        slot, place = slots[used], used
        while place > 0 and keys[place - 1] >= np.float32(key):
            keys[place], slots[place] = keys[place - 1], slots[place - 1]
            place -= 1
        frontier.used[0] = used + 1
    keys[place], slots[place] = key, slot
    frontier.tokens[slot] = token
    frontier.parents[slot] = parent
    frontier.probs[slot] = prob
    frontier.sources[slot] = source


@leaf
def take_best(frontier: Frontier) -> int:
    """Remove the best candidate and return its slot, readable until the next offer; -1 where none is left."""
    if frontier.used[0] == 0:
        return -1
    frontier.used[0] -= 1
    return int(frontier.slots[frontier.used[0]])
