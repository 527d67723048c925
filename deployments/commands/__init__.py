"""The command line: ``python -m deployments serve | batch | size``.

Exit codes: 0 all well, an endpoint that was told to stop included; 1 what was started did not come up, or failed; 2 a
mistake of the user's, told in one sentence on stderr; 130 interrupted before the endpoint was ready or the
batch done.
"""

from __future__ import annotations

import argparse
import importlib
import sys
from collections.abc import Sequence

from deployments.errors import ConfigError, DeploymentError
from racer.commandline import OneSentenceParser

INTERRUPTED = 130
COMMANDS = ("serve", "batch", "size")


def build_parser() -> argparse.ArgumentParser:
    """All commands with their options."""
    parser = OneSentenceParser(prog="python -m deployments", description="The engine as a service on Ray.")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name in COMMANDS:
        command = importlib.import_module(f"deployments.commands.{name}")
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
    except ConfigError as error:
        return _say(f"error: {error}", 2)
    except DeploymentError as error:
        return _say(f"error: {error}", 1)
    except KeyboardInterrupt as stop:
        return _say(str(stop) or "interrupted", INTERRUPTED)


def positive(text: str) -> int:
    """An option's value that is a whole number from 1."""
    if not text.isdigit() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not valid: it must be a whole number from 1")
    return int(text)


def _say(sentence: str, code: int) -> int:
    print(sentence, file=sys.stderr)
    return code
