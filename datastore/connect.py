"""From a URL (:mod:`datastore.address`) to a store."""

from __future__ import annotations

from typing import Any

from redis import Connection, ConnectionPool, SSLConnection
from redis.backoff import NoBackoff
from redis.cluster import ClusterNode, RedisCluster
from redis.retry import Retry
from redis.sentinel import Sentinel

from datastore.address import Address, parse
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


def open_store(url: str, *, namespace: str, fingerprint: str, limits: Limits | None = None) -> NgramStore:
    """The store at ``url``; nothing is connected until it is used.

    ``fingerprint`` is the tokenizer's: token ids mean nothing to another one.

    Raises:
        StoreConfigError: the URL, namespace or fingerprint is malformed.
    """
    limits = limits or Limits()
    names = checked(namespace, fingerprint, limits.bucket_bits)
    address = parse(url)
    if address.kind == "memory":
        return MemoryStore(namespace, fingerprint, limits)
    return RedisStore(_topology(address, limits), names, limits)


def _topology(address: Address, limits: Limits) -> Topology:
    options = _options(limits, address.login) | address.tls_options
    secure: dict[str, Any] = {"ssl": True} if address.tls else {}
    if address.kind == "cluster":
        nodes = [_Node(host, port) for host, port in address.hosts]
        return Cluster(lambda: _RedisCluster(startup_nodes=nodes, **options | secure))
    if address.kind == "sentinel":
        of_sentinel = _options(limits, address.sentinel_login) | address.tls_options | secure
        sentinel = _Sentinel(address.hosts, sentinel_kwargs=of_sentinel)
        return OneServer(sentinel.master_for(address.service, db=address.db, **options | secure).connection_pool)
    host, port = address.hosts[0]
    kind: Any = SSLConnection if address.tls else Connection
    return OneServer(_Pool(connection_class=kind, host=host, port=port, db=address.db, **options))


def _options(limits: Limits, login: dict[str, Any]) -> dict[str, Any]:
    """What redis-py is told about each connection of a user."""
    common: dict[str, Any] = {
        "socket_timeout": limits.connect_s,  # of handshakes; commands bring their own
        "socket_connect_timeout": limits.connect_s,
        "retry": Retry(NoBackoff(), 0),
        "protocol": 2,
    }
    if login:  # no CLIENT SETINFO, which an ACL user need not be allowed; AUTH is reply enough to begin with
        common["driver_info"] = None
    return common | login
