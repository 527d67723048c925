"""Runs all tests as two processes of pytest: those with Ray's clusters, which mostly wait, beside those that compute.

    python -m tests [options of pytest]

Where options name files or folders, one process runs these. What the second process prints comes after the first's.
Exit code: 0 if both have passed, 5 if neither found a test, else that of the first that failed.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parent
WITH_CLUSTERS = ("deployments", "k8s", "loadtest")
_NONE_FOUND = 5


def halves() -> tuple[list[str], list[str]]:
    """The folders and files of tests, for either process."""
    found = [path for path in sorted(ROOT.iterdir()) if path.is_dir() or path.name.startswith("test_")]
    found = [path for path in found if path.name != "__pycache__"]
    return (
        [str(path) for path in found if path.name in WITH_CLUSTERS],
        [str(path) for path in found if path.name not in WITH_CLUSTERS],
    )


def pytest(*arguments: str) -> list[str]:
    """The command."""
    return [sys.executable, "-m", "pytest", *arguments]


def main(options: list[str]) -> int:
    """Run them."""
    if any(Path(option.partition("::")[0]).exists() for option in options):
        return subprocess.run(pytest(*options), check=False).returncode
    first, second = halves()
    with tempfile.TemporaryFile("w+") as output:
        with subprocess.Popen(pytest(*options, *second), stdout=output, stderr=subprocess.STDOUT) as beside:
            codes = [subprocess.run(pytest(*options, *first), check=False).returncode, beside.wait()]
        output.seek(0)
        print(output.read(), end="")
    failed = [code for code in codes if code not in (0, _NONE_FOUND)]
    return failed[0] if failed else min(codes)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
