"""Tables of next tokens: what the model last said behind a token, or behind two or three."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from racer.numba import leaf

Ints = NDArray[np.int32]
Floats = NDArray[np.float32]

ANY = -2
"""Stands in a key for a token that does not matter; keys are the last three tokens, the newest last."""

KEY_TOKENS = 3

_FIRST_ROWS = 128
_CHUNK = 512


@leaf
def _home(first: int, second: int, third: int) -> int:
    mixed = third * 0x9E3779B1 + second * 0x85EBCA6B + first * 0xC2B2AE35
    return mixed ^ (mixed >> 15)


@leaf
def find_row(slots: Ints, keys: Ints, first: int, second: int, third: int) -> int:
    """The row of this key, or -1."""
    mask = slots.shape[0] - 1
    slot = _home(first, second, third) & mask
    while True:
        row = slots[slot] - 1
        if row < 0 or (keys[row, 2] == third and keys[row, 1] == second and keys[row, 0] == first):
            return int(row)
        slot = (slot + 1) & mask


@leaf
def _place(slots: Ints, keys: Ints, row: int) -> None:
    mask = slots.shape[0] - 1
    slot = _home(keys[row, 0], keys[row, 1], keys[row, 2]) & mask
    while slots[slot] != 0:
        slot = (slot + 1) & mask
    slots[slot] = row + 1


@leaf
def _displace(slots: Ints, keys: Ints, row: int) -> None:
    """Empty the row's slot and close the gap, so that probing needs no tombstones."""
    mask = slots.shape[0] - 1
    hole = _home(keys[row, 0], keys[row, 1], keys[row, 2]) & mask
    while slots[hole] != row + 1:
        hole = (hole + 1) & mask
    probe = (hole + 1) & mask
    while slots[probe] != 0:
        other = slots[probe] - 1
        home = _home(keys[other, 0], keys[other, 1], keys[other, 2]) & mask
        if ((probe - home) & mask) >= ((probe - hole) & mask):
            slots[hole] = other + 1
            hole = probe
        probe = (probe + 1) & mask
    slots[hole] = 0


@leaf
def _new_row(slots: Ints, keys: Ints, meta: Ints, first: int, second: int, third: int) -> int:
    """A row for a new key: an unused one, or in a full table the one that was made longest ago."""
    row = meta[0]
    if row < keys.shape[0]:
        meta[0] += 1
    else:
        row = meta[1]
        meta[1] = (row + 1) % keys.shape[0]
        _displace(slots, keys, row)
    keys[row, 0] = first
    keys[row, 1] = second
    keys[row, 2] = third
    _place(slots, keys, row)
    return int(row)


Rows = tuple[Ints, Ints, Ints, Floats, Ints]
"""Slots, keys, tokens, probs and meta of a table."""


@leaf
def _put_row(table: Rows, first: int, second: int, third: int, tops: Ints, top_probs: Floats, i: int) -> None:
    """Write row ``i`` of ``tops`` behind these tokens, over what was known there."""
    slots, keys, tokens, probs, meta = table
    kept = min(tokens.shape[1], tops.shape[1])
    row = find_row(slots, keys, first, second, third)
    if row < 0:
        row = _new_row(slots, keys, meta, first, second, third)
    for j in range(tokens.shape[1]):
        tokens[row, j] = tops[i, j] if j < kept else -1
        probs[row, j] = top_probs[i, j] if j < kept else 0.0


@leaf
def _update(table: Rows, seen: Ints, tops: Ints, top_probs: Floats) -> None:
    given = seen.shape[1]
    for i in range(seen.shape[0]):
        first = int(seen[i, given - 3]) if given > 2 else ANY
        second = int(seen[i, given - 2]) if given > 1 else ANY
        _put_row(table, first, second, int(seen[i, given - 1]), tops, top_probs, i)


@leaf
def _update_tree(
    latest: Rows, pairs: Rows, tokens: Ints, parents: Ints, before: int, accepted: Ints, tops: Ints, top_probs: Floats
) -> None:
    """Two passes: the accepted nodes' rows come last, and win."""
    for wanted in range(2):
        for node in range(tokens.shape[0]):
            taken = 0
            for other in accepted:
                if other == node:
                    taken = 1
            if taken == wanted:
                token, parent = int(tokens[node]), parents[node]
                previous = int(tokens[parent]) if parent >= 0 else before
                _put_row(latest, ANY, ANY, token, tops, top_probs, node)
                _put_row(pairs, ANY, previous, token, tops, top_probs, node)


