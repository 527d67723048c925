"""Whether memory levels off while very many different requests are answered: the process's, and its Redis server's.

    python bench/many_requests.py [--requests 50000] [--redis-mb 16] [--model FOLDER]

Without ``--model`` a tiny random one, made for the run: what grows with the number of requests is the same around every
model. Each request is a prompt of random bytes, decoded with all drafters, looked up in the store and taught to it. A
line for every twentieth of the requests; ``levelled`` says whether the second half added less than ``ROOM`` to the
process, and whether the server, which can hold a part of it only, stayed below its cap. Exit code 1 if not. The last
line is one JSON object.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import redis

sys.path.insert(0, str(Path(__file__).parents[1]))

from datastore.embedded import EmbeddedServer
from datastore.source import open_source
from racer import Engine, EngineConfig, Request, SamplingParams
from racer.model.attention import ATTENTION
from racer.model.loader import load
from tests.racer.engine.helpers import loaded
from tests.tiny import tiny_model

ROOM = 16 << 20
"""Bytes that the process may grow by in the second half: what an allocator has not given back, not what is kept."""

SHAPE = {"hidden_size": 32, "intermediate_size": 64, "num_attention_heads": 2, "num_key_value_heads": 2}
SERVER_ROOM = 1 << 20
"""Bytes above its cap that a server may hold for a moment, before it evicts."""


def main() -> int:
    """Answer all requests, and tell."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--requests", type=int, default=50_000, help="how many, all different (default 50000)")
    parser.add_argument("--redis-mb", type=int, default=16, help="memory cap of the server (default 16)")
    parser.add_argument("--model", help="as the engine's (default: a tiny one, made for the run)")
    arguments = parser.parse_args()
    cap = arguments.redis_mb << 20
    with ExitStack() as stack:
        server = stack.enter_context(EmbeddedServer(cap))
        watch: Any = stack.enter_context(redis.Redis.from_url(server.url))
        config = EngineConfig(prior=False, compile=False, cache_bytes=1 << 24, max_running=32, budget=16)
        if arguments.model is None:
            model = loaded(tiny_model("llama", num_hidden_layers=1, **SHAPE))
        else:
            config = config.model_copy(update={"model": arguments.model})
            model = load(config, ATTENTION)
        tokenizer: Any = model.tokenizer
        source = open_source(server.url, namespace="many", tokenizer_json=tokenizer.backend_tokenizer.to_str())
        stack.callback(source.close)
        engine = Engine(config, loaded=model, source=source)
        engine.drafter.warm_up()
        series = list(answer(engine, source, watch, arguments.requests))
    found = verdict(series, cap)
    report = {"requests": arguments.requests, **found, "tokens_dropped": source.stats().dropped, "series": series}
    print(json.dumps(report))
    return 0 if found["levelled"] else 1


def verdict(series: list[dict[str, Any]], cap: int) -> dict[str, Any]:
    """Whether memory levelled off, and the figures that say so. ``cap``: bytes that the server may hold."""
    grown = series[-1]["process_bytes"] - series[len(series) // 2]["process_bytes"]
    most = max(point["redis_bytes"] for point in series)
    levelled = grown <= ROOM and most <= cap + SERVER_ROOM and series[-1]["evicted_keys"] > 0
    return {"levelled": levelled, "process_grown_in_second_half": grown, "redis_cap": cap, "redis_most": most}


def answer(engine: Engine, source: Any, watch: Any, requests: int) -> Any:
    """Decode wave by wave; yields what is held after every twentieth."""
    chance = np.random.default_rng(0)
    params = SamplingParams(max_tokens=8, ignore_eos=True)
    wave = max(1, requests // 20)
    started_s = time.perf_counter()
    print(f"{'requests':>10}{'process MB':>12}{'Redis MB':>10}{'evicted keys':>14}{'seconds':>9}")
    for done in range(wave, requests + 1, wave):
        prompts = chance.integers(0, engine.runner.vocab_size, (wave, 24)).tolist()
        for _ in engine.generate([Request(tuple(prompt), params) for prompt in prompts]):
            pass
        source.flush(30.0)
        point = {
            "requests": done,
            "process_bytes": psutil.Process().memory_info().rss,
            "redis_bytes": watch.info("memory")["used_memory"],
            "evicted_keys": watch.info("stats")["evicted_keys"],
            "elapsed_s": round(time.perf_counter() - started_s, 1),
        }
        yield point
        print(
            f"{done:10,}{point['process_bytes'] / 1e6:12.1f}{point['redis_bytes'] / 1e6:10.1f}"
            f"{point['evicted_keys']:14,}{point['elapsed_s']:9.1f}",
            flush=True,
        )


if __name__ == "__main__":
    sys.exit(main())
