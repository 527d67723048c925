"""The tree of the paper (RACER), and its chain: retrieval first, the logits tree fills what is left of the budget.

Borders are the suffix states of the text, root token included, of at least ``min_depth`` tokens: the trie nodes that
the failure chain reaches for the root token. Their continuations are pooled (counts of equal paths add up) and the most
frequent are kept. The logits tree is grown breadth first; a node of it that retrieval has already drafted counts once,
and growth goes on below it, so the budget is filled whenever the tables reach far enough.
"""

from __future__ import annotations

import numpy as np

from racer.draft.automaton import ABSENT, COUNT, FIRST, NEXT, TOKEN, TOTAL, find, live_state
from racer.draft.frontier import Frontier, Nodes, Tree, finished, new_frontier, new_nodes, offer, put_node, take_best
from racer.draft.known import Arrays, Ints, Known, Limits, TableView, TrieView, known_of
from racer.draft.logits import ANY, find_row
from racer.draft.sources import POOL_COUNT, POOL_FIRST, POOL_NEXT, POOL_TOKEN, POOL_TOTAL, pool_child
from racer.numba import leaf, njit
from racer.types import Source

_RETRIEVAL = int(Source.RETRIEVAL)
_LOGITS = int(Source.LOGITS)
_STORE = int(Source.STORE)

_DOUBT = 0.6  # a continuation seen c times in t is accepted with about c / (t + 0.6): used for ``probs`` only
_SCAN = 256  # children looked at below one trie node, the most recent first: bounds a step's work


@leaf
def _shortest(borders: Ints) -> int:
    """The trie node of the shortest border still matched: it has every child that the longer ones have."""
    for border in borders:
        if border != ABSENT:
            return int(border)
    return ABSENT


@leaf
def _pooled_count(trie: TrieView, borders: Ints, token: int) -> int:
    count = 0
    for border in borders:
        if border != ABSENT:
            count += trie.nodes[find(trie.nodes, trie.slots, border, token), COUNT]
    return count


@leaf
def _pooled_total(known: Known, borders: Ints, pooled: int) -> int:
    total = known.pool.rows[pooled, POOL_TOTAL] if pooled != ABSENT else 0
    for border in borders:
        if border != ABSENT:
            total += known.trie.nodes[border, TOTAL]
    return total


@leaf
def _offer_text(
    frontier: Frontier, room: int, known: Known, limits: Limits, borders: Ints, pooled: int, node: int, unit: float
) -> None:
    """Offer what followed the node's borders in the request's text; ``unit`` is the probability of one occurrence."""
    trie, shortest = known.trie, _shortest(borders)
    child, left = trie.nodes[shortest, FIRST] if shortest != ABSENT else 0, _SCAN
    while child != 0 and left > 0:
        token = int(trie.nodes[child, TOKEN])
        count = _pooled_count(trie, borders, token)
        if pooled != ABSENT:
            count += known.pool.rows[pool_child(known.pool.rows, pooled, token), POOL_COUNT]
        if 0 <= token < limits.vocab_size:
            offer(frontier, room, count, token, node, unit * count, _RETRIEVAL)
        child = trie.nodes[child, NEXT]
        left -= 1


@leaf
def _offer_store(
    frontier: Frontier, room: int, known: Known, limits: Limits, borders: Ints, pooled: int, node: int, unit: float
) -> None:
    """Offer what the store adds to that."""
    rows, trie, shortest = known.pool.rows, known.trie, _shortest(borders)
    child = rows[pooled, POOL_FIRST] if pooled != ABSENT else 0
    while child != 0:
        token, count = int(rows[child, POOL_TOKEN]), int(rows[child, POOL_COUNT])
        in_text = shortest != ABSENT and find(trie.nodes, trie.slots, shortest, token) != 0
        if not in_text and 0 <= token < limits.vocab_size:
            offer(frontier, room, count, token, node, unit * count, _STORE)
        child = rows[child, POOL_NEXT]


@leaf
def _follow(known: Known, borders: Ints, after: Ints, token: int) -> None:
    for i in range(len(borders)):
        child = find(known.trie.nodes, known.trie.slots, borders[i], token) if borders[i] != ABSENT else 0
        after[i] = child if child != 0 else ABSENT


@leaf
def _follow_pool(known: Known, pooled: int, token: int) -> int:
    child = pool_child(known.pool.rows, pooled, token) if pooled != ABSENT else 0
    return child if child != 0 else ABSENT


@njit
def _root_borders(trie: TrieView, min_depth: int) -> Ints:
    """Trie nodes of the last min_depth, min_depth + 1, ... tokens."""
    borders = np.full(max(1, trie.states.shape[0] - min_depth), ABSENT, np.int32)
    for length in range(min_depth, trie.states.shape[0]):
        borders[length - min_depth] = live_state(trie.nodes, trie.states, length)
    return borders


