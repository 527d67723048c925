"""Best-first growth: always expand the node most likely to be accepted.

The conditional probability of a child mixes the sources, the surer first, each taking its share of what is left:
n-gram counts of the longest match, of shorter ones, the model's latest next tokens after that token, the prior table.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from racer.draft.automaton import ABSENT, COUNT, FIRST, NEXT, TOKEN, TOTAL, find, live_state
from racer.draft.frontier import (
    Bytes,
    Frontier,
    Nodes,
    Tree,
    finished,
    new_frontier,
    new_nodes,
    offer,
    put_node,
    take_best,
)
from racer.draft.known import Arrays, Floats, Ints, Known, Limits, TrieView, known_of
from racer.draft.logits import find_row
from racer.draft.sources import POOL_COUNT, POOL_FIRST, POOL_NEXT, POOL_TOKEN, POOL_TOTAL, PoolView, pool_child
from racer.numba import leaf, njit
from racer.types import Source

_RETRIEVAL = int(Source.RETRIEVAL)
_LOGITS = int(Source.LOGITS)
_STORE = int(Source.STORE)

_MIX_ROOM = 256  # children of one node that are considered; what the surest sources name comes first

Shorts = NDArray[np.int16]


class BestParams(NamedTuple):
    """Tuning of the mixture. Measured on the demo model; shares are of the probability still unclaimed.

    A match of length m whose continuations were counted c times in all claims
    c / (c + ngram_doubt) * min(ngram_cap, ngram_base + ngram_slope * m).
    """

    max_match: int = 6
    min_match: int = 2
    ngram_doubt: float = 0.6
    ngram_base: float = 0.45
    ngram_slope: float = 0.1
    ngram_cap: float = 0.95
    latest_share: float = 0.75
    prior_share: float = 0.55
    damping: float = 0.85
    scan: int = 32


class _Mix(NamedTuple):
    """Children of one node while their sources are mixed; ``weight`` is the largest contribution, by ``source``.

    ``places`` is an open-addressing hash from token to place + 1, twice as large as the other arrays.
    """

    places: Shorts
    tokens: Ints
    probs: Floats
    weights: Floats
    sources: Bytes


@njit
def _new_mix() -> _Mix:
    return _Mix(
        np.zeros(2 * _MIX_ROOM, np.int16),
        np.empty(_MIX_ROOM, np.int32),
        np.empty(_MIX_ROOM, np.float32),
        np.empty(_MIX_ROOM, np.float32),
        np.empty(_MIX_ROOM, np.uint8),
    )


@leaf
def _add(mix: _Mix, size: int, token: int, weight: float, source: int) -> int:
    mask = mix.places.shape[0] - 1
    slot = (token ^ (token >> 9)) & mask
    while mix.places[slot] != 0:
        i = mix.places[slot] - 1
        if mix.tokens[i] == token:
            mix.probs[i] += weight
            if weight > mix.weights[i]:
                mix.weights[i] = weight
                mix.sources[i] = source
            return size
        slot = (slot + 1) & mask
    if size < mix.tokens.shape[0]:
        mix.places[slot] = size + 1
        mix.tokens[size] = token
        mix.probs[size] = weight
        mix.weights[size] = weight
        mix.sources[size] = source
        size += 1
    return size


@leaf
def _ngram_share(params: BestParams, length: int, total: int) -> float:
    certainty = min(params.ngram_cap, params.ngram_base + params.ngram_slope * length)
    return total / (total + params.ngram_doubt) * certainty


@leaf
def _add_ngram(mix: _Mix, size: int, trie: TrieView, node: int, weight: float, scan: int) -> int:
    child = trie.nodes[node, FIRST]
    while child != 0 and scan > 0:
        size = _add(mix, size, trie.nodes[child, TOKEN], weight * trie.nodes[child, COUNT], _RETRIEVAL)
        child = trie.nodes[child, NEXT]
        scan -= 1
    return size


@leaf
def _add_pool(mix: _Mix, size: int, pool: PoolView, node: int, weight: float, scan: int) -> int:
    child = pool.rows[node, POOL_FIRST]
    while child != 0 and scan > 0:
        size = _add(mix, size, pool.rows[child, POOL_TOKEN], weight * pool.rows[child, POOL_COUNT], _STORE)
        child = pool.rows[child, POOL_NEXT]
        scan -= 1
    return size


@leaf
def _add_row(mix: _Mix, size: int, tokens: Ints, probs: Floats, weight: float) -> int:
    for i in range(tokens.shape[0]):
        size = _add(mix, size, tokens[i], weight * probs[i], _LOGITS)
    return size


@leaf
def _mix_children(
    mix: _Mix, known: Known, params: BestParams, states: Ints, pooled: int, token: int, depth: int
) -> int:
    """Fill ``mix`` with the children of a node; returns how many. ``states`` are the trie nodes of its last tokens."""
    size, rest = 0, 1.0
    mix.places[:] = 0
    store_total = known.pool.rows[pooled, POOL_TOTAL] if pooled != ABSENT else 0
    store_length = min(known.pool.matched + depth, params.max_match)
    for length in range(params.max_match, 0, -1):
        node = states[length]
        if length >= params.min_match and node != ABSENT and trie_total(known.trie, node) > 0:
            total = trie_total(known.trie, node)
            share = _ngram_share(params, length, total)
            size = _add_ngram(mix, size, known.trie, node, rest * share / total, params.scan)
            rest *= 1.0 - share
        if length == store_length and store_total > 0:
            share = _ngram_share(params, length, store_total)
            size = _add_pool(mix, size, known.pool, pooled, rest * share / store_total, params.scan)
            rest *= 1.0 - share
    row = find_row(known.table.slots, known.table.keys, token)
    if row >= 0:
        size = _add_row(mix, size, known.table.tokens[row], known.table.probs[row], rest * params.latest_share)
        rest *= 1.0 - params.latest_share
    if token < known.prior.tokens.shape[0]:
        size = _add_row(mix, size, known.prior.tokens[token], known.prior.probs[token], rest * params.prior_share)
    return size


@leaf
def trie_total(trie: TrieView, node: int) -> int:
    """Occurrences of the node's n-gram that were followed by a token still held."""
    return int(trie.nodes[node, TOTAL])


