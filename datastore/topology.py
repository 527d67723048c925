"""Which server holds a key: one server, the primary that Sentinel names, or the masters of a cluster."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from redis.cluster import RedisCluster

Pool = Any
"""A ``redis.ConnectionPool`` or one of its kin: redis types its methods only in part."""


class Topology(Protocol):
    """Finds the pool of connections for a key, and forgets what it knows when that turns out wrong.

    ``by_slot``: a script may only touch keys of one slot.
    """

    by_slot: bool

    def pool_of(self, key: bytes) -> Pool:
        """Connections to the server that holds ``key``. Raises redis' errors where there is none."""
        ...

    def pools(self) -> Sequence[Pool]:
        """One for each server that holds keys."""
        ...

    def forget(self) -> None:
        """Connect anew from now on: a server moved, was demoted, or is gone."""
        ...

    def close(self) -> None:
        """Close all connections, those in use too."""
        ...


class OneServer:
    """A single server, or the one that Sentinel names: its pool asks anew for each connection it makes."""

    by_slot = False

    def __init__(self, pool: Pool) -> None:
        self._pool = pool

    def pool_of(self, key: bytes) -> Pool:
        """See :class:`Topology`."""
        return self._pool

    def pools(self) -> Sequence[Pool]:
        """See :class:`Topology`."""
        return [self._pool]

    def forget(self) -> None:
        """See :class:`Topology`."""
        self._pool.disconnect(inuse_connections=False)

    def close(self) -> None:
        """See :class:`Topology`."""
        self._pool.disconnect()


class Cluster:
    """The masters of a cluster. Its map of slots is fetched on first use, and again after :meth:`forget`."""

    by_slot = True

    def __init__(self, connect: Callable[[], RedisCluster]) -> None:
        self._connect = connect
        self._cluster: Any = None
        self._lock = threading.Lock()

    def _current(self) -> Any:
        with self._lock:
            if self._cluster is None:
                self._cluster = self._connect()
            return self._cluster

    def pool_of(self, key: bytes) -> Pool:
        """See :class:`Topology`."""
        cluster = self._current()
        return cluster.get_redis_connection(cluster.get_node_from_key(key)).connection_pool

    def pools(self) -> Sequence[Pool]:
        """See :class:`Topology`."""
        cluster = self._current()
        return [cluster.get_redis_connection(node).connection_pool for node in cluster.get_primaries()]

    def forget(self) -> None:
        """See :class:`Topology`."""
        with self._lock:
            cluster, self._cluster = self._cluster, None
        if cluster is not None:
            cluster.close()

    def close(self) -> None:
        """See :class:`Topology`."""
        self.forget()
