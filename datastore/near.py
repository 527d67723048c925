"""Answers kept close by for a short while."""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Callable

from datastore.store import Continuation


class NearCache:
    """The most recently used answers, ``size`` at most, each for ``ttl_s`` seconds at most; 0 of either: none.

    That nothing is known is an answer too. ``clock`` gives seconds.
    """

    def __init__(self, size: int, ttl_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._size = size if ttl_s > 0 else 0
        self._ttl_s = ttl_s
        self._clock = clock
        self._held: OrderedDict[bytes, tuple[float, list[Continuation]]] = OrderedDict()
        self._lock = threading.Lock()

    def __len__(self) -> int:
        """Answers held, old ones included."""
        return len(self._held)

    def get(self, key: bytes) -> list[Continuation] | None:
        """The answer, or None if there is none fresh enough."""
        with self._lock:
            held = self._held.get(key)
            if held is None:
                return None
            if self._clock() - held[0] >= self._ttl_s:
                del self._held[key]
                return None
            self._held.move_to_end(key)
            return held[1]

    def clear(self) -> None:
        """Forget all answers."""
        with self._lock:
            self._held.clear()

    def put(self, key: bytes, answer: list[Continuation]) -> None:
        """Keep an answer; the least recently used makes room."""
        if self._size == 0:
            return
        with self._lock:
            self._held[key] = (self._clock(), answer)
            self._held.move_to_end(key)
            if len(self._held) > self._size:
                self._held.popitem(last=False)
