"""How long one verifying step takes, by its tokens and its requests.

    python bench/step_times.py [--model demo] [--cached 300] [--passes 15] [--sizes 1x1,16x1,22x1,...]

A size TOKENSxREQUESTS is a step over so many tokens, shared equally by so many requests, each a binary tree behind
``--cached`` tokens. The sizes take turns, so that a machine whose speed drifts is the same for all; medians count.
``forward_ms`` is the forward alone; ``step_ms`` with the most likely tokens of each row. The last line is one JSON
object.
"""

from __future__ import annotations

import argparse
import json
import time

import numpy as np
import torch

from racer.config import EngineConfig
from racer.model.attention import ATTENTION
from racer.model.layout import Segment
from racer.model.loader import load
from racer.model.runner import ModelRunner
from racer.model.topk import top_k

SIZES = "1x1,16x1,22x1,32x1,64x1,16x16,48x16"


def segments(tokens: int, requests: int, cached: int, vocab: int) -> list[Segment]:
    """Binary trees of random tokens, ``tokens`` in all, each behind ``cached`` tokens of its own."""
    rng = np.random.default_rng(0)
    made, start = [], 0
    for request in range(requests):
        nodes = tokens // requests + (request < tokens % requests)
        parents = (np.arange(nodes, dtype=np.int32) - 1) // 2
        made.append(Segment(rng.integers(0, vocab, nodes).astype(np.int32), parents, start, cached=cached))
        start += cached + nodes
    return made


def main() -> None:
    """Measure all sizes."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="demo", help="as the engine's (default demo)")
    parser.add_argument("--cached", type=int, default=300, help="tokens before each request's tree (default 300)")
    parser.add_argument("--passes", type=int, default=15, help="steps measured of each size (default 15)")
    parser.add_argument("--sizes", default=SIZES, help=f"TOKENSxREQUESTS, comma-separated (default {SIZES})")
    arguments = parser.parse_args()
    sizes = [tuple(map(int, size.split("x"))) for size in arguments.sizes.split(",")]
    config = EngineConfig(model=arguments.model)
    loaded = load(config, ATTENTION)
    runner = ModelRunner(loaded.model, compile=config.compile)
    places = max(requests * arguments.cached + tokens for tokens, requests in sizes)
    for start in range(0, places, arguments.cached or places):  # so that what attention reads has been written
        tokens = min(arguments.cached or places, places - start)
        runner.run([Segment(np.arange(tokens, dtype=np.int32), np.arange(-1, tokens - 1, dtype=np.int32), start, 0)])
    steps = {size: segments(*size, arguments.cached, runner.vocab_size) for size in sizes}
    times: dict[tuple[int, ...], list[tuple[float, float]]] = {size: [] for size in sizes}
    for turn in range(arguments.passes + 1):
        for size, step in steps.items():
            started = time.perf_counter()
            logits = runner.run(step)
            forward = time.perf_counter()
            top_k(logits, config.top_k)
            if turn:  # the first one is slow
                times[size].append((forward - started, time.perf_counter() - started))
    report = []
    for (tokens, requests), measured in times.items():
        forward_ms, step_ms = np.median(np.array(measured) * 1e3, axis=0).round(2).tolist()
        print(f"{tokens:5} tokens of {requests:3} requests: forward {forward_ms:8.2f} ms, step {step_ms:8.2f} ms")
        report.append({"tokens": tokens, "requests": requests, "forward_ms": forward_ms, "step_ms": step_ms})
    print(json.dumps({"cached": arguments.cached, "threads": torch.get_num_threads(), "rows": report}))


if __name__ == "__main__":
    main()
