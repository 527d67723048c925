"""What every store of n-grams offers, in Redis or in memory."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int32]


class Continuation(NamedTuple):
    """Tokens that followed a context.

    tokens   what came next, in order
    count    how often, lately: counts fade
    matched  newest tokens of the asked context that the learned text shares
    """

    tokens: tuple[int, ...]
    count: int  # type: ignore[assignment]  # the field hides tuple.count, which nobody needs here
    matched: int


@dataclass(frozen=True, slots=True)
class StoreStats:
    """What a namespace holds.

    namespace, fingerprint, schema  what its keys carry
    buckets         hashes the contexts are spread over, at most
    contexts        contexts held, of all lengths
    memory_bytes    bytes the server spends on them (an estimate from a sample of the keys)
    tokens_learned  tokens taken in since the namespace was made, or since the server forgot
    evicted_keys    keys that the whole server, all namespaces, has evicted to stay below its memory cap
    """

    namespace: str
    fingerprint: str
    schema: int
    buckets: int
    contexts: int
    memory_bytes: int
    tokens_learned: int
    evicted_keys: int


class NgramStore(Protocol):
    """Continuations of token contexts, learned from text: a cache whose loss costs speed only.

    One store reads and writes one namespace of one tokenizer. Methods may be called from several threads.
    """

    @property
    def reach(self) -> int:
        """Newest tokens of a context that decide what :meth:`lookup` finds; older ones are not looked at."""
        ...

    def lookup(self, contexts: Sequence[Ints], deadline_s: float) -> list[list[Continuation]]:
        """Continuations of the longest known suffix of each context (int32 [m], oldest token first).

        One list a context, in order, most frequent first; empty where nothing is known. One round trip for all.

        Raises:
            StoreTimeoutError: no answer within ``deadline_s`` seconds.
            StoreUnavailableError: the server cannot be reached or refuses.
        """
        ...

    def learn(self, runs: Sequence[Ints], weight: int = 1) -> None:
        """Take in runs of text (each int32 [m]), each counted ``weight`` times; returns when they are written.

        Raises:
            StoreUnavailableError: the server cannot be reached or refuses; part of the runs may have been written.
        """
        ...

    def read_marks(self) -> dict[str, str]:
        """The notes that :meth:`write_marks` has left, by name."""
        ...

    def write_marks(self, marks: Mapping[str, str]) -> None:
        """Leave notes with the namespace, all of them or none: how far each file was learned. A purge removes them."""
        ...

    def stats(self) -> StoreStats:
        """What the namespace holds. Walks all of its keys, in small steps."""
        ...

    def purge(self) -> int:
        """Remove all that this namespace holds, of every tokenizer and schema; returns the number of keys removed."""
        ...

    def dump(self) -> Iterator[bytes]:
        """Records that :meth:`load` takes, of a store with as many buckets. While others write, it is no snapshot."""
        ...

    def load(self, records: Iterable[bytes]) -> None:
        """Merge the records of a :meth:`dump` into what is held.

        Raises:
            StoreDataError: a record is not one of this schema; those before it have been merged.
        """
        ...

    def close(self) -> None:
        """Give back connections. Calling it again does nothing."""
        ...
