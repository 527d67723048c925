"""``python -m datastore import``: a file into a namespace."""

from __future__ import annotations

import argparse
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

from datastore.commands.options import add_json_option, add_store_options, open_with, print_result
from datastore.errors import InputError

if TYPE_CHECKING:
    from datastore.archive import Header

SUMMARY = "merge an exported file into a namespace"
DESCRIPTION = (
    "Merge a file written by 'export' into a namespace: counts are added. The file is checked whole before anything "
    "of it is merged."
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add this command's options."""
    parser.add_argument("file", metavar="FILE", help="file to read")
    add_json_option(parser)
    add_store_options(parser)


def execute(args: argparse.Namespace) -> int:
    """Import."""
    from datastore.archive import Archive
    from datastore.fingerprint import fingerprint

    archive = Archive(Path(args.file))
    tokenizer, opened = open_with(args)
    with closing(opened) as store:
        _check_header(args, archive.header, fingerprint(tokenizer))
        count = archive.check()
        store.load(archive)
    print_result(args, {"file": args.file, "records": count}, f"{count:,} records merged")
    return 0


def _check_header(args: argparse.Namespace, header: Header, ours: str) -> None:
    """Refuse what was made with another tokenizer than ``ours``, or by another version of the layout."""
    from datastore.keys import SCHEMA

    if header.fingerprint != ours:
        raise InputError(
            f"{args.file}: made with another tokenizer ({header.fingerprint}, not {ours}), whose token ids mean other "
            "text; name with --tokenizer the one it was made with"
        )
    if header.schema != SCHEMA:
        raise InputError(
            f"{args.file}: its records have schema {header.schema}, this version takes {SCHEMA}; export them again "
            "with this version"
        )
