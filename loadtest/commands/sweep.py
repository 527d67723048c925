"""``sweep``: make all runs of a grid."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from loadtest.files import make_folder
from loadtest.grid import read_grid
from loadtest.sweep import Sweep

SUMMARY = "run a grid of server settings, workloads and loads"
DESCRIPTION = (
    "Make the runs of a grid and write one JSON line for each to DIR/runs.jsonl. Started again, it goes on with those "
    "that are missing. Exit code 1 if some failed."
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of the command."""
    parser.add_argument("grid", metavar="GRID.yaml", type=Path, help="what to vary (loadtest/grids has examples)")
    parser.add_argument("--output", metavar="DIR", type=Path, help="folder of the results (default: the grid's name)")
    parser.add_argument("--dry-run", action="store_true", help="list the runs, make none")


def execute(args: argparse.Namespace) -> int:
    """Make the runs."""
    grid = read_grid(args.grid)
    folder: Path = args.output or Path(args.grid.stem)
    if not args.dry_run:
        make_folder(folder)
    sweep = Sweep(grid, folder, lambda line: print(line, file=sys.stderr, flush=True))
    if args.dry_run:
        for number, (_, runs) in enumerate(sweep.blocks, 1):
            for run in runs:
                print(f"server {number}: {run.name}" + (" (done)" if run.name in sweep.done else ""))
        return 0
    try:
        sweep.carry_out()
    except KeyboardInterrupt:
        left = sweep.total - len(sweep.done)
        print(f"interrupted: {left} of {sweep.total} runs are missing; the same command goes on", file=sys.stderr)
        return 130
    print(folder / "runs.jsonl")
    return 1 if sweep.failed else 0
