"""What an engine asks: a store behind a deadline, a breaker, a near cache and a writer. Nothing here raises."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import TimeoutError as FutureTimeoutError
from dataclasses import dataclass
from typing import Literal

from datastore.breaker import Breaker
from datastore.counters import ClientStats, Counters
from datastore.near import NearCache
from datastore.store import Continuation, Ints, NgramStore
from datastore.writer import BackgroundWriter

_log = logging.getLogger(__name__)

Answers = list[list[Continuation]]


@dataclass(frozen=True, slots=True)
class ClientConfig:
    """Settings of a :class:`StoreClient`.

    learn           what of a finished request is written: prompt and answer, the answer alone, or nothing
    answer_s        seconds that a question may take before its connection is given up; the caller left at its deadline
    askers          questions under way at once, late ones included
    near_size, near_ttl_s     answers of the near cache, and the age in seconds at which one is asked for anew
    breaker_failures, breaker_wait_s, breaker_max_wait_s    see :class:`datastore.breaker.Breaker`
    queue_tokens, batch_tokens, linger_s    see :class:`datastore.writer.BackgroundWriter`
    """

    learn: Literal["all", "answers", "none"] = "all"
    answer_s: float = 0.25
    askers: int = 2
    near_size: int = 4096
    near_ttl_s: float = 2.0
    breaker_failures: int = 5
    breaker_wait_s: float = 1.0
    breaker_max_wait_s: float = 15.0
    queue_tokens: int = 1 << 20
    batch_tokens: int = 1 << 15
    linger_s: float = 0.2


class StoreClient:
    """A source of n-grams for an engine. Its methods never raise; :meth:`lookup` keeps its deadline whatever happens.

    The store is asked by threads of the client's own: a caller leaves at its deadline, whether the server, the network,
    a name server or a handshake is what is slow.
    """

    def __init__(
        self, store: NgramStore, config: ClientConfig | None = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        config = config or ClientConfig()
        self._store = store
        self._config = config
        self._counters = Counters()
        self._near = NearCache(config.near_size, config.near_ttl_s, clock)
        self._breaker = self._new_breaker(clock, "lookups in the n-gram store")
        self._idle = threading.BoundedSemaphore(config.askers)
        self._askers = ThreadPoolExecutor(config.askers, thread_name_prefix="datastore-lookup")
        self._writer = BackgroundWriter(
            store,
            self._counters,
            self._new_breaker(clock, "writes to the n-gram store"),
            queue_tokens=config.queue_tokens,
            batch_tokens=config.batch_tokens,
            linger_s=config.linger_s,
        )
        self._closed = False

    def _new_breaker(self, clock: Callable[[], float], name: str) -> Breaker:
        config = self._config
        return Breaker(config.breaker_failures, config.breaker_wait_s, config.breaker_max_wait_s, clock, name)

    def lookup(self, contexts: Sequence[Ints], deadline_ms: float) -> Answers:
        """Continuations of the longest known suffix of each context (int32 [m], oldest token first).

        One list a context, in order; empty where nothing is known, or nothing came within ``deadline_ms`` milliseconds.
        """
        end = time.monotonic() + deadline_ms / 1000
        self._counters.add("lookups", len(contexts))
        keys = [context[-self._store.reach :].tobytes() for context in contexts]
        answers = [self._near.get(key) for key in keys]
        missing = [i for i, answer in enumerate(answers) if answer is None]
        self._counters.add("near_hits", len(contexts) - len(missing))
        if missing:
            found = self._ask([keys[i] for i in missing], [contexts[i] for i in missing], end)
            for i, answer in zip(missing, found, strict=True):
                answers[i] = answer
        self._counters.hit([answer[0].matched for answer in answers if answer])
        return [answer or [] for answer in answers]

    def _ask(self, keys: Sequence[bytes], contexts: Sequence[Ints], end: float) -> Answers:
        nothing: Answers = [[] for _ in contexts]
        if self._closed or not self._breaker.allow():
            self._counters.add("refused", len(contexts))
            return nothing
        if not self._idle.acquire(blocking=False):  # those before are late already
            self._breaker.failed()
            self._counters.add("late", len(contexts))
            return nothing
        question = _Question()
        asked = [context.copy() for context in contexts]  # the caller may go on and change its own
        future: Future[Answers | None] = self._askers.submit(self._answer, question, keys, asked)
        try:
            found = future.result(max(0.0, end - time.monotonic()))
        except FutureTimeoutError:
            found = None
            if question.give_up():
                self._breaker.failed()
                self._counters.add("late", len(contexts))
            else:  # it came to an end just now
                found = future.result()
        return nothing if found is None else found

    def _answer(self, question: _Question, keys: Sequence[bytes], contexts: Sequence[Ints]) -> Answers | None:
        """In a thread of ours. An answer that comes too late still goes into the near cache."""
        start = time.monotonic()
        found: Answers | None = None
        try:
            found = self._store.lookup(contexts, self._config.answer_s)
        except Exception as error:  # whatever it is, a step goes on without
            if question.end():
                self._breaker.failed()
                self._counters.fail(error, len(contexts))
            _log.debug("a lookup in the store failed", exc_info=True)
        else:
            self._counters.time((time.monotonic() - start) * 1000)
            for key, answer in zip(keys, found, strict=True):
                self._near.put(key, answer)
            if question.end():
                self._breaker.succeeded()
                self._counters.add("misses", sum(not answer for answer in found))
        finally:
            self._idle.release()
        return found

    def learn(self, tokens: Ints, prompt_tokens: int = 0) -> None:
        """Take in a run of decided text (int32 [m]), in the background; dropped and counted when too much waits.

        Its first ``prompt_tokens`` are the prompt: left out, contexts that reach into it too, unless ``config.learn``
        is "all".
        """
        if self._config.learn != "none":
            self._writer.put(tokens if self._config.learn == "all" else tokens[prompt_tokens:])

    def flush(self, timeout_s: float = 5.0) -> bool:
        """Write all that was learned; whether that was done within ``timeout_s`` seconds. Later lookups see it."""
        done = self._writer.flush(timeout_s)
        self._near.clear()
        return done

    def stats(self) -> ClientStats:
        """What was counted since the client was made."""
        return self._counters.snapshot(
            self._writer.queued, self._breaker.state, self._writer.breaker.state, self._breaker.opened
        )

    def close(self, timeout_s: float = 2.0) -> None:
        """Write what waits, for ``timeout_s`` seconds at most, and close the store."""
        if self._closed:
            return
        self._closed = True
        self._writer.close(timeout_s)
        self._askers.shutdown(wait=True, cancel_futures=True)
        self._store.close()


class _Question:
    """Decides once whether a question ended or its caller left first, so that it is counted as one of the two."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._decided = False

    def _decide(self) -> bool:
        with self._lock:
            first, self._decided = not self._decided, True
            return first

    end = give_up = _decide
