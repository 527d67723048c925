"""The command line: ``python -m racer generate | bench | run``.

Exit codes: 0 all well; 1 ``bench`` found a mode that does not decode plain decoding's tokens, or the model computes no
tokens at all; 2 a mistake of the user's, told in one sentence on stderr; 130 interrupted; 141 nobody reads the output
any more.

What loads torch or transformers, which takes seconds, is imported inside the functions that use it: help, and mistakes
in options or files, are told at once.
"""

from __future__ import annotations

import argparse
import io
import os
import sys
from collections.abc import Sequence

from racer.commandline import OneSentenceParser
from racer.commands import bench, generate, run
from racer.commands.options import with_flags
from racer.errors import RacerError, UserError

INTERRUPTED = 130
BROKEN_PIPE = 141


def build_parser() -> argparse.ArgumentParser:
    """All commands with their options."""
    parser = OneSentenceParser(
        prog="python -m racer", description="Decode with drafts: the model's own tokens, faster."
    )
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for command in (generate, bench, run):
        name = command.__name__.rpartition(".")[2]
        sub = commands.add_parser(name, help=command.SUMMARY, description=command.DESCRIPTION)
        command.add_arguments(sub)
        sub.set_defaults(execute=command.execute)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command line; returns the exit code."""
    if isinstance(sys.stdout, io.TextIOWrapper):  # any text may come: the locale's encoding may lack its characters
        sys.stdout.reconfigure(encoding="utf-8", errors="backslashreplace")
    try:
        args = build_parser().parse_args(argv)
    except SystemExit as stop:  # --help, or a wrong option
        return int(stop.code or 0)
    try:
        code: int = args.execute(args)
        sys.stdout.flush()
        return code
    except UserError as error:
        return _say(with_flags(str(error)), 2)
    except RacerError as error:
        return _say(str(error), 1)
    except KeyboardInterrupt as stop:
        return _say(str(stop) or "interrupted", INTERRUPTED)
    except BrokenPipeError:
        _abandon_stdout()
        return BROKEN_PIPE
    except OSError as error:  # only stdout is left: files are dealt with where they are opened
        _abandon_stdout()
        return _say(f"the output cannot be written ({error.strerror or error})", 2)


def _say(sentence: str, code: int) -> int:
    print(sentence if code == INTERRUPTED else f"error: {sentence}", file=sys.stderr)
    return code


def _abandon_stdout() -> None:
    """Let the interpreter's last flush go nowhere: it would complain about the same fault again."""
    try:
        devnull = os.open(os.devnull, os.O_WRONLY)
        os.dup2(devnull, sys.stdout.fileno())
        os.close(devnull)
    except (OSError, ValueError):  # stdout is no file, as under a test
        pass
