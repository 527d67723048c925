"""A worker of a batch: one engine, always full, that answers the requests of several chunks at once."""

from __future__ import annotations

import asyncio
import logging
import os
import pickle
import secrets
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import ray

from deployments.batch.answers import Result, refused, unanswered
from deployments.batch.engine import EngineLostError
from deployments.batch.journal import table_of
from deployments.batch.order import submission_order
from deployments.batch.plan import InputFile, numbered
from deployments.batch.requests import Item, LineError
from deployments.batch.source import Task

_BEAT_S = 1.0
_GIVE_S = 1.0
_DEAD = 70

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class WorkerSettings:
    """What a worker is made of. ``open``: makes its answerer, given this; ``spec``: what that needs to know."""

    files: tuple[InputFile, ...]
    open: Callable[[Any], Any]
    spec: Any


class _Chunk:
    """Requests that came together. The loop's thread appends to ``ready``, the chunk's own takes from it."""

    def __init__(self) -> None:
        self.ready: deque[tuple[int, Result]] = deque()
        self.left = 0
        self.ended = threading.Event()

    def taken(self) -> Iterator[tuple[int, Result]]:
        while self.ready:
            yield self.ready.popleft()


class BatchWorker:
    """Ray Data's actor: a chunk goes in, packs of records come out as they are ready, at most a second late.

    An answerer has ``in_flight`` (requests to have under way), ``answer(item)`` (a coroutine that gives a Result or
    raises EngineLostError) and ``healthy()``. Where the engine is lost, or not healthy, the process ends: Ray makes a
    new one, and what was under way is done again.
    """

    def __init__(self, settings: WorkerSettings, coordinator: Any) -> None:
        self._files = settings.files
        self._coordinator = coordinator
        self._name = secrets.token_hex(6)
        self._answerer: Any = None
        self._stopped = threading.Event()
        self._lock = threading.Lock()
        self._begun = self._given = 0
        self._loop = asyncio.new_event_loop()
        self._waiting: asyncio.Queue[tuple[_Chunk, int, Item]] = asyncio.Queue()
        threading.Thread(target=self._beat, name="batch-beat", daemon=True).start()
        self._answerer = settings.open(settings.spec)
        threading.Thread(target=self._run, name="batch-answers", daemon=True).start()

    def __call__(self, batch: dict[str, Any]) -> Iterator[dict[str, Any]]:
        """Answer a chunk's requests. Yields rows: ``worker``, ``records`` (an Arrow stream), ``error``."""
        for task, data, error in zip(batch["task"], batch["data"], batch["error"], strict=True):
            if error:
                yield self._row(b"", str(error))
            else:
                yield from self._answer_chunk(pickle.loads(task), bytes(data))

    def _answer_chunk(self, task: Task, data: bytes) -> Iterator[dict[str, Any]]:
        if self._stopped.is_set():
            return
        chunk, items = _Chunk(), []
        for request, item in self._items(task, data):
            if isinstance(item, Result):
                chunk.ready.append((request, item))
                self._count("_begun", 1)
            else:
                items.append((request, item))
        chunk.left = len(items)
        if items:
            self._loop.call_soon_threadsafe(self._submit, chunk, submission_order(items))
        else:
            chunk.ended.set()
        while True:
            ended = chunk.ended.wait(_GIVE_S)
            if results := list(chunk.taken()):
                yield self._pack(results)
            if ended:
                return

    def _items(self, task: Task, data: bytes) -> Iterator[tuple[int, Item | Result]]:
        """The wanted requests of a chunk; the records of lines that are none."""
        file, twice = self._files[task.chunk.file], dict(task.chunk.twice)
        wanted = None if task.wanted is None else set(task.wanted)
        for request, line, raw in numbered(data, task.chunk):
            if wanted is not None and request not in wanted:
                continue
            try:
                item = file.reading.read(raw, line)
                if request in twice:
                    message = f"custom_id {item.custom_id!r} stands in {twice[request]} already; give each line its own"
                    raise LineError("duplicate_custom_id", message, item.custom_id, "custom_id")
            except LineError as error:
                yield request, refused(error, f"{file.source}:{line}")
            else:
                yield request, item

    def _pack(self, results: list[tuple[int, Result]]) -> dict[str, Any]:
        table = table_of(results)
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, table.schema) as stream:
            stream.write_table(table)
        self._count("_given", len(results))
        return self._row(sink.getvalue().to_pybytes(), "")

    def _count(self, name: str, by: int) -> None:
        with self._lock:
            setattr(self, name, getattr(self, name) + by)

    def _row(self, records: bytes, error: str) -> dict[str, Any]:
        return {"worker": [self._name], "records": [records], "error": [error]}

    # --- the loop's thread

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        for _ in range(self._answerer.in_flight):
            self._loop.create_task(self._answer_all())
        self._loop.run_forever()

    def _submit(self, chunk: _Chunk, items: list[tuple[int, Item]]) -> None:
        for request, item in items:
            self._waiting.put_nowait((chunk, request, item))

    async def _answer_all(self) -> None:
        while True:
            chunk, request, item = await self._waiting.get()
            if not self._stopped.is_set():
                self._count("_begun", 1)
                try:
                    chunk.ready.append((request, await self._answerer.answer(item)))
                except EngineLostError:
                    _log.exception("nothing more can be answered here; this worker ends")
                    os._exit(_DEAD)
                except Exception as error:
                    _log.exception("a request cannot be answered")
                    failed = unanswered(item, "internal_error", f"an error of the service ({type(error).__name__})")
                    chunk.ready.append((request, failed))
            chunk.left -= 1
            if not chunk.left:
                chunk.ended.set()

    # --- the beat's thread

    def _beat(self) -> None:
        while True:
            if self._answerer is not None and not self._answerer.healthy():
                _log.error("the engine makes no step; this worker ends")
                os._exit(_DEAD)
            with suppress(ray.exceptions.RayError):  # the driver has gone; Ray ends this process
                state = (self._stopped.is_set(), self._begun, self._given)  # in this order: none begins once stopped
                if ray.get(self._coordinator.beat.remote(self._name, *state)):
                    self._stopped.set()
            time.sleep(_BEAT_S)
