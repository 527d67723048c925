"""Calls of lookup.lua, packed at once: the keys of all buckets of a namespace have the same length."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from datastore.kernels import FIELD_BYTES
from datastore.keys import KeyNames

_HEX = np.frombuffer(b"0123456789abcdef", np.uint8)


class LookupPacker:
    """Packs ``EVALSHA digest n keys fields`` in Redis' protocol by filling in templates."""

    def __init__(self, names: KeyNames, digest: bytes) -> None:
        key = names.bucket_key(0)
        head = b"$%d\r\n" % len(key)
        self._key = np.frombuffer(head + key + b"\r\n", np.uint8)
        self._field = np.frombuffer(b"$%d\r\n" % FIELD_BYTES + bytes(FIELD_BYTES) + b"\r\n", np.uint8)
        self._call = b"$7\r\nEVALSHA\r\n$%d\r\n%b\r\n" % (len(digest), digest)
        self._shard_at = len(head) + key.index(b"}") - 1
        self._digits_at = len(head) + key.index(b"}") + 2
        self._digit_shifts = np.arange(4 * names.digits - 4, -1, -4)
        self._shard_shift = names.bucket_bits - 4

    def shards(self, buckets: NDArray[np.int64]) -> NDArray[np.int64]:
        """Shard of each of the ``buckets`` (int64 [n])."""
        return buckets >> self._shard_shift

    def packed(self, buckets: NDArray[np.int64], fields: NDArray[np.uint8]) -> bytes:
        """One call that asks ``buckets`` (int64 [n]) for ``fields`` (uint8 [n, FIELD_BYTES])."""
        size = len(buckets)
        keys = np.tile(self._key, (size, 1))
        keys[:, self._shard_at] = _HEX[self.shards(buckets)]
        digits = (buckets[:, None] >> self._digit_shifts) & 15
        keys[:, self._digits_at : self._digits_at + len(self._digit_shifts)] = _HEX[digits]
        arguments = np.tile(self._field, (size, 1))
        arguments[:, -FIELD_BYTES - 2 : -2] = fields
        count = b"%d" % size
        head = b"*%d\r\n%b$%d\r\n%b\r\n" % (3 + 2 * size, self._call, len(count), count)
        return head + keys.tobytes() + arguments.tobytes()
