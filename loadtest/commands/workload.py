"""``workload``: say how long a workload's prompts and answers are, or write it to a file."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from loadtest.commands.values import whole_number
from loadtest.errors import UserError
from loadtest.summary import spread
from loadtest.workloads import NAMES, Conversation, is_file, open_workload, prompt_length

SUMMARY = "show a workload's lengths, or write it to a file"
DESCRIPTION = (
    "Print how the lengths of a workload's first conversations are distributed; --output writes them as JSONL, which "
    "run --workload FILE.jsonl reads."
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of the command."""
    parser.add_argument("workload", help=f"one of {', '.join(NAMES)}, or a JSONL file")
    parser.add_argument("--seed", type=int, help="of the workload (default: 1); a file has none")
    parser.add_argument("--count", type=whole_number, default=200, help="conversations to look at (default: 200)")
    parser.add_argument("--output", metavar="FILE.jsonl", type=Path, help="write them there")
    parser.add_argument("--json", action="store_true", help="print the JSON line only")


def execute(args: argparse.Namespace) -> int:
    """Print the lengths."""
    if args.seed is not None and is_file(args.workload):
        raise UserError("--seed changes nothing in a file's requests; leave it out")
    seed = 1 if args.seed is None else args.seed
    workload = open_workload(args.workload, seed)
    count = min(args.count, workload.length or args.count)
    found = [workload.conversation(number) for number in range(count)]
    caps = [turn.max_tokens for one in found for turn in one.turns if turn.max_tokens is not None]
    lengths: dict[str, Any] = {
        "turns": spread(len(one.turns) for one in found),
        "characters sent, answers left out": spread(prompt_length(one) for one in found),
        "cap of an answer, tokens": spread(caps),
    }
    if args.output is not None:
        _write(args.output, found)
    if not args.json:
        print(f"{args.workload}, seed {seed}: {count} conversations")
        for title, value in lengths.items():
            if value is not None:
                print(f"{title:36}" + "".join(f"{name:>6} {value[name]:<7g}" for name in ("p50", "p90", "p99", "max")))
    print(json.dumps({"workload": args.workload, "seed": seed, "conversations": count, "lengths": lengths}))
    return 0


def _write(path: Path, found: list[Conversation]) -> None:
    try:
        with path.open("w", encoding="utf-8") as file:
            for one in found:
                file.write(json.dumps(_line(one), ensure_ascii=False) + "\n")
    except OSError as error:
        raise UserError(f"{path} cannot be written ({error.strerror}); name another file") from None


def _line(one: Conversation) -> dict[str, Any]:
    line: dict[str, Any] = {"id": one.name, **one.fields}
    if one.at_s is not None:
        line["at_s"] = one.at_s
    if one.prompt is not None:
        cap = one.turns[0].max_tokens
        return line | {"prompt": one.prompt} | ({} if cap is None else {"max_tokens": cap})
    turns = [{"messages": list(turn.messages), "max_tokens": turn.max_tokens} for turn in one.turns]
    return line | {"turns": turns}
