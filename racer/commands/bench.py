"""``python -m racer bench``: compare modes with plain decoding, in speed and token by token."""

from __future__ import annotations

import argparse
import json
from typing import TYPE_CHECKING, Any

from racer.commands.conversations import item_id
from racer.commands.modes import TRANSFORMERS, Mode, all_modes
from racer.commands.opening import open_engine, resolved
from racer.commands.options import add_engine_options, comma_list, engine_config, value_type
from racer.commands.progress import Bar
from racer.commands.records import say_error
from racer.commands.store import AttachedStore, add_store_options
from racer.commands.suites import Question, group_order, read_questions
from racer.commands.table import Result, as_table, build_rows
from racer.commands.wording import plural
from racer.config import Drafts, EngineConfig, TreeShape
from racer.errors import ConfigError, InputError
from racer.types import SamplingParams

if TYPE_CHECKING:
    from racer.commands.waves import Bench

SUMMARY = "compare drafts with plain decoding on a file of prompts"
DESCRIPTION = (
    "Decode every prompt of a file in several modes that take turns, prompt by prompt (or wave by wave at higher "
    "concurrency), greedily where a line sets no sampling parameters; report MAT, speed and whether the token ids are "
    "plain decoding's. The last line of stdout is one JSON object."
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add this command's options."""
    count = value_type(EngineConfig, "max_running")
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
    _add_modes(parser)
    parser.add_argument(
        "--turns",
        choices=("first", "all"),
        default="first",
        help="turns of a conversation to decode; later ones continue plain decoding's answers (default: first)",
    )
    parser.add_argument(
        "--repeat",
        type=count,
        default=1,
        metavar="N",
        help="decode everything N times in each mode; of each wave the run of median time counts, of two the faster "
        "(default: 1)",
    )
    parser.add_argument(
        "--apart",
        action="store_true",
        help="decode each category by itself; else questions of several share each step's time",
    )
    parser.add_argument("--json", action="store_true", help="print only the JSON line")
    store = add_store_options(parser)
    store.add_argument(
        "--store-warm", action="store_true", help="first decode everything once, uncounted, and teach it to the store"
    )
    store.add_argument(
        "--store-learn",
        action="store_true",
        help="teach the store while measuring, as in service; else it stays as it is, so that order does not matter",
    )
    add_engine_options(parser, skip=("drafts", "tree", "budget", "max_running", "seed"))


def _add_modes(parser: argparse.ArgumentParser) -> None:
    config = EngineConfig
    parser.add_argument(
        "--drafts",
        type=comma_list(_drafts),
        default=[*map(str, (Drafts.OFF, Drafts.RETRIEVAL, Drafts.LOGITS, Drafts.RACER))],
        metavar="LIST",
        help="of off, retrieval, logits, racer, and transformers' own: generate, and lookup, its prompt lookup "
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
        metavar="LIST",
        help=f"draft budgets: numbers of nodes, and auto (default: {budget})",
    )
    parser.add_argument(
        "--concurrency",
        type=comma_list(value_type(config, "max_running")),
        default=[1],
        metavar="N,N",
        help="prompts at a time (default: 1)",
    )


def execute(args: argparse.Namespace) -> int:
    """Run the comparison; 1 if some mode's ids differ from plain decoding's by more than a near tie."""
    theirs = [name for name in args.drafts if name in TRANSFORMERS]
    if theirs and args.concurrency != [1]:
        raise ConfigError(f"{theirs[0]} is timed one prompt at a time; use --concurrency 1 with it")
    questions = read_questions(args.data, args.limit_per_category)
    if theirs and any(question.item.params for question in questions):
        raise ConfigError(f"{theirs[0]} decodes greedily, but some lines bring sampling parameters; leave one out")
    modes = all_modes(args.drafts, args.tree, args.budget, store=args.store is not None)
    _check_store(args, modes)
    config = engine_config(
        args,
        drafts=Drafts.RACER if any(mode.drafts in ("racer", "logits") for mode in modes) else Drafts.RETRIEVAL,
        tree=TreeShape.BEST if TreeShape.BEST in args.tree else args.tree[0],
        budget="auto" if "auto" in args.budget else max(args.budget),
        max_running=max(args.concurrency),
    )
    from racer.commands.waves import Bench  # takes seconds, as does the next
    from racer.model.loader import load

    with AttachedStore(args) as store:
        engine = open_engine(config, store.attach_switched)
        reference = load(config) if theirs else None
        bench = Bench(engine, modes, args.max_tokens, reference, store.switch, args.store_learn, args.repeat)
        bench.warm_up()
        results: list[Result] = []
        try:
            _measure(args, bench, questions, results)
        except KeyboardInterrupt:
            if results:
                _report(args, bench, results, questions, store, interrupted=True)
            raise
        return _report(args, bench, results, questions, store, interrupted=False)


def _check_store(args: argparse.Namespace, modes: list[Mode]) -> None:
    """Refuse what would measure nothing, or something else than it says."""
    fed = sum(mode.store for mode in modes)
    if args.store is None and (args.store_warm or args.store_learn):
        raise ConfigError("--store-warm and --store-learn are about a store; name one with --store")
    if args.store is not None and not fed:
        raise ConfigError("no mode drafts from the store; add racer or retrieval to --drafts")
    passes = fed * len(args.concurrency) * args.repeat
    if args.store_learn and passes > 1:
        raise ConfigError(
            f"with --store-learn each prompt must be decoded once with the store, but here it would be {passes} times, "
            "each teaching the next; name one of --drafts racer or retrieval, one tree, one budget and one concurrency,"
            " and leave --repeat out"
        )


def _measure(args: argparse.Namespace, bench: Bench, questions: list[Question], results: list[Result]) -> None:
    """Decode all questions in all modes, adding to ``results`` wave by wave."""
    from racer.commands.waves import waves

    all_turns = args.turns == "all"
    with Bar(len(questions) * (len(args.concurrency) + args.store_warm), "prompts") as bar:
        for wave in waves(questions, max(args.concurrency), apart=args.apart) if args.store_warm else ():
            bench.teach_store(wave, max(args.concurrency), all_turns)
            bar.advance(len(wave))
        for concurrency in args.concurrency:
            for wave in waves(questions, concurrency, apart=args.apart):
                results += bench.run(wave, concurrency, all_turns)
                bar.advance(len(wave))


def _drafts(text: str) -> str:
    names = [*map(str, Drafts), *TRANSFORMERS]
    if text not in names:
        raise argparse.ArgumentTypeError(f"{text!r} is not valid: it must be one of {', '.join(names)}")
    return text


def _report(
    args: argparse.Namespace,
    bench: Bench,
    results: list[Result],
    questions: list[Question],
    store: AttachedStore,
    *,
    interrupted: bool,
) -> int:
    """Print what was measured; what is skipped or differs is told on stderr as well."""
    for note in bench.skipped:
        say_error(f"question {note['id']}, turn {note['turn']} is left out: {note['reason']}")
    if not results:
        raise InputError("nothing was measured")
    rows = build_rows(results, group_order(questions))
    different = [result for result in results if result.difference is not None]
    near_ties = sum(result.difference.near_tie for result in different if result.difference)
    summary: dict[str, Any] = {
        "rows": rows,
        **resolved(bench.engine),
        "interrupted": interrupted,
        "prompts": len({id(result.question) for result in results}),
        "skipped": bench.skipped,
        "store": store.report(warm=args.store_warm, learn=args.store_learn),
        "max_tokens": args.max_tokens,
        "repeat": args.repeat,
        "apart": args.apart,
        "mismatches": len(different),
        "near_ties": near_ties,
        "differences": [
            {"id": item_id(result.question.item), "mode": result.mode.label, "concurrency": result.concurrency}
            | result.difference.as_json()
            for result in different
            if result.difference
        ],
    }
    if not args.json:
        print(as_table(rows, store.sources), end="\n\n")
    print(json.dumps(summary, ensure_ascii=False))
    if len(different) > near_ties:
        wrong = len(different) - near_ties
        say_error(f"{plural(wrong, 'answer')} left plain decoding's tokens by more than a near tie")
        return 1
    return 0
