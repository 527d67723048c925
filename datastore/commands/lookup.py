"""``python -m datastore lookup``: what a store knows behind a text."""

from __future__ import annotations

import argparse
from contextlib import closing
from typing import TYPE_CHECKING, Any

from datastore.commands.options import add_json_option, add_store_options, open_with, print_result
from datastore.errors import StoreConfigError

if TYPE_CHECKING:
    from tokenizers import Tokenizer

    from datastore.store import NgramStore

SUMMARY = "show what a store knows behind a text"
DESCRIPTION = (
    "Show the continuations that a store knows behind the end of a text, for each number of tokens that it matches, "
    "the longest first: it is the one that drafts come from."
)
_DEADLINE_S = 5.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add this command's options."""
    parser.add_argument("--text", metavar="TEXT", required=True, help="what comes before")
    add_json_option(parser)
    add_store_options(parser)


def execute(args: argparse.Namespace) -> int:
    """Print the continuations."""
    tokenizer, opened = open_with(args)
    with closing(opened) as store:
        token_ids = tokenizer.encode(args.text, add_special_tokens=False).ids
        if not token_ids:
            raise StoreConfigError("--text is empty; give it the text before the continuation")
        matches = _matches(store, tokenizer, token_ids)
    print_result(args, {"token_ids": token_ids, "matches": matches}, _as_text(args.text, matches))
    return 0


def _matches(store: NgramStore, tokenizer: Tokenizer, token_ids: list[int]) -> list[dict[str, Any]]:
    """Continuations by the number of tokens matched, the longest first; lengths that match nothing are left out."""
    import numpy as np

    tail = np.array(token_ids[-store.reach :], np.int32)
    found = store.lookup([tail[start:] for start in range(len(tail))], _DEADLINE_S)
    return [
        {
            "matched": len(tail) - start,
            "context": tokenizer.decode(tail[start:].tolist(), skip_special_tokens=False),
            "continuations": [
                {
                    "count": one.count,
                    "text": tokenizer.decode(list(one.tokens), skip_special_tokens=False),
                    "token_ids": list(one.tokens),
                }
                for one in continuations
            ],
        }
        for start, continuations in enumerate(found)
        if continuations
        and continuations[0].matched == len(tail) - start  # else a shorter match, which comes by itself
    ]


def _as_text(text: str, matches: list[dict[str, Any]]) -> str:
    if not matches:
        return f"nothing is known behind {text!r}"
    lines = []
    for match in matches:
        lines.append(f"{match['matched']} tokens matched: {match['context']!r}")
        lines += [f"  {one['count']:6,} x {one['text']!r}" for one in match["continuations"]]
    return "\n".join(lines)
