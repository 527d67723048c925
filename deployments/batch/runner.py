"""Runs the endpoint's batches in the background: takes up those that nobody runs."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING

from filelock import BaseFileLock, Timeout

from deployments.batch.batch_run import BatchRun
from deployments.batch.shelf import ENDED, Json, Shelf
from deployments.config import AppConfig
from deployments.keys import KeyRing
from deployments.logs import LOGGER

if TYPE_CHECKING:
    from deployments.answerer import Answerer

_POLL_S = 2.0

_log = logging.getLogger(LOGGER)


class BatchRunner:
    """Takes up every batch that no other process runs, those of a process that has ended too."""

    def __init__(self, config: AppConfig, keys: KeyRing, backend: Callable[[], Answerer], shelf: Shelf) -> None:
        self._config, self._keys, self._backend, self._shelf = config, keys, backend, shelf
        self._slots = asyncio.Semaphore(config.batches.max_in_flight)
        self._running: dict[str, asyncio.Task[None]] = {}
        self._ended: set[str] = set()
        self._wake = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin, if that was not done yet; look for new batches at once."""
        self._wake.set()
        if self._task is None:
            self._task = asyncio.create_task(self._watch())

    async def stop(self) -> None:
        """End; what is unfinished goes on when a runner starts again."""
        tasks = [task for task in (self._task, *self._running.values()) if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _watch(self) -> None:
        while True:
            self._wake.clear()
            try:
                unfinished = await asyncio.to_thread(self._shelf.unfinished, self._ended)
                for batch in unfinished:
                    await self._take_up(batch)
                used = {batch["input_file_id"] for batch in unfinished}
                await asyncio.to_thread(self._shelf.remove_expired, used)
                await asyncio.to_thread(self._shelf.remove_cut_off)
            except Exception:
                _log.exception("the batches' folder cannot be used")
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_POLL_S):
                    await self._wake.wait()

    async def _take_up(self, batch: Json) -> None:
        if batch["id"] in self._running:
            return
        lock = self._shelf.lock(batch["id"])
        try:
            await asyncio.to_thread(lock.acquire)
        except Timeout:  # another process runs it
            return
        self._running[batch["id"]] = asyncio.create_task(self._run(batch["id"], batch["owner"], lock))

    async def _run(self, batch_id: str, owner: str, lock: BaseFileLock) -> None:
        try:
            batch = await asyncio.to_thread(
                self._shelf.batch, batch_id, owner
            )  # as it is now that nobody else writes it
            if batch["status"] not in ENDED:
                await BatchRun(self._config, self._keys, self._backend, self._shelf, self._slots, batch).execute()
        except Exception:
            _log.exception("batch interrupted", extra={"batch": batch_id})
            await asyncio.sleep(_POLL_S)
        finally:
            lock.release()
            del self._running[batch_id]
