"""The n-gram automaton of one request: a trie of counted n-grams, bounded by recency.

Text is learned token by token. The automaton keeps its *suffix states*: the trie nodes of the last 1, 2, ... n tokens.
Read from the longest to the shortest, that list is the failure chain of the current state (Aho and Corasick 1975: the
failure link of a node is the node of its longest proper suffix), so there are no links to rebuild after an insertion
and none that can be stale.

Storage is flat: ``nodes`` int32 [capacity, COLUMNS], one row a node, and ``slots``, an open-addressing hash from
(node, token) to the child. Node 0 is the trie's root and the sentinel of the circular recency list. A learned node is
touched before its ancestors, so an ancestor is always more recent than its descendants: the oldest node is a leaf, and
inner nodes are never evicted.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from racer.numba import leaf, njit

TOKEN, PARENT, COUNT, TOTAL, FIRST, NEXT, PREV, NEWER, OLDER, STAMP = range(10)
COLUMNS = 10
ABSENT = -1

_FIRST_CAPACITY = 256
_LEARN_CHUNK = 1024

Ints = NDArray[np.int32]


@leaf
def hash_of(parent: int, token: int) -> int:
    """Spread (node, token) over the slots; the caller masks."""
    mixed = parent * 0x9E3779B1 + token * 0x85EBCA6B
    return mixed ^ (mixed >> 15)


@leaf
def find(nodes: Ints, slots: Ints, parent: int, token: int) -> int:
    """The child of ``parent`` for ``token``; 0 where there is none (the root is nobody's child)."""
    mask = slots.shape[0] - 1
    slot = hash_of(parent, token) & mask
    while True:
        node = slots[slot]
        if node == 0 or (nodes[node, PARENT] == parent and nodes[node, TOKEN] == token):
            return int(node)
        slot = (slot + 1) & mask


@leaf
def _place(nodes: Ints, slots: Ints, node: int) -> None:
    mask = slots.shape[0] - 1
    slot = hash_of(nodes[node, PARENT], nodes[node, TOKEN]) & mask
    while slots[slot] != 0:
        slot = (slot + 1) & mask
    slots[slot] = node


@leaf
def _displace(nodes: Ints, slots: Ints, node: int) -> None:
    """Empty the node's slot and close the gap, so that probing needs no tombstones."""
    mask = slots.shape[0] - 1
    hole = hash_of(nodes[node, PARENT], nodes[node, TOKEN]) & mask
    while slots[hole] != node:
        hole = (hole + 1) & mask
    probe = (hole + 1) & mask
    while slots[probe] != 0:
        other = slots[probe]
        home = hash_of(nodes[other, PARENT], nodes[other, TOKEN]) & mask
        if ((probe - home) & mask) >= ((probe - hole) & mask):
            slots[hole] = other
            hole = probe
        probe = (probe + 1) & mask
    slots[hole] = 0


@leaf
def _touch_path(nodes: Ints, node: int) -> None:
    """Make the node, then each of its ancestors, the most recent."""
    while node != 0:
        if nodes[0, OLDER] != node:
            newer, older = nodes[node, NEWER], nodes[node, OLDER]
            nodes[newer, OLDER] = older
            nodes[older, NEWER] = newer
            _push_recent(nodes, node)
        node = nodes[node, PARENT]


@leaf
def _push_recent(nodes: Ints, node: int) -> None:
    head = nodes[0, OLDER]
    nodes[node, OLDER] = head
    nodes[node, NEWER] = 0
    nodes[head, NEWER] = node
    nodes[0, OLDER] = node


@leaf
def _unlink_sibling(nodes: Ints, node: int) -> None:
    before, after = nodes[node, PREV], nodes[node, NEXT]
    if before == 0:
        nodes[nodes[node, PARENT], FIRST] = after
    else:
        nodes[before, NEXT] = after
    if after != 0:
        nodes[after, PREV] = before


@leaf
def _push_sibling(nodes: Ints, node: int) -> None:
    parent = nodes[node, PARENT]
    first = nodes[parent, FIRST]
    nodes[node, PREV] = 0
    nodes[node, NEXT] = first
    if first != 0:
        nodes[first, PREV] = node
    nodes[parent, FIRST] = node


@leaf
def _evict(nodes: Ints, slots: Ints, spared: int) -> int:
    """Take the oldest leaf out and return its row; ``spared`` is about to get a child and stays."""
    if nodes[0, NEWER] == spared:
        _touch_path(nodes, spared)
    node = nodes[0, NEWER]
    newer = nodes[node, NEWER]
    nodes[newer, OLDER] = 0
    nodes[0, NEWER] = newer
    _displace(nodes, slots, node)
    _unlink_sibling(nodes, node)
    nodes[nodes[node, PARENT], TOTAL] -= nodes[node, COUNT]
    nodes[node, STAMP] += 1
    return int(node)


@leaf
def _insert(nodes: Ints, slots: Ints, meta: Ints, parent: int, token: int) -> int:
    if meta[0] < nodes.shape[0]:
        node = int(meta[0])
        meta[0] += 1
        nodes[node, STAMP] = 0
    else:
        node = _evict(nodes, slots, parent)
    nodes[node, TOKEN] = token
    nodes[node, PARENT] = parent
    nodes[node, COUNT] = 0
    nodes[node, TOTAL] = 0
    nodes[node, FIRST] = 0
    _place(nodes, slots, node)
    _push_sibling(nodes, node)
    _push_recent(nodes, node)
    return node


@njit
def _learn(nodes: Ints, slots: Ints, meta: Ints, states: Ints, tokens: Ints) -> None:
    """Count every n-gram that ends at each of ``tokens``, the longest first, and move the suffix states on."""
    longest = states.shape[0] - 1
    for token in tokens:
        for length in range(longest - 1, -1, -1):
            parent = states[length, 0]
            if parent == ABSENT or nodes[parent, STAMP] != states[length, 1]:
                states[length + 1, 0] = ABSENT
                continue
            node = find(nodes, slots, parent, token)
            if node == 0:
                node = _insert(nodes, slots, meta, parent, token)
            elif nodes[node, PREV] != 0:  # siblings stand most recent first, for scans that stop early
                _unlink_sibling(nodes, node)
                _push_sibling(nodes, node)
            nodes[node, COUNT] += 1
            nodes[parent, TOTAL] += 1
            _touch_path(nodes, node)
            states[length + 1, 0] = node
            states[length + 1, 1] = nodes[node, STAMP]


@leaf
def _rehash(nodes: Ints, slots: Ints, used: int) -> None:
    for node in range(1, used):
        _place(nodes, slots, node)


@leaf
def live_state(nodes: Ints, states: Ints, length: int) -> int:
    """The trie node of the last ``length`` tokens, or ABSENT: never learned, or evicted since."""
    node = int(states[length, 0])
    return node if node != ABSENT and nodes[node, STAMP] == states[length, 1] else ABSENT


class Automaton:
    """Counts of all n-grams of a growing text, up to a length and a number of nodes.

    Kernels read the arrays directly:

    nodes   int32 [capacity, COLUMNS]  rows of the trie; COUNT is the n-gram's occurrences, TOTAL its children's sum
    slots   int32 [power of two]       node of (parent, token), 0 is empty
    states  int32 [ngram + 1, 2]       node and stamp of the last 0..ngram tokens; a stamp that no longer fits says
                                       that the node was evicted (see :func:`live_state`)
    meta    int32 [1]                  rows in use
    """

    def __init__(self, ngram: int, max_nodes: int) -> None:
        """Count n-grams of 1..``ngram`` tokens; keep at most ``max_nodes`` rows."""
        self.ngram = ngram
        self.max_nodes = max(max_nodes, ngram + 2)
        capacity = min(_FIRST_CAPACITY, self.max_nodes)
        self.nodes: Ints = np.empty((capacity, COLUMNS), np.int32)
        self.nodes[0] = 0
        self.slots: Ints = np.zeros(_slot_count(capacity), np.int32)
        self.states: Ints = np.full((ngram + 1, 2), ABSENT, np.int32)
        self.states[0] = 0
        self.meta: Ints = np.ones(1, np.int32)

    def __len__(self) -> int:
        """N-grams held."""
        return int(self.meta[0]) - 1

    def learn(self, tokens: Ints) -> None:
        """Append ``tokens`` (int32 [m], contiguous) to the text. Within ``max_nodes`` no count is ever lost."""
        for start in range(0, len(tokens), _LEARN_CHUNK):
            chunk = tokens[start : start + _LEARN_CHUNK]
            self._reserve(int(self.meta[0]) + len(chunk) * self.ngram)
            _learn(self.nodes, self.slots, self.meta, self.states, chunk)

    def count(self, ngram: tuple[int, ...]) -> int:
        """Occurrences counted for ``ngram``; 0 if it was never seen or is evicted."""
        node = 0
        for token in ngram:
            node = find(self.nodes, self.slots, node, token)
            if node == 0:
                return 0
        return int(self.nodes[node, COUNT])

    def _reserve(self, wanted: int) -> None:
        capacity = len(self.nodes)
        if wanted <= capacity or capacity == self.max_nodes:
            return
        while capacity < wanted:
            capacity *= 2
        capacity = min(capacity, self.max_nodes)
        used = int(self.meta[0])
        nodes = np.empty((capacity, COLUMNS), np.int32)
        nodes[:used] = self.nodes[:used]
        self.nodes, self.slots = nodes, np.zeros(_slot_count(capacity), np.int32)
        _rehash(self.nodes, self.slots, used)

    def check_integrity(self) -> None:
        """Raise AssertionError unless hash, siblings, totals and the recency list agree with each other."""
        used = int(self.meta[0])
        assert used <= len(self.nodes) <= self.max_nodes
        assert sorted(self.slots[self.slots > 0]) == list(range(1, used)), "hash and rows differ"
        rank = {0: -1}
        node = int(self.nodes[0, OLDER])
        while node != 0:
            rank[node] = len(rank)
            node = int(self.nodes[node, OLDER])
        assert len(rank) == used, "recency list and rows differ"
        for node in range(1, used):
            parent, token = int(self.nodes[node, PARENT]), int(self.nodes[node, TOKEN])
            assert find(self.nodes, self.slots, parent, token) == node
            assert rank[parent] < rank[node], f"node {node} is more recent than its parent"
        for node in range(used):
            total, child = 0, int(self.nodes[node, FIRST])
            while child != 0:
                assert self.nodes[child, PARENT] == node
                total += int(self.nodes[child, COUNT])
                child = int(self.nodes[child, NEXT])
            assert total == self.nodes[node, TOTAL], f"total of node {node}"


def _slot_count(capacity: int) -> int:
    """At most half full, so that probes stay short."""
    return 1 << (2 * capacity - 1).bit_length()
