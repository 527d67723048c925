"""``python -m racer generate``: decode a prompt, or a file of them."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

from racer.commands.conversations import Conversation, converse
from racer.commands.inputs import BadLine, Item, read_items, valid_text
from racer.commands.opening import open_engine
from racer.commands.options import (
    add_engine_options,
    add_sampling_options,
    engine_config,
    sampling_values,
    with_flags,
)
from racer.commands.progress import Bar
from racer.commands.records import InOrder, OutputFile, Sink, print_line, print_text, refuse_same_file, say_error
from racer.commands.store import AttachedStore, add_store_options
from racer.commands.wording import number, plural
from racer.config import EngineConfig
from racer.errors import ConfigError
from racer.types import SamplingParams, StepOutput

SUMMARY = "decode a prompt or a file of prompts"
DESCRIPTION = (
    "Decode a prompt, or a JSON-lines file whose lines hold prompt (plain text), messages (a chat) or turns (the "
    "user's part of a conversation), an optional id or question_id, and sampling parameters of their own."
)
DEFAULT_CONCURRENCY = 8

_Lines = list[Item | BadLine]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add this command's options."""
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument("--prompt", metavar="TEXT", default=argparse.SUPPRESS, help="decode this text")
    source.add_argument("--input", metavar="FILE.jsonl", default=argparse.SUPPRESS, help="decode every line")
    parser.add_argument(
        "--chat", action="store_true", default=False, help="put --prompt to the model as a chat message"
    )
    parser.add_argument("--output", metavar="FILE.jsonl", default=argparse.SUPPRESS, help="write one line for each")
    parser.add_argument("--overwrite", action="store_true", default=False, help="replace an output that exists")
    parser.add_argument("--json", action="store_true", default=False, help="print the output lines, not the text")
    add_store_options(parser)
    add_engine_options(parser, aliases={"max_running": "--concurrency"})
    add_sampling_options(parser)


def execute(args: argparse.Namespace) -> int:
    """Decode everything; 2 if a line could not be decoded, else 0."""
    config = engine_config(args, **_default_concurrency(args))
    values = sampling_values(args)
    SamplingParams(**values)
    lines = _lines(args)
    total = Totals(len(lines))
    try:
        _decode(args, config, values, lines, total)
    except KeyboardInterrupt:
        if "input" in args:
            raise KeyboardInterrupt(total.interrupted(args.output if "output" in args else None)) from None
        raise
    if "input" in args or total.done:
        print(total.sentence(), file=sys.stderr)
    return 2 if total.failed else 0


def _decode(
    args: argparse.Namespace, config: EngineConfig, values: dict[str, Any], lines: _Lines, total: Totals
) -> None:
    """Write a record for each line, in order; after an interrupt, those that are finished."""
    source = args.input if "input" in args else None
    streams = source is None and not args.json
    with ExitStack() as stack:
        store = stack.enter_context(AttachedStore(args))
        sinks = _sinks(args, stack)
        failures = _report_bad(lines, source)
        engine = open_engine(config, store.attach) if len(failures) < len(lines) else None
        records = InOrder(sinks)
        stack.callback(records.flush)
        for index, record in failures.items():
            total.failed += 1
            records.add(index, record)
        bar = stack.enter_context(Bar(len(lines) - len(failures), "prompts", shown=_bar_fits(args)))

        def watch(outputs: list[StepOutput]) -> None:
            bar.watch(outputs)
            if streams:
                print("".join(output.text for output in outputs), end="", flush=True)

        if engine is not None:
            total.begin()
            for conversation in converse(engine, _conversations(lines), values, watch):
                total.add(conversation)
                records.add(conversation.index, conversation.record())
                bar.advance()
                if conversation.error is not None:
                    say_error(_located(source, conversation.item.line, conversation.error))
        if streams and total.done:
            print(flush=True)


class Totals:
    """What the whole run decoded, of so many ``lines``."""

    def __init__(self, lines: int) -> None:
        self._started_s = self._decoding_s = 0.0
        self._lines = lines
        self.done = self.failed = self.tokens = self.decided = self.steps = 0

    def begin(self) -> None:
        """All is loaded and compiled; the time until the last answer counts."""
        self._started_s = time.perf_counter()

    def add(self, conversation: Conversation) -> None:
        """Count one conversation's answers."""
        self._decoding_s = time.perf_counter() - self._started_s
        self.failed += conversation.error is not None
        self.done += conversation.error is None
        for answer in conversation.answers:
            self.tokens += answer.stats.completion_tokens
            if answer.stats.steps:
                self.decided += answer.stats.decided - 1
                self.steps += answer.stats.steps

    def sentence(self) -> str:
        """One line of figures."""
        mat = self.decided / self.steps if self.steps else None
        rate = self.tokens / self._decoding_s if self._decoding_s else None
        return (
            f"{self.done} done, {self.failed} failed, {plural(self.tokens, 'token')} in {plural(self.steps, 'step')}, "
            f"MAT {number(mat, 2)}, {self._decoding_s:.1f} s, {number(rate, 1)} tok/s"
        )

    def interrupted(self, output: str | None) -> str:
        """How far the run came, where it ends early; ``output`` names the file that has the answers."""
        parts = [f"interrupted: {self.done} of {self._lines} done"]
        if self.failed:
            parts.append(f"{self.failed} failed")
        if output is not None and (self.done or self.failed):
            parts.append(f"written to {output}")
        return ", ".join(parts)


def _default_concurrency(args: argparse.Namespace) -> dict[str, int]:
    return {} if "engine.max_running" in vars(args) else {"max_running": DEFAULT_CONCURRENCY}


def _lines(args: argparse.Namespace) -> _Lines:
    if "input" in args:
        if args.chat:
            raise ConfigError("--chat goes with --prompt; in a file, write messages or turns instead of prompt")
        return read_items(args.input, strict=True)
    valid_text("--prompt", args.prompt)
    chat = ({"role": "user", "content": args.prompt},) if args.chat else ()
    return [Item(1, None, prompt=None if chat else args.prompt, messages=chat)]


def _sinks(args: argparse.Namespace, stack: ExitStack) -> list[Sink]:
    sinks: list[Sink] = []
    if "output" in args:
        if "input" in args:
            refuse_same_file(args.input, args.output)
        sinks.append(stack.enter_context(OutputFile(args.output, overwrite=args.overwrite)).write)
    if args.json:
        sinks.append(print_line)
    elif not sinks and "input" in args:
        sinks.append(print_text)
    return sinks


def _report_bad(lines: _Lines, source: str | None) -> dict[int, dict[str, object]]:
    """Name the bad lines on stderr; their output records by index."""
    failures: dict[int, dict[str, object]] = {}
    for index, line in enumerate(lines):
        if isinstance(line, BadLine):
            say_error(_located(source, line.line, line.error))
            failures[index] = {"id": line.line if line.id is None else line.id, "error": line.error}
    return failures


def _conversations(lines: _Lines) -> Iterator[Conversation]:
    return (Conversation(index, line) for index, line in enumerate(lines) if isinstance(line, Item))


def _located(source: str | None, line: int, sentence: str) -> str:
    return with_flags(sentence) if source is None else f"{source}:{line}: {sentence}"


def _bar_fits(args: argparse.Namespace) -> bool:
    """A bar and text on the same terminal would garble each other."""
    return "input" in args and not (sys.stdout.isatty() and (args.json or "output" not in args))
