"""``python -m datastore ingest``: fill a store with texts."""

from __future__ import annotations

import argparse
import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from types import FrameType
from typing import TYPE_CHECKING

from datastore.commands.options import add_json_option, add_store_options, open_with, print_result

if TYPE_CHECKING:
    from datastore.ingest import Progress

SUMMARY = "fill a store with texts"
DESCRIPTION = (
    "Learn the n-grams of text files (UTF-8), JSON lines (.jsonl, .ndjson) and Parquet files, also as .gz or .zst. A "
    "folder stands for all the text in it, a pattern may hold ** for folders. The store remembers how far each file "
    "was read: interrupted, the same command goes on there, and what was learned is never counted twice. Killed "
    "outright, it leaves out one batch at most, about 65,000 tokens."
)
_SHOWN_PROBLEMS = 5
_INTERRUPTED = 130


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add this command's options."""
    parser.add_argument("files", metavar="FILE", nargs="+", help="files, folders and patterns")
    parser.add_argument(
        "--field", metavar="NAME", default="text", help="field or column that holds the text (default: text)"
    )
    parser.add_argument("--again", action="store_true", help="count files once more that were learned before")
    add_json_option(parser)
    add_store_options(parser)


def execute(args: argparse.Namespace) -> int:
    """Ingest; 2 if something could not be read, 130 if interrupted, else 0."""
    from datastore.commands.bar import Bar
    from datastore.ingest import ingest
    from datastore.reading import find_files

    files = find_files(args.files)
    tokenizer, opened = open_with(args)
    started_s = time.perf_counter()
    with closing(opened) as store, _stop_between_batches() as stop, Bar() as bar:
        progress = ingest(
            store,
            tokenizer,
            files,
            text_field=args.field,
            again=args.again,
            report=bar.show,
            stopping=stop.is_set,
        )
    elapsed_s = time.perf_counter() - started_s
    for problem in progress.problems[:_SHOWN_PROBLEMS]:
        print(f"error: {problem}", file=sys.stderr)
    if (more := len(progress.problems) - _SHOWN_PROBLEMS) > 0:
        print(f"error: {more} more could not be read", file=sys.stderr)
    if stop.is_set():
        print("interrupted; run the same command again to go on", file=sys.stderr)
    values = {
        "files": len(files),
        "files_done": progress.files_done,
        "files_known": progress.files_known,
        "files_binary": progress.files_binary,
        "problems": len(progress.problems),
        "tokens": progress.tokens,
        "elapsed_s": round(elapsed_s, 3),
        "tokens_per_s": round(progress.tokens / elapsed_s, 1),
        "interrupted": stop.is_set(),
    }
    print_result(args, values, _sentence(progress, elapsed_s))
    return _INTERRUPTED if stop.is_set() else 2 if progress.problems else 0


def _sentence(progress: Progress, elapsed_s: float) -> str:
    parts = [
        f"{progress.tokens:,} tokens of {_files(progress.files_done)} learned in {elapsed_s:.1f} s, "
        f"{progress.tokens / elapsed_s:,.0f} tokens/s"
    ]
    if progress.files_known:
        parts.append(f"{_files(progress.files_known)} learned before left out (--again counts them once more)")
    if progress.files_binary:
        parts.append(f"{_files(progress.files_binary)} without text left out")
    return "; ".join(parts)


def _files(count: int) -> str:
    return "1 file" if count == 1 else f"{count:,} files"


@contextmanager
def _stop_between_batches() -> Iterator[threading.Event]:
    """Make the first Ctrl-C or SIGTERM set the event, and the second one interrupt as ever."""
    stop = threading.Event()
    if threading.current_thread() is not threading.main_thread():  # signals are the main thread's
        yield stop
        return

    def handle(number: int, frame: FrameType | None) -> None:
        if stop.is_set():
            raise KeyboardInterrupt
        stop.set()

    before = {number: signal.signal(number, handle) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
