"""Writes in the background what was learned, so that no step waits for it."""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable

from datastore.breaker import Breaker
from datastore.counters import Counters
from datastore.store import Ints, NgramStore

_log = logging.getLogger(__name__)


class BackgroundWriter:
    """One thread that writes runs in batches; what does not fit its queue, or fails, is dropped and counted.

    queue_tokens  tokens that may wait
    batch_tokens  written at once, about
    linger_s      seconds to wait for more before a batch that is not full is written
    """

    def __init__(
        self,
        store: NgramStore,
        counters: Counters,
        breaker: Breaker,
        *,
        queue_tokens: int = 1 << 20,
        batch_tokens: int = 1 << 15,
        linger_s: float = 0.2,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.breaker = breaker
        self._store = store
        self._counters = counters
        self._queue_tokens = queue_tokens
        self._batch_tokens = batch_tokens
        self._linger_s = linger_s
        self._clock = clock
        self._runs: deque[Ints] = deque()
        self._queued = 0
        self._writing = False
        self._closed = False
        self._urgent = False
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._work, name="datastore-writer", daemon=True)
        self._thread.start()

    @property
    def queued(self) -> int:
        """Tokens that wait."""
        return self._queued

    def put(self, run: Ints) -> None:
        """Queue a run (int32 [m], copied); never waits."""
        with self._changed:
            if self._closed or self._queued + len(run) > self._queue_tokens:
                self._counters.add("dropped", len(run))
                return
            self._runs.append(run.copy())
            self._queued += len(run)
            self._changed.notify_all()

    def flush(self, timeout_s: float) -> bool:
        """Write all that waits, now; whether that was done within ``timeout_s`` seconds."""
        with self._changed:
            self._urgent = True
            self._changed.notify_all()
            done = self._changed.wait_for(lambda: not self._runs and not self._writing, timeout_s)
            self._urgent = False
            return done

    def close(self, timeout_s: float) -> None:
        """Write what waits, for ``timeout_s`` seconds at most, and end."""
        self.flush(timeout_s)
        with self._changed:
            self._closed = True
            self._counters.add("dropped", self._queued)
            self._runs.clear()
            self._queued = 0
            self._changed.notify_all()
        self._thread.join(timeout_s)

    def _work(self) -> None:
        while (batch := self._next()) is not None:
            self._write(batch)
            with self._changed:
                self._writing = False
                self._changed.notify_all()

    def _next(self) -> list[Ints] | None:
        """The next batch, None at the end."""
        with self._changed:
            self._changed.wait_for(lambda: self._runs or self._closed)
            self._changed.wait_for(self._is_due, self._linger_s)
            if self._closed:
                return None
            batch: list[Ints] = []
            size = 0
            while self._runs and size < self._batch_tokens:
                run = self._runs.popleft()
                batch.append(run)
                size += len(run)
            self._queued -= size
            self._writing = True
            return batch

    def _is_due(self) -> bool:
        return self._queued >= self._batch_tokens or self._urgent or self._closed

    def _write(self, batch: list[Ints]) -> None:
        size = sum(map(len, batch))
        if not self.breaker.allow():
            self._counters.add("dropped", size)
            return
        try:
            self._store.learn(batch)
        except Exception as error:  # whatever it is, it must not end this thread
            self.breaker.failed()
            self._counters.write_fail(error, size)
            _log.debug("a write to the store failed", exc_info=True)
        else:
            self.breaker.succeeded()
            self._counters.add("learned", size)
