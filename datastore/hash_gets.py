"""HGET commands of many buckets, made at once: all of a namespace have the same length."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from datastore.kernels import FIELD_BYTES
from datastore.keys import KeyNames

_HEX = np.frombuffer(b"0123456789abcdef", np.uint8)


class HashGets:
    """Packs ``HGET bucket field`` in Redis' protocol by filling in a template."""

    def __init__(self, names: KeyNames) -> None:
        key = names.bucket_key(0)
        head = b"*3\r\n$4\r\nHGET\r\n$%d\r\n" % len(key)
        command = head + key + b"\r\n$%d\r\n" % FIELD_BYTES + bytes(FIELD_BYTES) + b"\r\n"
        self._template = np.frombuffer(command, np.uint8)
        self._shard_at = len(head) + key.index(b"}") - 1
        self._digits_at = len(head) + key.index(b"}") + 2
        self._digit_shifts = np.arange(4 * names.digits - 4, -1, -4)
        self._shard_shift = names.bucket_bits - 4

    def shards(self, buckets: NDArray[np.int64]) -> NDArray[np.int64]:
        """Shard of each of the ``buckets`` (int64 [n])."""
        return buckets >> self._shard_shift

    def packed(self, buckets: NDArray[np.int64], fields: NDArray[np.uint8]) -> NDArray[np.uint8]:
        """uint8 [n, length of a command]: one command a row for ``buckets`` [n] and ``fields`` [n, FIELD_BYTES]."""
        rows = np.tile(self._template, (len(buckets), 1))
        rows[:, self._shard_at] = _HEX[self.shards(buckets)]
        digits = (buckets[:, None] >> self._digit_shifts) & 15
        rows[:, self._digits_at : self._digits_at + len(self._digit_shifts)] = _HEX[digits]
        rows[:, -FIELD_BYTES - 2 : -2] = fields
        return rows
