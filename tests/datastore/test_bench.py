from __future__ import annotations

import json

import numpy as np

from datastore.bench import VOCABULARY, corpus, measure
from tests.datastore.servers import Server


def test_the_text_is_the_same_each_time_and_repeats_itself() -> None:
    text = corpus(20_000, 0)
    assert np.array_equal(text, corpus(20_000, 0))
    assert 0 <= text.min() <= text.max() < VOCABULARY
    windows = np.lib.stride_tricks.sliding_window_view(text, 12)
    distinct = len(np.unique(windows, axis=0))
    assert 0.4 * len(windows) < distinct < 0.8 * len(windows)


def test_it_measures_all_it_says_and_leaves_nothing_behind(redis_single: Server, namespace: str) -> None:
    before = redis_single.client().dbsize()
    found = measure(redis_single.url, tokens=5000, lookups=40, plain_tokens=2000, namespace=namespace)
    assert json.loads(json.dumps(found)) == found
    assert (found["requests"], found["contexts_per_lookup"]) == (32, 128)
    for part in (found, found["plain"]):
        assert 0 < part["lookup_ms"]["p50"] <= part["lookup_ms"]["p99"]
        assert part["ingest_tokens_per_s"] > 0
        assert 10 < part["memory_bytes_per_token"] < 2000
        assert part["lookup_ms_while_writing"]["p50"] > 0
    assert found["lookup_ms_while_ingesting"]["p50"] > 0
    assert redis_single.client().dbsize() == before
