"""Runs ``python -m loadtest`` as a user does: locust changes the process it is imported in."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any


def loadtest(*args: str, timeout_s: float = 90, **environment: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "loadtest", *args]
    return subprocess.run(
        command, capture_output=True, text=True, timeout=timeout_s, check=False, env=os.environ | environment
    )


def last_line(done: subprocess.CompletedProcess[str]) -> dict[str, Any]:
    assert done.stdout, done.stderr
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found
