"""All tests in two processes of pytest: those with clusters, which mostly wait, beside those that compute.

    python -m tests [options of pytest]

Where options name files or folders, one process runs these. What the second process prints comes after the first's.
Exit code: 0 if both have passed, 5 if neither found a test, else that of the first that failed.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

from racer.paths import cache_path

ROOT = Path(__file__).parent
WITH_CLUSTERS = ("deployments", "k8s", "loadtest")
PREPARE = "from racer import Engine, EngineConfig; Engine(EngineConfig(model='demo'))"
_NONE_FOUND = 5
_TAKE_A_VALUE = ("-k", "-m", "-p", "-o", "-c")


def halves() -> tuple[list[str], list[str]]:
    """Folders and files of tests: those with clusters, and all others."""
    found = [
        path for path in sorted(ROOT.iterdir()) if path.name.startswith("test_") or (path / "__init__.py").exists()
    ]
    first = [str(path) for path in found if path.name in WITH_CLUSTERS]
    return first, [str(path) for path in found if path.name not in WITH_CLUSTERS]


def names_a_path(options: list[str]) -> bool:
    """Some option is the path of tests."""
    values = {i + 1 for i, option in enumerate(options) if option in _TAKE_A_VALUE}
    paths = [option.partition("::")[0] for i, option in enumerate(options) if i not in values]
    return any(path and not path.startswith("-") and Path(path).exists() for path in paths)


def ended(process: subprocess.Popen[bytes]) -> int:
    """Its exit code. Ctrl-C reaches it as well, and it tidies up: it is waited for."""
    while True:
        try:
            return process.wait()
        except KeyboardInterrupt:
            continue


def main(options: list[str]) -> int:
    """Run them."""
    pytest = [sys.executable, "-m", "pytest", *options]
    if names_a_path(options):
        return ended(subprocess.Popen(pytest))
    if not any(cache_path().glob("prior-*.npz")):
        # Minutes, once. Beside the other half it takes far longer, and tests that wait for it have limits of time.
        subprocess.run([sys.executable, "-c", PREPARE], check=False)
    first, second = halves()
    # One thread: a step of several waits for all of them at each of its barriers, while clusters take their cores.
    # Yielding: their tests have limits of time.
    environment = os.environ | {"OMP_NUM_THREADS": "1", "TEST_PORTS": "21300"}
    apart = ["-o", "cache_dir=.pytest_cache/second"]
    with tempfile.TemporaryFile() as output:
        command = ["nice", "-n", "5", *pytest, *apart, *second]
        processes = [
            subprocess.Popen([*pytest, *first]),
            subprocess.Popen(command, env=environment, stdout=output, stderr=subprocess.STDOUT),
        ]

        def terminate(*_: object) -> None:
            for process in processes:
                process.terminate()

        signal.signal(signal.SIGTERM, terminate)
        codes = [ended(process) for process in processes]
        output.seek(0)
        shutil.copyfileobj(output, sys.stdout.buffer)
        sys.stdout.buffer.flush()
    failed = [code for code in codes if code not in (0, _NONE_FOUND)]
    return failed[0] if failed else min(codes)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
