"""``python -m datastore bench``: measure the store's layout."""

from __future__ import annotations

import argparse

from datastore.commands.options import add_json_option

SUMMARY = "measure lookups, learning and memory"
DESCRIPTION = "Measure."


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add this command's options."""
    add_json_option(parser)


def execute(args: argparse.Namespace) -> int:
    """Measure."""
    return 0
