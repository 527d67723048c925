"""The logits table of one request: for each token, the model's next tokens at its latest occurrence."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from racer.numba import leaf, njit

Ints = NDArray[np.int32]
Floats = NDArray[np.float32]

_FIRST_ROWS = 128
_HASH = 0x9E3779B1


@leaf
def find_row(slots: Ints, keys: Ints, token: int) -> int:
    """The table's row for ``token``, or -1."""
    mask = slots.shape[0] - 1
    mixed = token * _HASH
    slot = (mixed ^ (mixed >> 15)) & mask
    while True:
        row = slots[slot] - 1
        if row < 0 or keys[row] == token:
            return int(row)
        slot = (slot + 1) & mask


@leaf
def _place(slots: Ints, token: int, row: int) -> None:
    mask = slots.shape[0] - 1
    mixed = token * _HASH
    slot = (mixed ^ (mixed >> 15)) & mask
    while slots[slot] != 0:
        slot = (slot + 1) & mask
    slots[slot] = row + 1


@njit
def _update(
    slots: Ints, keys: Ints, tokens: Ints, probs: Floats, used: int, seen: Ints, tops: Ints, top_probs: Floats
) -> int:
    """Write one row for each of ``seen``, in order, while there is room; returns the rows in use."""
    width = min(tokens.shape[1], tops.shape[1])
    for i in range(seen.shape[0]):
        row = find_row(slots, keys, seen[i])
        if row < 0:
            row = used
            used += 1
            keys[row] = seen[i]
            _place(slots, seen[i], row)
            tokens[row, width:] = -1
            probs[row, width:] = 0.0
        tokens[row, :width] = tops[i, :width]
        probs[row, :width] = top_probs[i, :width]
    return used


@leaf
def _rehash(slots: Ints, keys: Ints, used: int) -> None:
    for row in range(used):
        _place(slots, keys[row], row)


class LogitsTable:
    """Token to its latest top-k next tokens. It grows with the distinct tokens met, at most one row for each.

    slots   int32 [power of two]   row + 1 of a token, 0 is empty
    keys    int32 [rows]           the token
    tokens  int32 [rows, top_k]    next tokens, most likely first; -1 where fewer are known
    probs   float32 [rows, top_k]  their probabilities
    """

    def __init__(self, top_k: int) -> None:
        """Keep ``top_k`` next tokens for each token."""
        self.top_k = top_k
        self.used = 0
        self.slots: Ints = np.zeros(2 * _FIRST_ROWS, np.int32)
        self.keys: Ints = np.empty(_FIRST_ROWS, np.int32)
        self.tokens: Ints = np.empty((_FIRST_ROWS, top_k), np.int32)
        self.probs: Floats = np.empty((_FIRST_ROWS, top_k), np.float32)

    def __len__(self) -> int:
        """Distinct tokens known."""
        return self.used

    def update(self, seen: Ints, tops: Ints, top_probs: Floats) -> None:
        """Learn the next tokens ``tops`` int32 [m, >=1] after each of ``seen`` int32 [m]; later rows win."""
        for start in range(0, len(seen), 512):
            rows = slice(start, start + 512)
            self._reserve(self.used + len(seen[rows]))
            self.used = _update(
                self.slots, self.keys, self.tokens, self.probs, self.used, seen[rows], tops[rows], top_probs[rows]
            )

    def get(self, token: int) -> tuple[Ints, Floats] | None:
        """Next tokens int32 [top_k] and probabilities float32 [top_k] after ``token``, or None."""
        row = find_row(self.slots, self.keys, token)
        return None if row < 0 else (self.tokens[row], self.probs[row])

    def _reserve(self, wanted: int) -> None:
        rows = len(self.keys)
        if wanted <= rows:
            return
        while rows < wanted:
            rows *= 2
        for name in ("keys", "tokens", "probs"):
            old = getattr(self, name)
            new = np.empty((rows, *old.shape[1:]), old.dtype)
            new[: self.used] = old[: self.used]
            setattr(self, name, new)
        self.slots = np.zeros(2 * rows, np.int32)
        _rehash(self.slots, self.keys, self.used)
