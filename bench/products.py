"""How long all products of a step take, by the rows it has: the packed weights of a model's shape, one after the other.

    python bench/products.py [--rows 1,16,32,33,64,96,128] [--passes 12]

The shapes are the demo model's: 30 layers of four matrices, and the head; random weights. Sizes take turns; medians,
milliseconds. Exit code 1 where the processor has neither AMX nor AVX2. The last line is one JSON object.
"""

from __future__ import annotations

import argparse
import json
import sys
import time

import numpy as np
import torch
from torch import Tensor

from racer.model.native import LargePages, load_kernels

LAYERS = 30
SHAPES = ((960, 576), (576, 576), (3072, 576), (576, 1536))
HEAD = (49_152, 576)


def packed(outputs: int, inputs: int, memory: LargePages) -> Tensor:
    """A random weight as the engine keeps it."""
    weight: Tensor = torch.ops.racer.pack_weight(torch.randn(outputs, inputs).bfloat16())
    return memory.copy(weight)


def main() -> int:
    """Measure all sizes."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", default="1,16,32,33,64,96,128", help="comma-separated (default 1,16,32,33,64,96,128)")
    parser.add_argument("--passes", type=int, default=12, help="measured of each size (default 12)")
    arguments = parser.parse_args()
    if not load_kernels():
        print("this processor has neither AMX nor AVX2", file=sys.stderr)
        return 1
    memory = LargePages()
    layers = [packed(*shape, memory) for _ in range(LAYERS) for shape in SHAPES]
    head, product = packed(*HEAD, memory), torch.ops.racer.block_linear
    sizes = [int(rows) for rows in arguments.rows.split(",")]
    times: dict[int, list[tuple[float, float]]] = {rows: [] for rows in sizes}
    for _ in range(arguments.passes):
        for rows in sizes:
            inputs = [torch.randn(rows, width).bfloat16() for _, width in SHAPES]
            started = time.perf_counter()
            for i, weight in enumerate(layers):
                product(inputs[i % len(SHAPES)], weight, None)
            between = time.perf_counter()
            product(inputs[0], head, None)
            times[rows].append((between - started, time.perf_counter() - between))
    report = []
    for rows, measured in times.items():
        layers_ms, head_ms = np.median(np.array(measured) * 1e3, axis=0).round(2).tolist()
        print(f"{rows:5} rows: layers {layers_ms:6.2f} ms, head {head_ms:5.2f} ms")
        report.append({"rows": rows, "layers_ms": layers_ms, "head_ms": head_ms})
    print(json.dumps({"threads": torch.get_num_threads(), "rows": report}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
