"""Commands to Redis under a deadline, on connections that never carry one caller's reply to another."""

from __future__ import annotations

import threading
import time
from collections.abc import Generator, Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import groupby
from typing import Any, NamedTuple

import numpy as np
import redis
from numpy.typing import NDArray
from redis.exceptions import NoScriptError, RedisClusterException

from datastore.errors import StoreTimeoutError, StoreUnavailableError
from datastore.scripts import Script
from datastore.topology import Pool, Topology

Command = tuple[Any, ...]

_STALE = ("READONLY", "MOVED", "ASK", "CLUSTERDOWN", "TRYAGAIN", "LOADING", "MASTERDOWN", "UNBLOCKED")
"""Replies of a server that is not, or no longer, the right one to ask."""

_WINDOW = 2
"""Commands of one stream that a server has at once. More would keep it from others' lookups for longer."""


class Call(NamedTuple):
    """A packed script call, a key that says where to send it, and which rows of the question it asks (int64 [n])."""

    key: bytes
    packed: bytes
    rows: NDArray[np.int64]


class Wire:
    """Sends batches of commands, each batch in one round trip to each server concerned.

    A connection on which anything but a whole, timely reply happened is closed before anyone else can have it.
    """

    def __init__(self, topology: Topology, connections: int, pool_wait_s: float) -> None:
        self.topology = topology
        self._free = threading.BoundedSemaphore(connections)
        self._pool_wait_s = pool_wait_s

    def ask(self, calls: Sequence[Call], script: Script, deadline_s: float) -> list[Any]:
        """Replies to calls of ``script``, which a server that lacks it is taught.

        Raises:
            StoreTimeoutError, StoreUnavailableError: a server did not answer whole, or is no longer the one to ask.
        """
        end = time.monotonic() + deadline_s
        replies: list[Any] = [None] * len(calls)
        with self._translated():
            routes: dict[int, tuple[Pool, list[int]]] = {}
            for i, call in enumerate(calls):
                pool = self.topology.pool_of(call.key)
                routes.setdefault(id(pool), (pool, []))[1].append(i)
            with self._connections([pool for pool, _ in routes.values()], end) as connections:
                sent = list(zip(connections, (places for _, places in routes.values()), strict=True))
                for connection, places in sent:
                    _send_packed(connection, [calls[i].packed for i in places])
                for connection, places in sent:
                    _collect(connection, places, replies, end)
                for connection, places in sent:
                    if lacking := [i for i in places if isinstance(replies[i], NoScriptError)]:
                        load = connection.pack_command(b"SCRIPT", b"LOAD", script.source)
                        _send_packed(connection, [*load, *(calls[i].packed for i in lacking)])
                        _raise_first(_receive(connection, 1, end))
                        _collect(connection, lacking, replies, end)
            _raise_first(replies)
        return replies

    def stream(self, keyed: Iterable[tuple[bytes, Command]], script: Script, deadline_s: float) -> None:
        """Send commands one behind the other, each to the server of its key, and wait for all of them.

        The next is on its way while one is carried out. ``deadline_s`` is for each. A server is taught ``script`` if it
        lacks it.

        Raises:
            StoreTimeoutError, StoreUnavailableError: for the first command that failed; those before it are done.
        """
        with self._translated():
            for pool, group in groupby(keyed, lambda one: self.topology.pool_of(one[0])):
                with self._connections([pool], time.monotonic() + deadline_s) as (connection,):
                    _stream_to(connection, (command for _, command in group), script, deadline_s)

    def on(self, pool: Pool, commands: Sequence[Command], deadline_s: float) -> list[Any]:
        """Replies of the server behind ``pool``. Raises as :meth:`ask` does."""
        end = time.monotonic() + deadline_s
        with self._translated(), self._connections([pool], end) as (connection,):
            _send(connection, commands)
            replies = _receive(connection, len(commands), end)
            _raise_first(replies)
        return replies

    def call(self, key: bytes, command: Command, deadline_s: float) -> Any:
        """Reply of the server that holds ``key``. Raises as :meth:`ask` does."""
        with self._translated():
            pool = self.topology.pool_of(key)
        return self.on(pool, [command], deadline_s)[0]

    def pools(self) -> Sequence[Pool]:
        """One for each server that holds keys. Raises as :meth:`ask` does."""
        with self._translated():
            return self.topology.pools()

    def close(self) -> None:
        """Close all connections."""
        self.topology.close()

    @contextmanager
    def _translated(self) -> Generator[None]:
        try:
            yield
        except redis.TimeoutError as error:
            raise StoreTimeoutError(str(error)) from error
        except (redis.RedisError, RedisClusterException, OSError) as error:
            if not isinstance(error, redis.ResponseError) or _is_stale(error):
                self.topology.forget()
            raise StoreUnavailableError(str(error) or type(error).__name__) from error

    @contextmanager
    def _connections(self, pools: Sequence[Pool], end: float) -> Generator[list[Any]]:
        """A connection of each pool; all are closed if the block raises."""
        if not self._free.acquire(timeout=max(0.0, min(self._pool_wait_s, end - time.monotonic()))):
            raise redis.TimeoutError("every connection to the store is in use")
        taken: list[tuple[Pool, Any]] = []
        try:
            for pool in pools:
                taken.append((pool, pool.get_connection()))
            yield [connection for _, connection in taken]
        except BaseException:
            for _, connection in taken:
                connection.disconnect()
            raise
        finally:
            for pool, connection in taken:
                pool.release(connection)
            self._free.release()


def _is_stale(error: redis.RedisError) -> bool:
    return any(word in str(error) for word in _STALE)


def _raise_first(replies: Iterable[Any]) -> None:
    for reply in replies:
        if isinstance(reply, redis.ResponseError):
            raise reply


def _send(connection: Any, commands: Sequence[Command]) -> None:
    _send_packed(connection, [part for command in commands for part in connection.pack_command(*command)])


def _send_packed(connection: Any, packed: Sequence[bytes]) -> None:
    connection.send_packed_command([b"".join(packed)], check_health=False)


def _receive(connection: Any, count: int, end: float) -> list[Any]:
    """``count`` replies; the server's errors among them are returned, not raised."""
    replies: list[Any] = []
    for _ in range(count):
        left = end - time.monotonic()
        if left <= 0:
            raise redis.TimeoutError("the store did not answer in time")
        try:
            replies.append(connection.read_response(disable_decoding=True, timeout=left))
        except redis.ResponseError as error:
            replies.append(error)
    return replies


def _collect(connection: Any, places: Sequence[int], replies: list[Any], end: float) -> None:
    for place, reply in zip(places, _receive(connection, len(places), end), strict=True):
        replies[place] = reply


def _stream_to(connection: Any, commands: Iterator[Command], script: Script, deadline_s: float) -> None:
    def receive() -> Any:
        return _receive(connection, 1, time.monotonic() + deadline_s)[0]

    first = next(commands)
    _send(connection, [first])
    reply = receive()
    if isinstance(reply, NoScriptError):
        _send(connection, [(b"SCRIPT", b"LOAD", script.source), first])
        _raise_first([receive()])
        reply = receive()
    _raise_first([reply])
    under_way = 0
    for command in commands:
        _send(connection, [command])
        under_way += 1
        if under_way == _WINDOW:
            _raise_first([receive()])
            under_way -= 1
    for _ in range(under_way):
        _raise_first([receive()])
