"""``python -m datastore bench``: what the store costs, beside the plain layout."""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from datastore.commands.options import URL_VARIABLE, add_json_option, print_result
from datastore.errors import StoreConfigError

SUMMARY = "measure lookups, ingest and memory, beside the plain layout"
DESCRIPTION = (
    "Measure with made-up text what the store costs: lookups of 32 requests in one round trip, alone and while another "
    "process writes, ingest from one process, memory for each token; each also for the plain layout, a sorted set for "
    "each context. The namespace is removed before and behind."
)
_NAMESPACE = "bench"
_MAX_BYTES = 2 << 30


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add this command's options."""
    parser.add_argument(
        "--url", metavar="URL", help=f"server to measure; default: ${URL_VARIABLE}, else one started for this run"
    )
    parser.add_argument(
        "--namespace", metavar="NAME", default=_NAMESPACE, help=f"removed before and behind (default: {_NAMESPACE})"
    )
    parser.add_argument(
        "--tokens", metavar="N", type=_count, default=1_000_000, help="tokens of text, 1000 or more (default: 1000000)"
    )
    parser.add_argument("--lookups", metavar="N", type=_count, default=2000, help="round trips timed (default: 2000)")
    add_json_option(parser)


def _count(text: str) -> int:
    if not text.isdecimal() or not 1 <= int(text) <= 1 << 40:
        raise argparse.ArgumentTypeError(f"{text!r} is not valid: it must be a positive integer")
    return int(text)


def execute(args: argparse.Namespace) -> int:
    """Measure and print."""
    from datastore.bench import measure

    if args.tokens < 1000:
        raise StoreConfigError(f"--tokens {args.tokens} is too little to measure; use 1000 or more")
    with _server(args) as url:
        figures = measure(
            url,
            tokens=args.tokens,
            lookups=args.lookups,
            plain_tokens=max(1000, args.tokens // 10),
            namespace=args.namespace,
        )
    print_result(args, figures, "\n".join(_lines(figures)))
    return 0


@contextmanager
def _server(args: argparse.Namespace) -> Iterator[str]:
    from datastore.embedded import EmbeddedServer

    url = args.url or os.environ.get(URL_VARIABLE)
    if url:
        yield url
        return
    with EmbeddedServer(_MAX_BYTES) as server:
        yield server.url


def _lines(figures: dict[str, Any], indent: str = "") -> Iterator[str]:
    for name, value in figures.items():
        label = f"{indent}{name.replace('_', ' ')}"
        if name == "plain":
            yield "plain layout"
            yield from _lines(value, "  ")
        elif isinstance(value, dict):
            yield f"{label:28}" + ", ".join(f"{part} {number}" for part, number in value.items())
        else:
            yield f"{label:28}{value:,}" if isinstance(value, int) else f"{label:28}{value}"
