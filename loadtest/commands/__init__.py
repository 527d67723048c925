"""The command line: ``python -m loadtest run | workload | sweep | report | plan``.

Exit codes: 0 all well, and given limits held; 1 the limits did not hold; 2 a mistake of the user's, or a server that
does not answer, told in one sentence on stderr; 130 interrupted: what was measured is kept.
"""

from __future__ import annotations

import argparse
import importlib
import sys
from collections.abc import Sequence

from loadtest.errors import LoadTestError
from racer.commandline import OneSentenceParser

INTERRUPTED = 130
COMMANDS = ("run", "workload", "sweep", "report", "plan")


def build_parser() -> argparse.ArgumentParser:
    """All commands with their options."""
    parser = OneSentenceParser(prog="python -m loadtest", description="Load tests and cost experiments over HTTP.")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name in COMMANDS:
        command = importlib.import_module(f"loadtest.commands.{name}")
        sub = commands.add_parser(name, help=command.SUMMARY, description=command.DESCRIPTION)
        command.add_arguments(sub)
        sub.set_defaults(execute=command.execute)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command line; returns the exit code."""
    try:
        args = build_parser().parse_args(argv)
    except SystemExit as stop:  # --help, or a wrong option
        return int(stop.code or 0)
    try:
        code: int = args.execute(args)
        return code
    except LoadTestError as error:
        return _say(f"error: {error}", 2)
    except KeyboardInterrupt:
        return _say("interrupted", INTERRUPTED)


def _say(sentence: str, code: int) -> int:
    print(sentence, file=sys.stderr)
    return code
