"""From a URL to a store.

    redis://[user:password@]host[:port][/db]     a single server; rediss:// with TLS; valkey:// and valkeys:// alike
    redis+sentinel://[user:password@]host[:port],host[:port].../service[/db]     rediss+sentinel:// with TLS
    redis+cluster://[user:password@]host[:port],host[:port]...                   rediss+cluster:// with TLS
    memory://                                    in this process

Options follow "?": ``ssl_ca_certs``, ``ssl_certfile`` and ``ssl_keyfile`` are paths, ``ssl_cert_reqs`` is "required" or
"none"; Sentinel's own ``sentinel_username`` and ``sentinel_password``.
"""

from __future__ import annotations

from typing import Any, NamedTuple
from urllib.parse import SplitResult, parse_qsl, unquote, urlsplit

from redis import Connection, ConnectionPool, SSLConnection
from redis.backoff import NoBackoff
from redis.cluster import ClusterNode, RedisCluster
from redis.retry import Retry
from redis.sentinel import Sentinel

from datastore.errors import StoreConfigError
from datastore.keys import checked
from datastore.limits import Limits
from datastore.memory_store import MemoryStore
from datastore.redis_store import RedisStore
from datastore.store import NgramStore
from datastore.topology import Cluster, OneServer, Topology

# redis-py types these only in part.
_Pool: Any = ConnectionPool
_Node: Any = ClusterNode
_RedisCluster: Any = RedisCluster
_Sentinel: Any = Sentinel

_KINDS = {"redis": "redis", "rediss": "rediss", "valkey": "redis", "valkeys": "rediss"}
_TLS_OPTIONS = {"ssl_ca_certs", "ssl_certfile", "ssl_keyfile", "ssl_cert_reqs"}
_SENTINEL_OPTIONS = {"sentinel_username", "sentinel_password"}


class _Address(NamedTuple):
    tls: bool
    kind: str
    hosts: list[tuple[str, int]]
    path: list[str]
    options: dict[str, str]
    login: dict[str, Any]


def open_store(url: str, *, namespace: str, fingerprint: str, limits: Limits | None = None) -> NgramStore:
    """The store at ``url``; nothing is connected until it is used.

    ``fingerprint`` is the tokenizer's: token ids mean nothing to another one.

    Raises:
        StoreConfigError: the URL, namespace or fingerprint is malformed.
    """
    limits = limits or Limits()
    names = checked(namespace, fingerprint, limits.bucket_bits)
    if urlsplit(url).scheme == "memory":
        return MemoryStore(namespace, fingerprint, limits)
    return RedisStore(_topology(_parsed(url), limits), names, limits)


def _parsed(url: str) -> _Address:
    parts = urlsplit(url)
    scheme, _, kind = parts.scheme.partition("+")
    if scheme not in _KINDS or kind not in ("", "sentinel", "cluster"):
        raise StoreConfigError(
            f"{_shown(parts)!r} is no URL of a store; use redis://, rediss://, valkey://, redis+sentinel://,"
            " redis+cluster:// or memory://"
        )
    tls = _KINDS[scheme] == "rediss"
    known = (_TLS_OPTIONS if tls else set()) | (_SENTINEL_OPTIONS if kind == "sentinel" else set())
    options = dict(parse_qsl(parts.query))
    if unknown := sorted(options.keys() - known):
        raise StoreConfigError(f"{_shown(parts)!r} does not know the option {unknown[0]!r}; it takes {sorted(known)}")
    login, _, hosts = parts.netloc.rpartition("@")
    user, _, password = login.partition(":")
    return _Address(
        tls,
        kind,
        [_host(host, 26379 if kind == "sentinel" else 6379, parts) for host in hosts.split(",")],
        [part for part in parts.path.split("/") if part],
        options,
        {"username": unquote(user) or None, "password": unquote(password) or None} if login else {},
    )


def _host(text: str, default: int, parts: SplitResult) -> tuple[str, int]:
    try:
        one = urlsplit("//" + text)
        return one.hostname or "localhost", one.port or default
    except ValueError as error:
        raise StoreConfigError(f"{text!r} in {_shown(parts)!r} is not host or host:port") from error


def _shown(parts: SplitResult) -> str:
    """The URL without its password."""
    login, at, hosts = parts.netloc.rpartition("@")
    return f"{parts.scheme}://{login.partition(':')[0]}{':***' if ':' in login else ''}{at}{hosts}{parts.path}"


def _topology(address: _Address, limits: Limits) -> Topology:
    common: dict[str, Any] = {
        "socket_timeout": limits.connect_s,  # of handshakes; commands bring their own
        "socket_connect_timeout": limits.connect_s,
        "retry": Retry(NoBackoff(), 0),
        "protocol": 2,
    }
    tls = {key: value for key, value in address.options.items() if key in _TLS_OPTIONS}
    if address.kind == "cluster":
        nodes = [_Node(host, port) for host, port in address.hosts]
        secure = {"ssl": True} if address.tls else {}
        return Cluster(lambda: _RedisCluster(startup_nodes=nodes, **common, **address.login, **tls, **secure))
    if address.kind == "sentinel":
        return OneServer(_sentinel_pool(address, common, tls))
    host, port = address.hosts[0]
    kind: Any = SSLConnection if address.tls else Connection
    return OneServer(
        _Pool(connection_class=kind, host=host, port=port, db=_db(address.path), **common, **address.login, **tls)
    )


def _sentinel_pool(address: _Address, common: dict[str, Any], tls: dict[str, str]) -> Any:
    if not address.path:
        raise StoreConfigError("a redis+sentinel:// URL names the service behind the hosts, as in host:26379/mymaster")
    secure: dict[str, Any] = {"ssl": True, **tls} if address.tls else {}
    login = {key.removeprefix("sentinel_"): value for key, value in address.options.items() if key in _SENTINEL_OPTIONS}
    sentinel = _Sentinel(address.hosts, sentinel_kwargs={**common, **secure, **login})
    service, *db = address.path
    return sentinel.master_for(service, db=_db(db), **common, **secure, **address.login).connection_pool


def _db(path: list[str]) -> int:
    try:
        return int(path[0]) if path else 0
    except ValueError as error:
        raise StoreConfigError(f"the database {path[0]!r} in the store's URL is not a number") from error