@njit
def _retrieve(nodes: Nodes, known: Known, min_depth: int, limits: Limits) -> int:
    """Grow the retrieval tree: pooled counts never rise along a path, so taking the best candidate is exact."""
    budget, size = limits.budget, 1
    frontier = new_frontier(budget)
    first = _root_borders(known.trie, min_depth)
    borders = np.empty((budget, len(first)), np.int32)
    pooled = np.zeros(budget, np.int32)
    borders[0] = first
    while size < budget:
        node, room = size - 1, budget - size
        if nodes.depths[node] < limits.max_depth:
            unit = nodes.probs[node] / (_pooled_total(known, borders[node], pooled[node]) + _DOUBT)
            _offer_text(frontier, room, known, limits, borders[node], pooled[node], node, unit)
            _offer_store(frontier, room, known, limits, borders[node], pooled[node], node, unit)
        slot = take_best(frontier)
        if slot < 0:
            break
        parent, token = int(frontier.parents[slot]), int(frontier.tokens[slot])
        put_node(nodes, size, token, parent, int(frontier.sources[slot]), float(frontier.probs[slot]))
        _follow(known, borders[parent], borders[size], token)
        pooled[size] = _follow_pool(known, int(pooled[parent]), token)
        size += 1
    return size


@leaf
def _child(nodes: Nodes, size: int, parent: int, token: int) -> int:
    """The drafted child, or -1. Parents stand before their children."""
    for node in range(parent + 1, size):
        if nodes.parents[node] == parent and nodes.tokens[node] == token:
            return node
    return -1


@njit
def _fill(nodes: Nodes, size: int, table: TableView, limits: Limits) -> int:
    """Grow the logits tree over what is there, breadth first, until the budget is spent."""
    queue, breadths = np.zeros(limits.budget, np.int32), np.zeros(limits.budget, np.int32)  # breadth 0: not reached
    breadths[0] = table.tokens.shape[1]
    head, tail = 0, 1
    while head < tail and size < limits.budget:
        node = queue[head]
        breadth = breadths[node]
        head += 1
        row = find_row(table.slots, table.keys, ANY, ANY, nodes.tokens[node])
        if row < 0 or nodes.depths[node] >= limits.max_depth:
            continue
        share = breadth if node == 0 else max(1, breadth // 2)
        for i in range(min(breadth, table.tokens.shape[1])):
            token = table.tokens[row, i]
            if 0 <= token < limits.vocab_size:
                child = _child(nodes, size, node, token)
                if child < 0:
                    if size == limits.budget:
                        break
                    child = size
                    put_node(nodes, child, token, node, _LOGITS, nodes.probs[node] * table.probs[row, i])
                    size += 1
                if breadths[child] == 0:
                    queue[tail], breadths[child] = child, share
                    tail += 1
            share = max(1, share // 2)
    return size


@njit
def grow_paper(root: int, arrays: Arrays, min_depth: int, limits: Limits) -> Tree:
    """The retrieval tree, then the logits tree; at most ``budget`` nodes in all."""
    known, nodes = known_of(arrays), new_nodes(limits.budget, root)
    size = _retrieve(nodes, known, min_depth, limits)
    return finished(nodes, _fill(nodes, size, known.latest, limits))


@leaf
def _most_frequent(known: Known, border: int, pooled: int, vocab_size: int) -> tuple[int, int, int, int]:
    """Token, count, total and source of the next token of the longest match; count 0 where it ends."""
    best, best_count, total, source = -1, 0, 0, _RETRIEVAL
    if border != ABSENT:
        child, left, total = known.trie.nodes[border, FIRST], _SCAN, known.trie.nodes[border, TOTAL]
        while child != 0 and left > 0:
            token, count = known.trie.nodes[child, TOKEN], known.trie.nodes[child, COUNT]
            if count > best_count and 0 <= token < vocab_size:
                best, best_count = token, count
            child = known.trie.nodes[child, NEXT]
            left -= 1
    if best_count == 0 and pooled != ABSENT:
        source, total = _STORE, known.pool.rows[pooled, POOL_TOTAL]
        child = known.pool.rows[pooled, POOL_FIRST]
        while child != 0:
            token, count = known.pool.rows[child, POOL_TOKEN], known.pool.rows[child, POOL_COUNT]
            if count > best_count and 0 <= token < vocab_size:
                best, best_count = token, count
            child = known.pool.rows[child, POOL_NEXT]
    return best, best_count, total, source


@leaf
def _longest_continued(trie: TrieView, min_depth: int) -> int:
    for length in range(trie.states.shape[0] - 1, min_depth - 1, -1):
        node = live_state(trie.nodes, trie.states, length)
        if node != ABSENT and trie.nodes[node, FIRST] != 0:
            return node
    return ABSENT


@njit
def grow_chain(root: int, arrays: Arrays, min_depth: int, limits: Limits) -> Tree:
    """One path: the longest match's most frequent continuation, then the logits table's first choice after it."""
    known, nodes, size = known_of(arrays), new_nodes(limits.budget, root), 1
    length = min(limits.budget, limits.max_depth + 1)
    border, pooled = _longest_continued(known.trie, min_depth), 0
    while size < length:
        token, count, total, source = _most_frequent(known, border, pooled, limits.vocab_size)
        if count == 0:
            break
        put_node(nodes, size, token, size - 1, source, nodes.probs[size - 1] * count / (total + _DOUBT))
        border = find(known.trie.nodes, known.trie.slots, border, token) if border != ABSENT else 0
        border = border if border != 0 else ABSENT
        pooled = _follow_pool(known, pooled, token)
        size += 1
    while size < length:
        row = find_row(known.latest.slots, known.latest.keys, ANY, ANY, nodes.tokens[size - 1])
        if row < 0 or not 0 <= known.latest.tokens[row, 0] < limits.vocab_size:
            break
        prob = nodes.probs[size - 1] * known.latest.probs[row, 0]
        put_node(nodes, size, known.latest.tokens[row, 0], size - 1, _LOGITS, prob)
        size += 1
    return finished(nodes, size)
