"""``python -m datastore purge``: remove a namespace."""

from __future__ import annotations

import argparse
import sys
from contextlib import closing

from datastore.commands.options import add_json_option, add_store_options, print_result, store_url
from datastore.errors import StoreConfigError

SUMMARY = "remove a namespace"
DESCRIPTION = (
    "Remove all that a namespace holds, of every tokenizer, with the marks of the files it has learned. Other "
    "namespaces and other data of the server stay. The server goes on answering meanwhile."
)

_NO_TOKENIZER = "0" * 16
"""Stands for a tokenizer where none is meant: a purge is about all of them."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add this command's options."""
    parser.add_argument("--yes", action="store_true", help="do not ask")
    add_json_option(parser)
    add_store_options(parser, tokenizer=False)


def execute(args: argparse.Namespace) -> int:
    """Ask, then remove; 2 if declined."""
    from datastore.connect import open_store

    url = store_url(args)
    with closing(open_store(url, namespace=args.namespace, fingerprint=_NO_TOKENIZER)) as store:
        if not args.yes:
            _confirm(args.namespace)
        removed = store.purge()
    print_result(args, {"namespace": args.namespace, "keys_removed": removed}, f"{removed:,} keys removed")
    return 0


def _confirm(namespace: str) -> None:
    if not sys.stdin.isatty():
        raise StoreConfigError(f"nobody can be asked whether to remove namespace {namespace!r}; add --yes")
    print(f"Remove all of namespace {namespace!r}? [y/N] ", end="", file=sys.stderr, flush=True)
    if sys.stdin.readline().strip().lower() not in ("y", "yes"):
        raise StoreConfigError("nothing was removed")
