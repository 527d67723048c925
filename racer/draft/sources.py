"""Continuations from outside the request: the protocol a store implements, and one that lives in this process."""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from racer.numba import leaf, njit

POOL_TOKEN, POOL_COUNT, POOL_TOTAL, POOL_FIRST, POOL_NEXT = range(5)
_POOL_COLUMNS = 5
_MAX_POOLED = 64
_MAX_POOLED_LENGTH = 32

Ints = NDArray[np.int32]


@dataclass(frozen=True, slots=True)
class Continuation:
    """Tokens that followed a context elsewhere.

    tokens   what came next, in order
    count    how often
    matched  tokens of the request's tail that the context shares with it
    """

    tokens: tuple[int, ...]
    count: int
    matched: int


class NgramSource(Protocol):
    """A store of n-grams that many requests share. It is a cache: what it returns changes speed, never output.

    Neither method raises. What is missing, late or broken is an empty list, or text not learned.
    """

    def lookup(self, contexts: Sequence[Ints], deadline_ms: float) -> list[list[Continuation]]:
        """Continuations of each context (int32 [m], the newest decided tokens, the root last).

        One list a context, in order, of its longest known suffix. Returns within ``deadline_ms`` milliseconds.
        """
        ...

    def learn(self, tokens: Ints, prompt_tokens: int = 0) -> None:
        """Take in a run of decided text (int32 [m]); may happen later, or not at all.

        Its first ``prompt_tokens`` are the prompt, which a store may have to leave alone.
        """
        ...


class StoreSource(NgramSource, Protocol):
    """An :class:`NgramSource` over a store that someone has to close."""

    def flush(self, timeout_s: float) -> bool:
        """Wait until what was learned so far is in the store; False if that takes longer than ``timeout_s`` seconds."""
        ...

    def counters(self) -> Mapping[str, Any]:
        """What happened so far, by name; values that JSON can hold."""
        ...

    def close(self) -> None:
        """Write what is learned, for a bounded time, and give back connections. Does not raise."""
        ...


class MemoryNgramSource:
    """An :class:`NgramSource` in this process: contexts of a few lengths, the least recently used goes first."""

    def __init__(
        self,
        lengths: Sequence[int] = (2, 3, 4),
        *,
        continuation_tokens: int = 8,
        max_contexts: int = 100_000,
        max_continuations: int = 8,
    ) -> None:
        """Keep ``max_continuations`` runs of up to ``continuation_tokens`` tokens for each of ``max_contexts``."""
        self.lengths = tuple(sorted(set(lengths), reverse=True))
        self.continuation_tokens = continuation_tokens
        self.max_contexts = max_contexts
        self.max_continuations = max_continuations
        self._contexts: OrderedDict[tuple[int, ...], dict[tuple[int, ...], int]] = OrderedDict()
        self._lock = threading.Lock()

    def __len__(self) -> int:
        """Contexts held."""
        return len(self._contexts)

    def lookup(self, contexts: Sequence[Ints], deadline_ms: float) -> list[list[Continuation]]:
        """See :class:`NgramSource`; contexts not reached by the deadline are misses."""
        deadline = time.monotonic() + deadline_ms / 1000
        with self._lock:
            return [self._longest(context) if time.monotonic() <= deadline else [] for context in contexts]

    def _longest(self, context: Ints) -> list[Continuation]:
        tail = tuple(context[-self.lengths[0] :].tolist())
        for length in self.lengths:
            key = tail[-length:]
            row = self._contexts.get(key) if len(key) == length else None
            if row:
                self._contexts.move_to_end(key)
                return [Continuation(tokens, count, length) for tokens, count in row.items()]
        return []

    def learn(self, tokens: Ints, prompt_tokens: int = 0) -> None:
        """See :class:`NgramSource`; at once, in this thread, the prompt too."""
        text = tuple(tokens.tolist())
        with self._lock:
            for start in range(1, len(text)):
                continuation = text[start : start + self.continuation_tokens]
                for length in self.lengths:
                    if length <= start:
                        self._count(text[start - length : start], continuation)

    def _count(self, key: tuple[int, ...], continuation: tuple[int, ...]) -> None:
        row = self._contexts.setdefault(key, {})
        self._contexts.move_to_end(key)
        if continuation not in row and len(row) >= self.max_continuations:
            del row[min(row, key=row.__getitem__)]  # min() is the oldest of the rarest: dicts keep their order
        row[continuation] = row.get(continuation, 0) + 1
        if len(self._contexts) > self.max_contexts:
            self._contexts.popitem(last=False)


class PoolView(NamedTuple):
    """Continuations as a prefix tree below the draft root.

    rows     int32 [rows, 5]  token, count, sum of the children's counts, first child, next sibling; row 0 is the root
    matched  length of the context they were found for, in tokens
    trust    part of the share of a match in the request's own text that they get
    """

    rows: Ints
    matched: int
    trust: float


EMPTY_POOL = PoolView(np.zeros((1, _POOL_COLUMNS), np.int32), 0, 1.0)


@leaf
def pool_child(rows: Ints, node: int, token: int) -> int:
    """The child of ``node`` for ``token``, or 0."""
    child = rows[node, POOL_FIRST]
    while child != 0 and rows[child, POOL_TOKEN] != token:
        child = rows[child, POOL_NEXT]
    return int(child)


@njit
def _pool(tokens: Ints, lengths: Ints, counts: Ints) -> Ints:
    rows = np.zeros((len(tokens) + 1, _POOL_COLUMNS), np.int32)
    used, start = 1, 0
    for i in range(len(lengths)):
        node = 0
        for token in tokens[start : start + lengths[i]]:
            child = pool_child(rows, node, token)
            if child == 0:
                child = used
                used += 1
                rows[child, POOL_TOKEN] = token
                rows[child, POOL_NEXT] = rows[node, POOL_FIRST]
                rows[node, POOL_FIRST] = child
            rows[child, POOL_COUNT] += counts[i]
            rows[node, POOL_TOTAL] += counts[i]
            node = child
        start += lengths[i]
    return rows[:used].copy()


def longest_match(continuations: Sequence[Continuation]) -> int:
    """Tokens matched by the longest of those that can be used; 0 without any."""
    return max((one.matched for one in continuations if one.tokens and one.count > 0), default=0)


def pool(continuations: Sequence[Continuation], trust: float = 1.0) -> PoolView:
    """Merge what a store returned for one context. Only the most frequent of the longest matches are used.

    Work and memory are bounded whatever the store returns: 64 continuations of 32 tokens at most.
    """
    if not continuations:
        return EMPTY_POOL
    usable = [one for one in continuations if one.tokens and one.count > 0]
    matched = longest_match(usable)
    best = sorted((one for one in usable if one.matched == matched), key=lambda one: -one.count)[:_MAX_POOLED]
    runs = [one.tokens[:_MAX_POOLED_LENGTH] for one in best]
    return PoolView(
        _pool(
            np.array([token for run in runs for token in run], np.int32),
            np.array([len(run) for run in runs], np.int32),
            np.array([min(one.count, 1 << 20) for one in best], np.int32),
        ),
        matched,
        trust,
    )
