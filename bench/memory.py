"""What an engine keeps resident: weights, key-value cache, and the rest.

    python bench/memory.py [--model demo] [--cache-bytes N] [--requests 32]

The cache is filled to its cap with prompts, then answers are decoded with drafts; ``resident`` is what the process
holds then, ``peak`` the most that it ever held (loading included). ``rest`` is resident less weights and cache. Bytes;
the last line is one JSON object.
"""

from __future__ import annotations

import argparse
import json
import re
from pathlib import Path

import numpy as np
import torch

from racer import Engine, EngineConfig, Request, SamplingParams


def resident() -> dict[str, int]:
    """Bytes of this process: what it holds now, of that what is its own, and the peak."""
    status = dict(re.findall(r"^(VmRSS|RssAnon|VmHWM):\s+(\d+) kB", Path("/proc/self/status").read_text(), re.M))
    names = {"VmRSS": "resident", "RssAnon": "private", "VmHWM": "peak"}
    return {name: int(status[key]) * 1024 for key, name in names.items()}


def main() -> None:
    """Fill the cache, decode, and tell."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="demo", help="as the engine's (default demo)")
    parser.add_argument("--cache-bytes", type=int, default=1 << 30, help="cap of the cache (default 1 GiB)")
    parser.add_argument("--requests", type=int, default=32, help="requests that share the cache (default 32)")
    arguments = parser.parse_args()
    report: dict[str, int] = {"imports": resident()["resident"]}
    engine = Engine(EngineConfig(model=arguments.model, cache_bytes=arguments.cache_bytes))
    engine.drafter.warm_up()
    report["loaded"] = resident()["resident"]
    rng = np.random.default_rng(0)
    share = engine.runner.pool.places // arguments.requests
    length = min(share, engine.context_length) - 64
    params = SamplingParams(max_tokens=48, ignore_eos=True)
    prompts = [rng.integers(0, engine.runner.vocab_size, length).tolist() for _ in range(arguments.requests)]
    for _ in engine.generate([Request(tuple(prompt), params) for prompt in prompts]):
        pass
    model = engine.loaded.model
    kept = {tensor.data_ptr(): tensor.nbytes for tensor in (*model.parameters(), *model.buffers())}
    report |= resident()
    report["weights"] = sum(kept.values())
    report["cache"] = arguments.cache_bytes
    report["rest"] = report["resident"] - report["weights"] - report["cache"]
    report["filled_tokens"] = arguments.requests * (length + 48)
    report["threads"] = torch.get_num_threads()
    for name, value in report.items():
        print(f"{name:14} {value / 1e6:10.1f} MB" if value > 1e6 else f"{name:14} {value:10}")
    print(json.dumps(report))


if __name__ == "__main__":
    main()
