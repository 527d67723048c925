"""``python -m racer bench``: compare modes with plain decoding, in speed and token by token."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator
from typing import Any

import torch

from racer.commands.conversations import encode, item_id
from racer.commands.inputs import Message
from racer.commands.measure import Measured, measure, measure_transformers
from racer.commands.modes import PLAIN, TRANSFORMERS, Mode, all_modes, rotated
from racer.commands.opening import dtype_name, open_engine
from racer.commands.options import add_engine_options, comma_list, engine_config, value_type
from racer.commands.progress import Bar
from racer.commands.suites import Question, group_order, read_questions
from racer.commands.table import Result, as_table, build_rows
from racer.commands.ties import compare
from racer.config import Drafts, EngineConfig, TreeShape
from racer.engine import Engine
from racer.errors import ConfigError
from racer.model.loader import LoadedModel, load
from racer.text import render_chat
from racer.types import SamplingParams

SUMMARY = "compare drafts with plain decoding on a file of prompts"
DESCRIPTION = (
    "Decode every prompt of a file in several modes that take turns, prompt by prompt (or wave by wave at higher "
    "concurrency), greedily; report MAT, speed and whether the token ids are plain decoding's. The last line of "
    "stdout is one JSON object."
)
Prompt = tuple[int, ...]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add this command's options."""
    count, config = value_type(EngineConfig, "max_running"), EngineConfig
    parser.add_argument(
        "--data", metavar="FILE.jsonl", action="append", required=True, help="prompts; may be repeated: a suite each"
    )
    parser.add_argument("--limit-per-category", type=count, metavar="N", help="take only the first N of each category")
    parser.add_argument(
        "--max-tokens",
        type=value_type(SamplingParams, "max_tokens"),
        default=128,
        metavar="N",
        help="length cap (default: 128)",
    )
    parser.add_argument(
        "--drafts",
        type=comma_list(_drafts),
        default=[*map(str, (Drafts.OFF, Drafts.RETRIEVAL, Drafts.LOGITS, Drafts.RACER))],
        metavar="LIST",
        help="of off, retrieval, logits, racer, and generate, which is transformers' own model.generate "
        "(default: off,retrieval,logits,racer)",
    )
    parser.add_argument(
        "--tree",
        type=comma_list(value_type(config, "tree")),
        default=[TreeShape.BEST],
        metavar="LIST",
        help="of best, paper, chain (default: best)",
    )
    budget = EngineConfig.model_fields["budget"].default
    parser.add_argument(
        "--budget",
        type=comma_list(value_type(config, "budget")),
        default=[budget],
        metavar="N,N",
        help=f"draft budgets (default: {budget})",
    )
    parser.add_argument(
        "--concurrency", type=comma_list(count), default=[1], metavar="N,N", help="prompts at a time (default: 1)"
    )
    parser.add_argument(
        "--turns",
        choices=("first", "all"),
        default="first",
        help="turns of a conversation to decode; later ones continue plain decoding's answers (default: first)",
    )
    parser.add_argument("--json", action="store_true", help="print only the JSON line")
    add_engine_options(parser, skip=("drafts", "tree", "budget", "max_running", "seed"))


def execute(args: argparse.Namespace) -> int:
    """Run the comparison; 1 if some mode's ids differ from plain decoding's by more than a near tie."""
    if TRANSFORMERS in args.drafts and args.concurrency != [1]:
        raise ConfigError("generate is timed one prompt at a time; use --concurrency 1 with it")
    questions = read_questions(args.data, args.limit_per_category)
    modes = all_modes(args.drafts, args.tree, args.budget)
    config = engine_config(
        args,
        drafts=Drafts.RACER if any(mode.drafts in ("racer", "logits") for mode in modes) else Drafts.RETRIEVAL,
        tree=TreeShape.BEST if TreeShape.BEST in args.tree else args.tree[0],
        budget=max(args.budget),
        max_running=max(args.concurrency),
    )
    engine = open_engine(config)
    bench = Bench(engine, modes, args.max_tokens, load(config) if TRANSFORMERS in args.drafts else None)
    bench.warm_up(questions[0])
    results: list[Result] = []
    with Bar(len(questions) * len(args.concurrency), "prompts") as bar:
        for concurrency in args.concurrency:
            for wave in _waves(questions, concurrency):
                results += bench.run(wave, concurrency, all_turns=args.turns == "all")
                bar.advance(len(wave))
    return _report(args, engine, results, questions)