@leaf
def _rehash(slots: Ints, keys: Ints, used: int) -> None:
    for row in range(used):
        _place(slots, keys, row)


class LogitsTable:
    """Last tokens to the latest top-k next tokens; grows by doubling, then forgets the oldest row.

    slots   int32 [power of two]   row + 1 of a key, 0 is empty
    keys    int32 [rows, 3]        last tokens, the newest last, ANY in front where fewer matter
    tokens  int32 [rows, top_k]    next tokens, most likely first; -1 where fewer are known
    probs   float32 [rows, top_k]  their probabilities
    meta    int32 [2]              rows in use, oldest row of a full table
    """

    def __init__(self, top_k: int, max_rows: int = 1 << 15) -> None:
        """Keep ``top_k`` next tokens for each of at most ``max_rows`` keys."""
        self.top_k, self.max_rows = top_k, max_rows
        rows = min(_FIRST_ROWS, max_rows)
        self.slots: Ints = np.zeros(_slot_count(rows), np.int32)
        self.keys: Ints = np.empty((rows, KEY_TOKENS), np.int32)
        self.tokens: Ints = np.empty((rows, top_k), np.int32)
        self.probs: Floats = np.empty((rows, top_k), np.float32)
        self.meta: Ints = np.zeros(2, np.int32)

    def __len__(self) -> int:
        """Keys known."""
        return int(self.meta[0])

    def update(self, seen: Ints, tops: Ints, top_probs: Floats) -> None:
        """Learn the next tokens ``tops`` and ``top_probs`` [m, >= 1] behind ``seen`` int32 [m, 1..3]; later rows win.

        ``seen`` holds the last one, two or three tokens, the newest last. A table is meant for one of the three.
        """
        for start in range(0, len(seen), _CHUNK):
            rows = slice(start, start + _CHUNK)
            self._reserve(len(self) + len(seen[rows]))
            _update(self._rows, seen[rows], tops[rows], top_probs[rows])

    @property
    def _rows(self) -> Rows:
        return self.slots, self.keys, self.tokens, self.probs, self.meta

    def get(self, *last: int) -> tuple[Ints, Floats] | None:
        """Next tokens int32 [top_k] and probabilities float32 [top_k] behind the ``last`` one to three tokens."""
        row = find_row(self.slots, self.keys, *(ANY,) * (KEY_TOKENS - len(last)), *last)
        return None if row < 0 else (self.tokens[row], self.probs[row])

    def _reserve(self, wanted: int) -> None:
        rows = len(self.keys)
        if wanted <= rows or rows == self.max_rows:
            return
        while rows < wanted:
            rows *= 2
        rows, used = min(rows, self.max_rows), len(self)
        for name in ("keys", "tokens", "probs"):
            old = getattr(self, name)
            new = np.empty((rows, *old.shape[1:]), old.dtype)
            new[:used] = old[:used]
            setattr(self, name, new)
        self.slots = np.zeros(_slot_count(rows), np.int32)
        _rehash(self.slots, self.keys, used)


def update_tree(
    latest: LogitsTable,
    pairs: LogitsTable,
    tokens: Ints,
    parents: Ints,
    before: int,
    accepted: Ints,
    tops: Ints,
    top_probs: Floats,
) -> None:
    """Learn the rows of a verified draft tree, behind one token and behind two; the accepted nodes' rows win.

    tokens, parents  int32 [nodes] of the tree; ``before`` is the token in front of its root
    accepted         int32 [a], node indices
    tops, top_probs  int32, float32 [nodes, >= 1], in node order
    """
    latest._reserve(len(latest) + len(tokens))
    pairs._reserve(len(pairs) + len(tokens))
    _update_tree(latest._rows, pairs._rows, tokens, parents, before, accepted, tops, top_probs)


def _slot_count(rows: int) -> int:
    """At most half full, so that probes stay short."""
    return 1 << (2 * rows - 1).bit_length()
