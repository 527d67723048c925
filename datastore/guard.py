"""Runs a server as long as its owner lives: ``python guard.py REDIS_SERVER``, a program of its own.

The owner writes the server's configuration to this program's standard input, ends it with an empty line, and keeps the
pipe open. When it closes, whether the owner asked for that or was killed, the server is stopped. Nothing but the
standard library is imported, so that the guard costs little; and as it is one thread, Linux can be told to end the
server should the guard itself be killed.
"""

from __future__ import annotations

import contextlib
import ctypes
import itertools
import os
import signal
import subprocess
import sys
import threading

_PR_SET_PDEATHSIG = 1
_PATIENCE_S = 5.0


def main(binary: str) -> int:
    """Start ``binary``, wait for the owner's end, stop it; returns the server's exit code."""
    with open(0, "rb", buffering=0, closefd=False) as pipe:  # unbuffered: what a thread waits in has no lock
        config = b"".join(itertools.takewhile(lambda line: line != b"\n", pipe))
    server = subprocess.Popen([binary, "-"], stdin=subprocess.PIPE, preexec_fn=_end_with_parent)
    assert server.stdin is not None
    with contextlib.suppress(BrokenPipeError), server.stdin:  # one that dies at once has its own last words
        server.stdin.write(config)
    # not this thread: the kernel ends the server with the thread that started it
    threading.Thread(target=_stop_at_end_of_input, args=(server,), daemon=True).start()
    return server.wait()


def _end_with_parent() -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def _stop_at_end_of_input(server: subprocess.Popen[bytes]) -> None:
    while os.read(0, 4096):
        pass
    server.terminate()
    threading.Timer(_PATIENCE_S, server.kill).start()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
