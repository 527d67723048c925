"""``python -m datastore stats``: what a namespace holds."""

from __future__ import annotations

import argparse
from contextlib import closing
from dataclasses import asdict

from datastore.commands.options import add_json_option, add_store_options, open_with, print_result

SUMMARY = "show what a namespace holds"
DESCRIPTION = "Show how much a namespace of a store holds for one tokenizer. Walks its keys, in small steps."


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add this command's options."""
    add_json_option(parser)
    add_store_options(parser)


def execute(args: argparse.Namespace) -> int:
    """Print the figures."""
    _, opened = open_with(args)
    with closing(opened) as store:
        values = asdict(store.stats())
    width = max(map(len, values))
    lines = (
        f"{name.replace('_', ' '):{width}}  {value:,}" if isinstance(value, int) else f"{name:{width}}  {value}"
        for name, value in values.items()
    )
    print_result(args, values, "\n".join(lines))
    return 0
