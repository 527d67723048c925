"""Best-first growth: always expand the node most likely to be accepted.

A node's probability is the product, along its path, of the conditionals that :mod:`racer.draft.mixture` gives. Nodes
are ranked by that product with each factor damped.
"""

from __future__ import annotations

import numpy as np

from racer.draft.automaton import ABSENT, find, live_state
from racer.draft.frontier import Frontier, Nodes, Tree, finished, new_frontier, new_nodes, offer, put_node, take_best
from racer.draft.known import Arrays, Ints, Known, Limits, TrieView, known_of
from racer.draft.mixture import Mix, MixtureParams, mix_children, new_mix
from racer.draft.sources import pool_child
from racer.numba import leaf, njit


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
            node = find(trie.nodes, trie.slots, int(before[length - 1]), token)
        states[length] = node if node != 0 else ABSENT


@leaf
def _follow_pool(known: Known, pooled: int, token: int) -> int:
    child = pool_child(known.pool.rows, pooled, token) if pooled != ABSENT else 0
    return child if child != 0 else ABSENT


@leaf
def _offer_children(
    frontier: Frontier, room: int, mix: Mix, size: int, node: int, prob: float, key: float, limits: Limits
) -> None:
    for i in range(size):
        token, conditional = int(mix.tokens[i]), float(mix.probs[i])
        likely = conditional > 0.0 and prob * conditional >= limits.least_prob
        if likely and 0 <= token < limits.vocab_size:
            offer(frontier, room, key * conditional, token, node, prob * conditional, int(mix.sources[i]))


@leaf
def _put_best(nodes: Nodes, size: int, frontier: Frontier, slot: int) -> None:
    put_node(
        nodes,
        size,
        int(frontier.tokens[slot]),
        int(frontier.parents[slot]),
        int(frontier.sources[slot]),
        float(frontier.probs[slot]),
    )


@njit
def grow_best(tail: Ints, arrays: Arrays, params: MixtureParams, limits: Limits) -> Tree:
    """The ``budget`` nodes most likely to be accepted, most likely first; every prefix of them is itself a tree.

    ``tail`` int32 [3]: the text's last tokens, the root last, -1 where it is shorter.
    """
    known, budget = known_of(arrays), limits.budget
    nodes, frontier, mix = new_nodes(budget, tail[2]), new_frontier(budget), new_mix()
    states = np.empty((budget, params.max_match + 1), np.int32)
    lasts = np.empty((budget, len(tail)), np.int32)
    pooled = np.zeros(budget, np.int32)
    keys = np.ones(budget, np.float32)
    _root_states(known.trie, states[0])
    lasts[0] = tail
    size = 1
    while size < budget:
        node = size - 1
        depth = int(nodes.depths[node])
        if depth < limits.max_depth:
            found = mix_children(mix, known, params, states[node], int(pooled[node]), depth, lasts[node])
            key = float(keys[node] * params.damping)
            _offer_children(frontier, budget - size, mix, found, node, float(nodes.probs[node]), key, limits)
        slot = take_best(frontier)
        if slot < 0:
            break
        _put_best(nodes, size, frontier, slot)
        keys[size] = frontier.keys[frontier.used[0]]
        parent, token = int(nodes.parents[size]), int(nodes.tokens[size])
        _follow_states(known.trie, states[parent], states[size], token)
        pooled[size] = _follow_pool(known, int(pooled[parent]), token)
        lasts[size, 0], lasts[size, 1], lasts[size, 2] = lasts[parent, 1], lasts[parent, 2], token
        size += 1
    return finished(nodes, size)
