"""Servers of the store's tests. One of each kind serves the whole session; tests keep apart by namespace.

No test flushes a server. A test that stops, kills or reconfigures one asks for ``own_redis``, its own.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Generator, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from datastore.client import StoreClient
from datastore.connect import open_store
from tests.datastore.faulty import FAST, LIMITS, TEXT, Client
from tests.datastore.servers import DEFAULT, Server, certificate, free_ports, join_cluster, wait_for

ACL_USER, ACL_PASSWORD = "replica", "s3cret@/:"
_namespaces = itertools.count(1)


@dataclass(frozen=True)
class Pair:
    """A primary with a replica, watched by one Sentinel under the name ``mymaster``."""

    primary: Server
    replica: Server
    sentinel: Server


ServerOf = Callable[[str, str], "Server | list[Server] | Pair"]
Starter = Callable[[Path, str], AbstractContextManager["Server | list[Server] | Pair"]]


@pytest.fixture
def namespace() -> str:
    """A namespace that no other test of this session uses."""
    return f"test-{next(_namespaces)}"


@pytest.fixture(scope="session")
def server_of(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerOf]:
    """``server_of(kind, build)``: servers of a kind ("single", "acl", "cluster", "sentinel"), started on demand."""
    starters: dict[str, Starter] = {"single": _single, "acl": _acl, "cluster": cluster, "sentinel": _pair}
    running: dict[tuple[str, str], Server | list[Server] | Pair] = {}
    with ExitStack() as stack:

        def get(kind: str, build: str) -> Server | list[Server] | Pair:
            if (kind, build) not in running:
                folder = tmp_path_factory.mktemp(kind)
                running[kind, build] = stack.enter_context(starters[kind](folder, build))
            return running[kind, build]

        yield get


@pytest.fixture(scope="session")
def redis_single(server_of: ServerOf) -> Server:
    server = server_of("single", DEFAULT)
    assert isinstance(server, Server)
    return server


@pytest.fixture(scope="session")
def redis_tls(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """TLS only; its authority is ``folder/cert.pem``."""
    folder = tmp_path_factory.mktemp("tls")
    server = Server(folder, free_ports(1)[0], *certificate(folder), tls=True)
    server.start()
    yield server
    server.kill()


@contextmanager
def _single(folder: Path, build: str) -> Generator[Server]:
    server = Server(folder, free_ports(1)[0], build=build)
    try:
        server.start()
        yield server
    finally:
        server.kill()


def documented_rights(*, of_a_cluster: bool = False) -> list[str]:
    """What docs/datastore.md says that an ACL user needs."""
    text = " ".join((Path(__file__).parents[2] / "docs" / "datastore.md").read_text(encoding="utf-8").split())
    rights = re.search(r"An ACL user needs `([^`]+)`", text)
    more = re.search(r"in a cluster also `([^`]+)`", text)
    assert rights and more
    return rights[1].split() + (more[1].split() if of_a_cluster else [])


@contextmanager
def _acl(folder: Path, build: str) -> Generator[Server]:
    """Nobody gets in but the user ``ACL_USER``, with the rights docs/datastore.md asks for and no others."""
    user = [ACL_USER, "on", f">{ACL_PASSWORD}", "resetchannels", "-@all", *documented_rights()]
    options = ("--user", "default", "off", "--user", *user)
    server = Server(folder, free_ports(1)[0], *options, build=build)
    try:
        server.start()
        yield server
    finally:
        server.kill()


@pytest.fixture(scope="session")
def redis_acl(server_of: ServerOf) -> Server:
    server = server_of("acl", DEFAULT)
    assert isinstance(server, Server)
    return server


@contextmanager
def cluster(folder: Path, build: str = DEFAULT) -> Generator[list[Server]]:
    """Three masters, a third of the slots each."""
    options = ("--cluster-enabled", "yes", "--cluster-node-timeout", "2000")
    nodes = [Server(folder / str(port), port, *options, build=build) for port in free_ports(3)]
    try:
        for node in nodes:
            node.start()
        join_cluster(nodes)
        yield nodes
    finally:
        for node in nodes:
            node.kill()


@pytest.fixture(scope="session")
def redis_cluster(server_of: ServerOf) -> list[Server]:
    nodes = server_of("cluster", DEFAULT)
    assert isinstance(nodes, list)
    return nodes


@contextmanager
def _pair(folder: Path, build: str = DEFAULT) -> Generator[Pair]:
    first, second, third = free_ports(3)
    watch = f"sentinel monitor mymaster 127.0.0.1 {first} 1\nsentinel failover-timeout mymaster 2000\n"
    follow = ("--replicaof", "127.0.0.1", str(first), "--repl-diskless-sync-delay", "0")
    pair = Pair(
        Server(folder / "primary", first, build=build),
        Server(folder / "replica", second, *follow, build=build),
        Server(folder / "sentinel", third, sentinel_config=watch, build=build),
    )
    try:
        for server in (pair.primary, pair.replica):
            server.start()
        wait_for(lambda: pair.replica.client().info("replication")["master_link_status"] == "up", "replication")
        pair.sentinel.start()
        wait_for(lambda: len(pair.sentinel.client().sentinel_slaves("mymaster")) == 1, "Sentinel to find the replica")
        yield pair
    finally:
        for server in (pair.sentinel, pair.replica, pair.primary):
            server.kill()


@pytest.fixture(scope="session")
def redis_sentinel(server_of: ServerOf) -> Pair:
    pair = server_of("sentinel", DEFAULT)
    assert isinstance(pair, Pair)
    return pair


@pytest.fixture
def redis_pair(tmp_path: Path) -> Iterator[Pair]:
    """A pair of a test's own, since a failover changes it."""
    with _pair(tmp_path) as pair:
        yield pair


@pytest.fixture
def own_redis(tmp_path: Path) -> Iterator[Callable[..., Server]]:
    """``own_redis(*options)``: a server of the test's own, started, to be stopped, killed or filled."""
    started: list[Server] = []

    def start(*options: str) -> Server:
        server = Server(tmp_path / f"own-{len(started)}", free_ports(1)[0], *options)
        started.append(server)
        server.start()
        return server

    yield start
    for server in started:
        server.kill()


@pytest.fixture
def client() -> Iterator[Client]:
    """``client(url)``: a client with short waits, that has learned ``TEXT`` if the server let it."""
    made: list[StoreClient] = []

    def make(url: str) -> StoreClient:
        made.append(StoreClient(open_store(url, namespace="faults", fingerprint="abcd", limits=LIMITS), FAST))
        made[-1].learn(TEXT)
        made[-1].flush()
        return made[-1]

    yield make
    for one in made:
        one.close(0.5)