class Bench:
    """Runs waves of questions in every mode."""

    def __init__(self, engine: Engine, modes: list[Mode], max_tokens: int, reference: LoadedModel | None) -> None:
        self.engine = engine
        self.modes = modes
        self.max_tokens = max_tokens
        self._reference = reference
        self._turn = 0

    def warm_up(self, question: Question) -> None:
        """Decode a few tokens in every mode, uncounted: first calls are slow."""
        prompt = self._prompt(question, 0, [])
        for mode in self.modes:
            self._measure(mode, [prompt], 8)

    def run(self, wave: list[Question], concurrency: int, all_turns: bool) -> list[Result]:
        """Every mode over the same prompts; conversations go on with plain decoding's answers."""
        answers: list[list[str]] = [[] for _ in wave]
        results = []
        for turn in range(max(_turns(question) for question in wave) if all_turns else 1):
            speaking = [i for i, question in enumerate(wave) if turn < _turns(question)]
            prompts = [self._prompt(wave[i], turn, answers[i]) for i in speaking]
            measured = {mode: self._measure(mode, prompts, self.max_tokens) for mode in rotated(self.modes, self._turn)}
            self._turn += 1
            for place, i in enumerate(speaking):
                plain = measured[PLAIN][place].token_ids
                answers[i].append(self.engine.tokenizer.decode(plain, skip_special_tokens=True))
                for mode in self.modes:
                    one = measured[mode][place]
                    difference = compare(self.engine, prompts[place], plain, one.token_ids)
                    results.append(Result(item_id(wave[i].item), wave[i].groups, mode, concurrency, one, difference))
        return results

    def _measure(self, mode: Mode, prompts: list[Prompt], max_tokens: int) -> list[Measured]:
        if self._reference is not None and mode.drafts == TRANSFORMERS:
            return measure_transformers(self._reference, prompts, max_tokens)
        return measure(self.engine, mode, prompts, max_tokens)

    def _prompt(self, question: Question, turn: int, answers: list[str]) -> Prompt:
        """The turn's prompt behind the conversation so far; plain text where the model has no chat template."""
        item, tokenizer = question.item, self.engine.tokenizer
        messages: list[Message] = list(item.messages)
        if item.prompt is not None:
            return tuple(encode(tokenizer, item.prompt))
        for text, answer in zip(item.turns, answers, strict=False):
            messages += [{"role": "user", "content": text}, {"role": "assistant", "content": answer}]
        if item.turns:
            messages.append({"role": "user", "content": item.turns[turn]})
        if not tokenizer.chat_template:
            return tuple(encode(tokenizer, "\n".join(str(message["content"]) for message in messages)))
        return tuple(render_chat(tokenizer, messages))


def _turns(question: Question) -> int:
    return max(1, len(question.item.turns))


def _waves(questions: list[Question], size: int) -> Iterator[list[Question]]:
    return (questions[start : start + size] for start in range(0, len(questions), size))


def _drafts(text: str) -> str:
    names = [*map(str, Drafts), TRANSFORMERS]
    if text not in names:
        raise argparse.ArgumentTypeError(f"{text!r} is not valid: it must be one of {', '.join(names)}")
    return text


def _report(args: argparse.Namespace, engine: Engine, results: list[Result], questions: list[Question]) -> int:
    rows = build_rows(results, group_order(questions))
    different = [result for result in results if result.difference is not None]
    near_ties = sum(result.difference.near_tie for result in different if result.difference)
    summary: dict[str, Any] = {
        "rows": rows,
        "model": engine.loaded.name,
        "dtype": dtype_name(engine),
        "device": str(engine.loaded.device),
        "threads": torch.get_num_threads(),
        "prompts": len(questions),
        "max_tokens": args.max_tokens,
        "mismatches": len(different),
        "near_ties": near_ties,
        "differences": [
            {"id": result.id, "mode": result.mode.label, "concurrency": result.concurrency}
            | result.difference.as_json()
            for result in different
            if result.difference
        ],
    }
    if not args.json:
        print(as_table(rows), end="\n\n")
    print(json.dumps(summary, ensure_ascii=False))
    if len(different) > near_ties:
        wrong = len(different) - near_ties
        print(f"error: {wrong} answers differ from plain decoding's by more than a near tie", file=sys.stderr)
        return 1
    return 0
