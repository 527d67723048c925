"""One short run on a GPU: greedy ids against ``model.generate``, and a step's time by its tokens, eager and by graphs.

    python bench/gpu_check.py [--device cuda] [--layers N]

The model of the timing has the shape of a 7B Llama and random weights (``--layers 2`` for a quick look elsewhere). The
last line is one JSON object; exit status 1 if ids differ, or graphs are not
used on a GPU.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

sys.path.insert(0, str(Path(__file__).parents[1]))

from racer import Engine, EngineConfig, Request, SamplingParams
from racer.model.attention import ATTENTION
from racer.model.layout import Segment
from racer.model.loader import LoadedModel
from racer.model.runner import ModelRunner
from racer.model.topk import top_k
from tests.tiny import byte_tokenizer, tiny_model

FAMILIES = ("llama", "qwen3", "gemma2", "gpt_oss")
TOKENS = (1, 2, 4, 8, 16, 32, 64, 128, 256)
CACHED, PASSES, NEW_TOKENS = 512, 9, 32
SHAPE_7B = {
    "vocab_size": 32000,
    "hidden_size": 4096,
    "intermediate_size": 11008,
    "num_attention_heads": 32,
    "num_key_value_heads": 32,
}


def differing(family: str, device: torch.device) -> dict[str, int | None]:
    """Prompts of a tiny model in float32 whose drafted ids are not ``model.generate``'s, eager and by graphs."""
    model = tiny_model(family).to(device)
    rng = np.random.default_rng(0)
    prompts = [tuple(rng.integers(3, 256, length).tolist()) for length in (5, 14, 40)]
    expected = []
    for prompt in prompts:
        ids = torch.tensor([prompt], device=device)
        row: Any = model.generate(ids, max_new_tokens=NEW_TOKENS, do_sample=False, eos_token_id=None, pad_token_id=0)  # type: ignore[operator]
        expected.append(row[0, len(prompt) :].tolist())
    model.set_attn_implementation(ATTENTION)
    loaded = LoadedModel(
        model, byte_tokenizer(), family, model.dtype, device, model.config.vocab_size, 512, frozenset([2]), family
    )
    names = ("eager", "graphs") if device.type == "cuda" else ("eager",)
    return {name: _differing(loaded, prompts, expected, device, compile=name == "graphs") for name in names}


def _differing(
    loaded: LoadedModel, prompts: list[Any], expected: list[list[int]], device: torch.device, *, compile: bool
) -> int | None:
    """The number; None where graphs were asked for and none were used."""
    config = EngineConfig(prior=False, compile=compile, cache_bytes=1 << 23, budget=16, device=str(device))
    engine = Engine(config, loaded=loaded)
    if compile and engine.runner.graphs is None:
        return None
    params = SamplingParams(max_tokens=NEW_TOKENS, ignore_eos=True)
    requests = [Request(prompt, params) for prompt in prompts]
    found: dict[str, list[int]] = {request.request_id: [] for request in requests}
    for output in engine.generate(requests):
        found[output.request_id] += output.token_ids
    return sum(found[request.request_id] != ids for request, ids in zip(requests, expected, strict=True))


def large_model(layers: int, device: torch.device) -> PreTrainedModel:
    """A Llama of 7B's shape with random weights, in bfloat16."""
    config = AutoConfig.for_model("llama", num_hidden_layers=layers, **SHAPE_7B)
    build: Any = AutoModelForCausalLM.from_config
    with device:
        model: PreTrainedModel = build(config, dtype=torch.bfloat16, attn_implementation=ATTENTION).eval()
    return model.requires_grad_(False)


def step_ms(runner: ModelRunner, tokens: int, branching: bool) -> float:
    """Median milliseconds of a step over one request, its most likely tokens brought to the processor."""
    parents = (np.arange(tokens) - 1) // 2 if branching else np.arange(-1, tokens - 1)
    parents[0] = -1
    segment = Segment(np.ones(tokens, np.int32), parents.astype(np.int32), start=0, cached=CACHED)
    times = []
    for _ in range(PASSES + 2):
        started = time.perf_counter()
        top_k(runner.run([segment]), 8)
        times.append((time.perf_counter() - started) * 1e3)
    return round(statistics.median(times[2:]), 3)


def main() -> int:
    """Run both parts; says so where there is no such device."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda", help="torch device (default: cuda)")
    parser.add_argument("--layers", type=int, default=32, help="layers of the model that is timed (default: 32)")
    args = parser.parse_args()
    if args.device.startswith("cuda") and not torch.cuda.is_available():
        print(json.dumps({"device": None, "reason": "torch finds no CUDA device here"}))
        return 0
    device = torch.device(args.device)
    wrong = {family: differing(family, device) for family in FAMILIES}
    runner = ModelRunner(large_model(args.layers, device), 1 << 30, compile=device.type == "cuda")
    graphs, runner.graphs = runner.graphs, None
    report: dict[str, Any] = {
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else str(device),
        "torch": torch.__version__,
        "differing": wrong,
        "layers": args.layers,
        "graphs": graphs is not None,
    }
    for name, used in (("eager", None), ("graphs", graphs)):
        if name == "eager" or used is not None:
            runner.graphs = used
            report[name] = {
                "step_ms": {str(n): step_ms(runner, n, branching=False) for n in TOKENS},
                "tree_step_ms": {str(n): step_ms(runner, n, branching=True) for n in TOKENS},
            }
    print(json.dumps(report))
    return 0 if passed(report, device) else 1


def passed(report: dict[str, Any], device: torch.device) -> bool:
    """All ids are ``model.generate``'s, and on a GPU graphs were used."""
    counts = [count for one in report["differing"].values() for count in one.values()]
    return all(count == 0 for count in counts) and (report["graphs"] or device.type != "cuda")


if __name__ == "__main__":
    sys.exit(main())
