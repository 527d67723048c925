"""Runs ``python -m loadtest`` as a user does, in a process of its own: locust changes the one it is imported in.

Commands that make no load need none: :func:`here` spares its start.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import subprocess
import sys
from typing import Any

from loadtest.commands import main


def loadtest(*args: str, timeout_s: float = 90, **environment: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "loadtest", *args]
    return subprocess.run(
        command, capture_output=True, text=True, timeout=timeout_s, check=False, env=os.environ | environment
    )


def here(*args: str) -> subprocess.CompletedProcess[str]:
    """The same in this process, for what ends before a load is made."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = main(args)
    return subprocess.CompletedProcess(args, code, out.getvalue(), err.getvalue())


def last_line(done: subprocess.CompletedProcess[str]) -> dict[str, Any]:
    assert done.stdout, done.stderr
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found
