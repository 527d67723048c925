"""The command line: ``python -m k8s generate`` and ``python -m k8s check``.

Exit codes: 0 all well; 1 a check has found something; 2 a mistake of the user's, told in one sentence on stderr.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from k8s.checks import problems
from k8s.generate import ROOT, write
from k8s.render import RenderError, externals, render
from racer.commandline import OneSentenceParser

OVERLAYS = ("dev", "gpu", "multi-gpu", "batch")


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command line; returns the exit code."""
    parser = OneSentenceParser(prog="python -m k8s", description="The manifests' own tools.")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    commands.add_parser("generate", help="write the generated parts of the manifests")
    check = commands.add_parser("check", help="check that an overlay's objects fit each other")
    check.add_argument("folder", nargs="*", type=Path, help="folders with a kustomization.yaml (default: all overlays)")
    try:
        args = parser.parse_args(argv)
    except SystemExit as stop:  # --help, or a wrong option
        return int(stop.code or 0)
    try:
        return _generate() if args.command == "generate" else _check(args)
    except RenderError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2


def _generate() -> int:
    for path in write():
        print(path.relative_to(ROOT))
    return 0


def _check(args: argparse.Namespace) -> int:
    wrong = False
    for folder in args.folder or [ROOT / "overlays" / name for name in OVERLAYS]:
        found = problems(render(folder), externals(folder))
        wrong = wrong or bool(found)
        for problem in found or ["nothing is wrong"]:
            print(f"{folder.name}: {problem}")
    return int(wrong)
