"""The command line: ``python -m datastore ingest | stats | lookup | purge | export | import | bench``.

Exit codes: 0 all well; 2 a mistake or a server that cannot be used, told in one sentence on stderr; 130 interrupted;
141 nobody reads the output any more.
"""

from __future__ import annotations

import argparse
import importlib
import os
import sys
from collections.abc import Sequence

from datastore.errors import StoreError
from racer.commandline import OneSentenceParser

INTERRUPTED = 130
BROKEN_PIPE = 141
COMMANDS = {
    "ingest": "ingest",
    "stats": "stats",
    "lookup": "lookup",
    "purge": "purge",
    "export": "export",
    "import": "import_",
    "bench": "bench",
}
"""Name of each command, and the module that runs it."""


def build_parser() -> argparse.ArgumentParser:
    """All commands with their options."""
    parser = OneSentenceParser(prog="python -m datastore", description="A store of n-grams that many engines share.")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name, module in COMMANDS.items():
        command = importlib.import_module(f"datastore.commands.{module}")
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
        sys.stdout.flush()
        return code
    except StoreError as error:
        return _say(f"error: {error}", 2)
    except KeyboardInterrupt:
        return _say("interrupted", INTERRUPTED)
    except BrokenPipeError:
        _abandon_stdout()
        return BROKEN_PIPE
    except OSError as error:  # only stdout is left: files are dealt with where they are opened
        _abandon_stdout()
        return _say(f"error: the output cannot be written ({error.strerror or error})", 2)


def _say(sentence: str, code: int) -> int:
    print(sentence, file=sys.stderr)
    return code


def _abandon_stdout() -> None:
    """Let the interpreter's last flush go nowhere: it would complain about the same fault again."""
    try:
        devnull = os.open(os.devnull, os.O_WRONLY)
        os.dup2(devnull, sys.stdout.fileno())
        os.close(devnull)
    except (OSError, ValueError):  # stdout is no file, as under a test
        pass
