"""``report``: a sweep's runs as one HTML file."""

from __future__ import annotations

import argparse
from pathlib import Path

from loadtest.errors import UserError
from loadtest.files import make_folder
from loadtest.report.page import write_report
from loadtest.runs import RUNS, read_sweeps

SUMMARY = "make a report of a sweep's runs"
DESCRIPTION = (
    "Write report.html, which needs no other file, and its charts as SVG files, from the runs in DIR/runs.jsonl."
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of the command."""
    parser.add_argument(
        "folder",
        metavar="DIR",
        type=Path,
        nargs="+",
        help="folders of sweeps; several are put together, with the first one's baseline",
    )
    parser.add_argument("--output", metavar="DIR", type=Path, help="where to write (default: the first folder)")
    parser.add_argument("--title", default="Load test", help="title of the page")


def execute(args: argparse.Namespace) -> int:
    """Write the report."""
    records = read_sweeps(args.folder)
    if not records:
        raise UserError(f"{args.folder[0] / RUNS} holds no runs; make some with: python -m loadtest sweep GRID.yaml")
    output: Path = args.output or args.folder[0]
    make_folder(output)
    print(write_report(records, output, args.title))
    return 0
