"""Commands to Redis under a deadline, on connections that never carry one caller's reply to another."""

from __future__ import annotations

import threading
import time
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from typing import Any

import redis
from redis.exceptions import NoScriptError

from datastore.errors import StoreTimeoutError, StoreUnavailableError
from datastore.scripts import Script
from datastore.topology import Pool, Topology

Command = tuple[Any, ...]

_STALE = ("READONLY", "MOVED", "ASK", "CLUSTERDOWN", "TRYAGAIN", "LOADING", "MASTERDOWN", "UNBLOCKED")
"""Replies of a server that is not, or no longer, the right one to ask."""


class Wire:
    """Sends batches of commands, each batch in one round trip to each server concerned.

    A connection on which anything but a whole, timely reply happened is closed before anyone else can have it.
    """

    def __init__(self, topology: Topology, connections: int, pool_wait_s: float) -> None:
        self.topology = topology
        self._free = threading.BoundedSemaphore(connections)
        self._pool_wait_s = pool_wait_s

    def call(self, keyed: Sequence[tuple[bytes, Command]], script: Script | None, deadline_s: float) -> list[Any]:
        """Replies to commands, each sent to the server of its key; the server is taught ``script`` if it lacks it.

        Raises:
            StoreTimeoutError, StoreUnavailableError: for the first command that failed.
        """
        end = time.monotonic() + deadline_s
        with self._translated():
            groups: dict[int, tuple[Pool, list[int]]] = {}
            for i, (key, _) in enumerate(keyed):
                pool = self.topology.pool_of(key)
                groups.setdefault(id(pool), (pool, []))[1].append(i)
            replies: list[Any] = [None] * len(keyed)
            with self._connections([pool for pool, _ in groups.values()], end) as connections:
                sent = list(zip(connections, (places for _, places in groups.values()), strict=True))
                for connection, places in sent:
                    _send(connection, [keyed[i][1] for i in places])
                for connection, places in sent:
                    answers = _receive(connection, len(places), end)
                    if script is not None and any(isinstance(one, NoScriptError) for one in answers):
                        answers = _again(connection, script, [keyed[i][1] for i in places], answers, end)
                    for i, answer in zip(places, answers, strict=True):
                        replies[i] = answer
            _raise_first(replies)
        return replies

    def on(self, pool: Pool, commands: Sequence[Command], deadline_s: float) -> list[Any]:
        """Replies of the server behind ``pool``. Raises as :meth:`call` does."""
        end = time.monotonic() + deadline_s
        with self._translated(), self._connections([pool], end) as (connection,):
            _send(connection, commands)
            replies = _receive(connection, len(commands), end)
            _raise_first(replies)
        return replies

    def close(self) -> None:
        """Close all connections."""
        self.topology.close()

    @contextmanager
    def _translated(self) -> Generator[None]:
        try:
            yield
        except redis.TimeoutError as error:
            raise StoreTimeoutError(str(error)) from error
        except (redis.RedisError, OSError) as error:
            if not isinstance(error, redis.ResponseError) or any(word in str(error) for word in _STALE):
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


def _raise_first(replies: Sequence[Any]) -> None:
    for reply in replies:
        if isinstance(reply, redis.ResponseError):
            raise reply


def _send(connection: Any, commands: Sequence[Command]) -> None:
    packed: list[Any] = []
    for command in commands:
        packed += connection.pack_command(*command)
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


def _again(
    connection: Any, script: Script, commands: Sequence[Command], answers: Sequence[Any], end: float
) -> list[Any]:
    """The answers, those that lacked the script asked for once more behind it."""
    lacking = [i for i, answer in enumerate(answers) if isinstance(answer, NoScriptError)]
    _send(connection, [(b"SCRIPT", b"LOAD", script.source), *(commands[i] for i in lacking)])
    repeated = _receive(connection, len(lacking) + 1, end)[1:]
    result = list(answers)
    for i, answer in zip(lacking, repeated, strict=True):
        result[i] = answer
    return result
