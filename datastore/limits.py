"""Bounds of a store and of its waits."""

from __future__ import annotations

from dataclasses import dataclass

from datastore.errors import StoreConfigError

BUCKET_FIELDS = 128
"""Contexts of a bucket, at most. A hash with more leaves Redis' compact encoding (hash-max-listpack-entries)."""


@dataclass(frozen=True, slots=True)
class Limits:
    """How much a namespace may hold, and how long its server may take.

    contexts         contexts of a namespace at most; the next power of two counts. Full buckets drop what was seen once
                     and is oldest. All who share a namespace must agree: another number is another set of keys
    connections      connections to a server at most, of one store
    pool_wait_s      seconds to wait for one of them to become free
    connect_s        seconds to connect, at most
    write_s          seconds that a write, or a question other than a lookup, may take
    """

    contexts: int = 1 << 23
    connections: int = 8
    pool_wait_s: float = 0.05
    connect_s: float = 0.5
    write_s: float = 5.0

    def __post_init__(self) -> None:
        if not 1 << 11 <= self.contexts <= 1 << 31:
            raise StoreConfigError(f"contexts is {self.contexts}; a namespace holds 2048 to 2147483648 contexts")
        for name in ("connections", "pool_wait_s", "connect_s", "write_s"):
            if getattr(self, name) <= 0:
                raise StoreConfigError(f"{name} is {getattr(self, name)}; it must be more than 0")

    @property
    def bucket_bits(self) -> int:
        """Binary logarithm of the number of buckets."""
        return (self.contexts // BUCKET_FIELDS - 1).bit_length()
