"""What the store costs: lookups, alone and while others write; ingest; memory; each beside the plain layout.

The text is made up: tokens of a Zipf distribution, with passages that come again as in real text. ``measure`` is what
``python -m datastore bench`` prints.
"""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
import redis

from datastore.connect import open_store
from datastore.keys import KeyNames, checked
from datastore.levels import LEVELS
from datastore.limits import Limits
from datastore.plain import PlainLayout
from datastore.store import Ints, NgramStore

Learn = Callable[[Ints], object]

FINGERPRINT = "be4c"
VOCABULARY = 49_152
REQUESTS = 32
CONTEXT_TOKENS = 16
WRITER_TOKENS_PER_S = 10_000
"""Of the process that writes what was generated while lookups are timed: twenty replicas of 500 tokens a second."""


def corpus(tokens: int, seed: int) -> Ints:
    """int32 [tokens]: half of it fresh, half repeated from what came before, in passages of 20 to 200 tokens."""
    chance = np.random.default_rng(seed)
    fresh = (chance.zipf(1.2, tokens) - 1) % VOCABULARY
    text = fresh.astype(np.int32)
    at = 1000
    while at < tokens:
        length = int(chance.integers(20, 200))
        if chance.random() < 0.5:
            start = int(chance.integers(0, at - 200)) if at > 200 else 0
            length = min(length, tokens - at, at - start)
            text[at : at + length] = text[start : start + length]
        at += length
    return text


def measure(
    url: str, *, tokens: int = 1_000_000, lookups: int = 2000, plain_tokens: int = 100_000, namespace: str = "bench"
) -> dict[str, Any]:
    """Figures of the server at ``url``, for JSON; its namespace ``namespace`` is purged before and behind.

    ``plain_tokens`` are stored in the plain layout, which takes too much to store all.

    Raises:
        StoreConfigError, StoreUnavailableError: as of any store.
    """
    names = checked(namespace, FINGERPRINT, Limits().bucket_bits)
    store = open_store(url, namespace=namespace, fingerprint=FINGERPRINT)
    text = corpus(tokens, 0)
    try:
        store.purge()
        open_store("memory://", namespace=namespace, fingerprint=FINGERPRINT).learn([text[:100]])  # compiles
        ingest_s = _timed(lambda: store.learn([text]))
        stats = store.stats()
        quiet = _lookup_ms(store, text, lookups)
        writer = partial(_store_writer, url, namespace)
        paced = _while_writing(writer, WRITER_TOKENS_PER_S, lambda: _lookup_ms(store, text, lookups))
        busy = _while_writing(writer, None, lambda: _lookup_ms(store, text, lookups))
        return {
            "tokens": tokens,
            "requests": REQUESTS,
            "contexts_per_lookup": REQUESTS * len(LEVELS),
            "lookup_ms": _quantiles(quiet),
            "writer_tokens_per_s": WRITER_TOKENS_PER_S,
            "lookup_ms_while_writing": _quantiles(paced),
            "lookup_ms_while_ingesting": _quantiles(busy),
            "ingest_tokens_per_s": round(tokens / ingest_s),
            "contexts_per_token": round(stats.contexts / tokens, 3),
            "memory_bytes_per_token": round(stats.memory_bytes / tokens, 1),
            "plain": _plain(url, names, text[:plain_tokens], lookups),
        }
    finally:
        store.purge()
        store.close()


def _plain(url: str, names: KeyNames, text: Ints, lookups: int) -> dict[str, Any]:
    """The same figures of one sorted set a context; only where one server holds everything."""
    if not url.startswith(("redis://", "rediss://", "valkey://", "valkeys://")):
        return {}
    with _client(url) as client:
        layout = PlainLayout(client, names)
        layout.purge()
        before = _used_memory(client)
        ingest_s = _timed(lambda: layout.learn(text))
        memory = _used_memory(client) - before
        times = _times_ms(layout.lookup, text, lookups)
        writer = partial(_plain_writer, url, names)
        paced = _while_writing(writer, WRITER_TOKENS_PER_S, lambda: _times_ms(layout.lookup, text, lookups))
        layout.purge()
    return {
        "tokens": len(text),
        "lookup_ms": _quantiles(times),
        "lookup_ms_while_writing": _quantiles(paced),
        "ingest_tokens_per_s": round(len(text) / ingest_s),
        "memory_bytes_per_token": round(memory / len(text), 1),
    }


def _client(url: str) -> Any:
    return redis.Redis.from_url(url.replace("valkey", "redis", 1))


def _used_memory(client: Any) -> int:
    return int(client.info("memory")["used_memory"])


def _timed(work: Callable[[], object]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def _lookup_ms(store: NgramStore, text: Ints, lookups: int) -> list[float]:
    return _times_ms(lambda contexts: store.lookup(contexts, 5.0), text, lookups)


def _times_ms(lookup: Callable[[Sequence[Ints]], object], text: Ints, lookups: int) -> list[float]:
    """Time of each lookup of contexts out of ``text`` and, for every other one, out of a text not seen before."""
    chance = np.random.default_rng(1)
    unseen = corpus(len(text), 2)
    times = []
    for _ in range(lookups):
        ends = chance.integers(CONTEXT_TOKENS, len(text), REQUESTS)
        contexts = [(unseen if i % 2 else text)[end - CONTEXT_TOKENS : end] for i, end in enumerate(ends)]
        times.append(1000 * _timed(partial(lookup, contexts)))
    return times[len(times) // 20 :]


def _quantiles(times: list[float]) -> dict[str, float]:
    return {name: round(float(np.quantile(times, q)), 3) for name, q in (("p50", 0.5), ("p90", 0.9), ("p99", 0.99))}


def _while_writing(writer: Callable[[], Learn], rate: float | None, work: Callable[[], list[float]]) -> list[float]:
    """``work``'s result; meanwhile a process learns ``rate`` tokens a second, or as fast as it can.

    ``writer`` is called there.
    """
    context = multiprocessing.get_context("spawn")
    ready, stop = context.Event(), context.Event()
    process = context.Process(target=_write_on, args=(writer, rate, ready, stop), daemon=True)
    process.start()
    try:
        ready.wait(60)
        return work()
    finally:
        stop.set()
        process.join(60)


def _store_writer(url: str, namespace: str) -> Learn:
    store = open_store(url, namespace=namespace, fingerprint=FINGERPRINT)
    return lambda text: store.learn([text])


def _plain_writer(url: str, names: KeyNames) -> Learn:
    return PlainLayout(_client(url), names).learn


def _write_on(writer: Callable[[], Learn], rate: float | None, ready: Any, stop: Any) -> None:
    learn = writer()
    text = corpus(1_000_000, 3)
    size = int(rate / 10) if rate else 1 << 16
    start = 0
    while not stop.is_set():
        elapsed = _timed(partial(learn, text[start : start + size]))
        ready.set()
        if rate:
            stop.wait(max(0.0, size / rate - elapsed))
        start = (start + size) % (len(text) - size)
