"""How long attention takes in all layers of a step, by its nodes and its requests.

    python bench/attention.py [--cached 300] [--passes 60] [--sizes 1x1,16x1,...]

A size NODESxREQUESTS is a binary tree of so many nodes for each of so many requests behind ``--cached`` tokens. Heads
are the demo model's (9, of which three share keys and values; 64 elements), and so are its 30 layers, though all read
the same cache here; random numbers. Sizes take turns; medians, milliseconds. Exit code 1 where the processor has
neither AMX nor AVX2. The last line is one JSON object.
"""

from __future__ import annotations

import argparse
import json
import sys
import time

import numpy as np
import torch

from racer.cache.pool import KVPool, LayerShape
from racer.model.layout import Segment, StepLayout
from racer.model.native import load_kernels

LAYERS, HEADS, KV_HEADS, DIM = 30, 9, 3, 64
SIZES = "1x1,16x1,32x1,64x1,1x16,4x16"


def main() -> int:
    """Measure all sizes."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--cached", type=int, default=300, help="tokens before each request's tree (default 300)")
    parser.add_argument("--passes", type=int, default=60, help="measured of each size (default 60)")
    parser.add_argument("--sizes", default=SIZES, help=f"NODESxREQUESTS, comma-separated (default {SIZES})")
    arguments = parser.parse_args()
    if not load_kernels():
        print("this processor has neither AMX nor AVX2", file=sys.stderr)
        return 1
    sizes = [tuple(map(int, size.split("x"))) for size in arguments.sizes.split(",")]
    places = max(requests * (arguments.cached + nodes) for nodes, requests in sizes)
    pool = KVPool([LayerShape(KV_HEADS, DIM, DIM)], places, torch.bfloat16, "cpu")
    keys, values = pool.keys[0].normal_(), pool.values[0].normal_()
    steps = {}
    for nodes, requests in sizes:
        parents = (np.arange(nodes, dtype=np.int32) - 1) // 2
        starts = range(0, requests * (arguments.cached + nodes), arguments.cached + nodes)
        segments = [Segment(np.zeros(nodes, np.int32), parents, start, arguments.cached) for start in starts]
        layout = StepLayout(segments, pool, torch.bfloat16, torch.device("cpu"), by_kernels=True)
        assert layout.for_kernels is not None
        new = [torch.randn(heads, nodes * requests, DIM).bfloat16() for heads in (HEADS, KV_HEADS, KV_HEADS)]
        steps[nodes, requests] = (*new, keys, values, layout.places, *layout.for_kernels, DIM**-0.5, 0)
    times: dict[tuple[int, int], list[float]] = {size: [] for size in steps}
    for _ in range(arguments.passes):
        for size, step in steps.items():
            started = time.perf_counter()
            torch.ops.racer.block_attend(*step)
            times[size].append(time.perf_counter() - started)
    report = []
    for (nodes, requests), measured in times.items():
        milliseconds = round(LAYERS * 1e3 * float(np.median(measured)), 2)
        print(f"{nodes:5} nodes of {requests:3} requests: {milliseconds:7.2f} ms")
        report.append({"nodes": nodes, "requests": requests, "layers_ms": milliseconds})
    print(json.dumps({"cached": arguments.cached, "threads": torch.get_num_threads(), "rows": report}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
