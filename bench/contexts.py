"""Time per token behind long contexts, plain and with drafts, and prefill beside ``model.generate``'s.

    python bench/contexts.py [--model demo] [--contexts 1000,4000,8000] [--max-tokens 64] [--prompts 3]

A prompt is source code of Python's standard library, as many tokens of it as the context has room for; each prompt is
another part. Plain decoding, RACER and ``model.generate`` take turns. The last line is one JSON object.
"""

from __future__ import annotations

import argparse
import inspect
import json
import statistics
import sys
import time
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).parents[1]))

from racer import Engine, EngineConfig, Request, SamplingParams
from racer.model.loader import load

MODULES = ("argparse", "asyncio.base_events", "difflib", "email.message", "http.client", "inspect", "pickle")


def stdlib_text() -> str:
    """Source code of some modules of the standard library."""
    return "\n".join(inspect.getsource(__import__(name, fromlist=["_"])) for name in MODULES)


def decode(engine: Engine, prompt: tuple[int, ...], drafts: str, max_tokens: int) -> dict[str, float]:
    """Prefill seconds, then milliseconds a token, and tokens a step."""
    request = Request(prompt, SamplingParams(max_tokens=max_tokens, drafts=drafts, ignore_eos=True))
    started = time.perf_counter()
    engine.add(request)
    first, decided, steps = 0.0, 0, 0
    while engine.has_work:
        outputs = engine.step()
        if not first and outputs:
            first = time.perf_counter()
            continue
        if first:
            steps += 1
            decided += sum(len(output.token_ids) for output in outputs)
    ended = time.perf_counter()
    return {"prefill_s": first - started, "ms_per_token": (ended - first) * 1e3 / decided, "mat": decided / steps}


@torch.inference_mode()
def prefill_of_generate(model: Any, prompt: tuple[int, ...]) -> float:
    """Seconds until ``model.generate`` has its first token."""
    ids = torch.tensor([prompt])
    started = time.perf_counter()
    model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=1, do_sample=False, pad_token_id=0)
    return time.perf_counter() - started


def main() -> None:
    """Measure all contexts."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="demo", help="as the engine's (default demo)")
    parser.add_argument("--contexts", default="1000,4000,8000", help="prompt plus answer (default 1000,4000,8000)")
    parser.add_argument("--max-tokens", type=int, default=64, help="tokens of an answer (default 64)")
    parser.add_argument("--prompts", type=int, default=3, help="prompts for each context (default 3)")
    arguments = parser.parse_args()
    config = EngineConfig(model=arguments.model)
    engine = Engine(config)
    engine.drafter.warm_up()
    reference = load(config).model
    ids = engine.tokenizer(stdlib_text()).input_ids
    decode(engine, tuple(ids[:200]), "racer", 8)
    prefill_of_generate(reference, tuple(ids[:200]))
    rows = []
    for context in map(int, arguments.contexts.split(",")):
        length = min(context, engine.context_length) - arguments.max_tokens
        runs: dict[str, list[dict[str, float]]] = {"off": [], "racer": []}
        theirs = []
        for turn in range(arguments.prompts):
            prompt = tuple(ids[turn * length : (turn + 1) * length])
            for drafts, own in runs.items():
                own.append(decode(engine, prompt, drafts, arguments.max_tokens))
            theirs.append(prefill_of_generate(reference, prompt))
        plain, racer = ({name: statistics.fmean(one[name] for one in own) for name in own[0]} for own in runs.values())
        row = {
            "context": length + arguments.max_tokens,
            "plain_ms_per_token": plain["ms_per_token"],
            "racer_ms_per_token": racer["ms_per_token"],
            "speedup": plain["ms_per_token"] / racer["ms_per_token"],
            "mat": racer["mat"],
            "prefill_tok_per_s": length / plain["prefill_s"],
            "racer_prefill_tok_per_s": length / racer["prefill_s"],
            "generate_prefill_tok_per_s": length / statistics.fmean(theirs),
        }
        rows.append({name: round(value, 3) for name, value in row.items()})
        print(*(f"{name} {value:.2f}" for name, value in row.items()), flush=True)
    print(json.dumps({"prompts": arguments.prompts, "max_tokens": arguments.max_tokens, "rows": rows}))


if __name__ == "__main__":
    main()
