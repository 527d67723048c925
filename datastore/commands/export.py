"""``python -m datastore export``: a namespace into a file."""

from __future__ import annotations

import argparse
from contextlib import closing
from pathlib import Path

from datastore.commands.options import add_json_option, add_store_options, open_with, print_result

SUMMARY = "write a namespace to a file"
DESCRIPTION = (
    "Write what a namespace holds for one tokenizer to a compressed file that 'import' merges into any store, of one "
    "server or of a cluster. What is learned meanwhile may be in it or not."
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add this command's options."""
    parser.add_argument("file", metavar="FILE", help="file to write; overwritten once the new one is whole")
    add_json_option(parser)
    add_store_options(parser)


def execute(args: argparse.Namespace) -> int:
    """Export."""
    from datastore.archive import Header, write_archive
    from datastore.fingerprint import fingerprint
    from datastore.keys import SCHEMA

    path = Path(args.file)
    tokenizer, opened = open_with(args)
    with closing(opened) as store:
        count = write_archive(path, Header(SCHEMA, fingerprint(tokenizer), args.namespace), store.dump())
    size = path.stat().st_size
    print_result(
        args, {"file": args.file, "records": count, "bytes": size}, f"{count:,} records, {size:,} bytes in {args.file}"
    )
    return 0