@leaf
def _root_states(trie: TrieView, states: Ints) -> None:
    for length in range(states.shape[0]):
        states[length] = live_state(trie.nodes, trie.states, length) if length < trie.states.shape[0] else ABSENT


@leaf
def _follow_states(trie: TrieView, before: Ints, states: Ints, token: int) -> None:
    """The states after ``token``: each of the parent's, one token longer."""
    states[0] = 0
    for length in range(1, states.shape[0]):
        node = 0
        if before[length - 1] != ABSENT:
            node = find(trie.nodes, trie.slots, before[length - 1], token)
        states[length] = node if node != 0 else ABSENT


@leaf
def _expand(
    nodes: Nodes,
    frontier: Frontier,
    mix: _Mix,
    known: Known,
    params: BestParams,
    limits: Limits,
    states: Ints,
    pooled: int,
    node: int,
    key: float,
    room: int,
) -> None:
    depth = nodes.depths[node]
    size = _mix_children(mix, known, params, states, pooled, nodes.tokens[node], depth)
    for i in range(size):
        token, prob = mix.tokens[i], mix.probs[i]
        if 0 <= token < limits.vocab_size and prob > 0.0:
            damped = key * prob * params.damping
            offer(frontier, room, damped, token, node, nodes.probs[node] * prob, mix.sources[i])


@njit
def grow_best(root: int, arrays: Arrays, params: BestParams, limits: Limits) -> Tree:
    """The ``budget`` nodes most likely to be accepted, most likely first; every prefix of them is itself a tree."""
    known, budget = known_of(arrays), limits.budget
    nodes, frontier = new_nodes(budget, root), new_frontier(budget)
    states = np.empty((budget, params.max_match + 1), np.int32)
    pooled = np.empty(budget, np.int32)
    keys = np.empty(budget, np.float32)
    mix = _new_mix()
    _root_states(known.trie, states[0])
    pooled[0], keys[0], size = 0, 1.0, 1
    while True:
        last = size - 1
        if nodes.depths[last] < limits.max_depth and size < budget:
            _expand(
                nodes, frontier, mix, known, params, limits, states[last], pooled[last], last, keys[last], budget - size
            )
        if size == budget:
            break
        slot = take_best(frontier)
        if slot < 0:
            break
        parent, token = frontier.parents[slot], frontier.tokens[slot]
        put_node(nodes, size, token, parent, frontier.sources[slot], frontier.probs[slot])
        keys[size] = frontier.keys[frontier.used[0]]
        _follow_states(known.trie, states[parent], states[size], token)
        child = pool_child(known.pool.rows, pooled[parent], token) if pooled[parent] != ABSENT else 0
        pooled[size] = child if child != 0 else ABSENT
        size += 1
    return finished(nodes, size)
