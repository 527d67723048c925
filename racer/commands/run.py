"""``python -m racer run``: show one answer being decoded, and what drafts gained."""

from __future__ import annotations

import argparse
import sys
import time
from typing import TYPE_CHECKING, Any

from racer.commands.colour import ColouredText, legend, wants_colour
from racer.commands.conversations import Answer, encode
from racer.commands.inputs import valid_text
from racer.commands.opening import dtype_name, open_engine
from racer.commands.options import add_engine_options, add_sampling_options, engine_config, sampling_values
from racer.commands.store import AttachedStore, add_store_options
from racer.commands.wording import number, plural
from racer.config import Drafts
from racer.text import render_chat
from racer.types import Request, SamplingParams

if TYPE_CHECKING:
    from racer.engine import Engine

SUMMARY = "show an answer being decoded, accepted drafts coloured"
DESCRIPTION = (
    "Stream the answer to a prompt, accepted draft tokens coloured by source; then decode it again without drafts and "
    "compare speed and tokens."
)
PROMPT = "Write a Python function that checks whether a number is prime, and explain how it works."
MAX_TOKENS = 256


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add this command's options."""
    parser.add_argument("--prompt", metavar="TEXT", default=PROMPT, help=f"what to ask the model (default: {PROMPT})")
    add_store_options(parser)
    add_engine_options(parser, skip=("max_running",))
    add_sampling_options(parser, skip=("stop",))


def execute(args: argparse.Namespace) -> int:
    """Decode twice and report."""
    valid_text("--prompt", args.prompt)
    config = engine_config(args, max_running=1)
    values = {"max_tokens": None, "seed": 0 if config.seed is None else config.seed} | sampling_values(args)
    SamplingParams(**values)
    with AttachedStore(args) as store:
        engine = open_engine(config, store.attach)
        coloured = wants_colour(sys.stdout)
        if coloured:
            print(legend(store.sources), end="\n\n")
        _show(engine, args.prompt, values, coloured)
    return 0


def _show(engine: Engine, text: str, values: dict[str, Any], coloured: bool) -> None:
    """Decode with drafts and without, and print the answer and the figures."""
    prompt = _prompt(engine, text)
    if values["max_tokens"] is None:
        values["max_tokens"] = max(1, min(MAX_TOKENS, engine.context_length - len(prompt)))
    params = SamplingParams(**values)
    drafted = _decode(engine, prompt, params, ColouredText(engine.tokenizer, coloured))
    print("\n", flush=True)
    print("decoding again without drafts, to compare", file=sys.stderr, flush=True)
    plain = _decode(engine, prompt, params.model_copy(update={"drafts": Drafts.OFF}), None)
    figures = _figures(engine.config.drafts, drafted, plain)
    print(figures, _verdict(engine, prompt, drafted, plain), sep="; ", flush=True)


def _prompt(engine: Engine, text: str) -> tuple[int, ...]:
    """As a chat message where the model knows chats, else as plain text."""
    if engine.tokenizer.chat_template:
        return tuple(render_chat(engine.tokenizer, [{"role": "user", "content": text}]))
    return tuple(encode(engine.tokenizer, text))


def _decode(engine: Engine, prompt: tuple[int, ...], params: SamplingParams, shown: ColouredText | None) -> Answer:
    """Decode to the end; with ``shown``, print what each step delivers."""
    answer = Answer(time.perf_counter())
    for output in engine.generate([Request(prompt, params)]):
        if output.error is not None:
            raise output.error
        answer.take(output)
        if shown is not None:
            print(shown.push(output.token_ids, output.sources), end="", flush=True)
    if shown is not None:
        print(shown.flush(), end="")
    return answer


def _figures(drafts: str, drafted: Answer, plain: Answer) -> str:
    parts = []
    for name, answer in ((f"drafts {drafts}", drafted), ("plain", plain)):
        stats = answer.stats
        parts.append(
            f"{name}: {plural(stats.completion_tokens, 'token')}, {plural(stats.steps, 'step')}, "
            f"MAT {number(stats.mat, 2)}, {stats.completion_tokens / answer.elapsed_s:.1f} tok/s"
        )
    return " | ".join(parts)


def _verdict(engine: Engine, prompt: tuple[int, ...], drafted: Answer, plain: Answer) -> str:
    from racer.commands.ties import compare  # takes seconds, were the engine not there

    gain = f"{plain.elapsed_s / drafted.elapsed_s * _tokens_ratio(drafted, plain):.2f}x"
    difference = compare(engine, prompt, plain.token_ids, drafted.token_ids)
    if difference is None:
        return f"{gain}, same tokens"
    cause = "NOT a near tie"
    if difference.near_tie:
        cause = f"a near tie of two tokens in {dtype_name(engine)}; with --dtype float32 all are the same"
    return f"{gain}, tokens differ from number {difference.position + 1} on ({cause})"


def _tokens_ratio(drafted: Answer, plain: Answer) -> float:
    """Makes the gain one of rates, should the two answers differ in length."""
    return drafted.stats.completion_tokens / max(plain.stats.completion_tokens, 1)
