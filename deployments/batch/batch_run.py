"""One batch of the endpoint, from where it stands to its end: through the same replicas as all other requests."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import orjson

from deployments.batch.answers import Reply, answer, patiently, unanswered, whole
from deployments.batch.locations import sync
from deployments.batch.order import submission_order
from deployments.batch.records import RecordFile
from deployments.batch.requests import Item, LineError, Reading
from deployments.batch.shelf import Json, Shelf
from deployments.batch.validation import Validated, validate
from deployments.calls import Call
from deployments.config import AppConfig, KeyConfig
from deployments.errors import ApiError
from deployments.keys import KeyRing
from deployments.logs import LOGGER

if TYPE_CHECKING:
    from deployments.answerer import Answerer

_SAVE_S = 1.0
_WINDOW = 256
_PAUSE_S = 0.5

_log = logging.getLogger(LOGGER)


class BatchRun:
    """One batch, from where it stands to its end."""

    def __init__(
        self,
        config: AppConfig,
        keys: KeyRing,
        backend: Callable[[], Answerer],
        shelf: Shelf,
        slots: asyncio.Semaphore,
        batch: Json,
    ) -> None:
        self._config, self._keys, self._backend, self._shelf = config, keys, backend, shelf
        self._slots, self._batch = slots, batch
        self._key: KeyConfig | None = None
        self._reading = Reading(url=batch["endpoint"])
        self._saved_s = 0.0

    async def execute(self) -> None:
        """Validate, answer, and make the files. Cancelled: it goes on later, from its records.

        Raises:
            OSError: the folder cannot be used; it goes on later too. Any other error ends the batch as failed: it would
                come back each time.
        """
        try:
            self._key = self._keys.of_owner(self._batch["owner"])
            await self._execute()
        except FileNotFoundError:
            await self._fail("invalid_input_file", "the input file is not there any more")
        except ApiError as error:
            await self._fail(error.code or "error", error.message)
        except OSError:
            raise
        except Exception as error:
            _log.exception("batch failed", extra={"batch": self._batch["id"]})
            await self._fail("internal_error", f"an error of the service ({type(error).__name__})")

    async def _fail(self, code: str, message: str) -> None:
        error = {"code": code, "message": message, "line": None, "param": None}
        await self._end("failed", errors={"object": "list", "data": [error]})

    async def _execute(self) -> None:
        batch = self._batch
        if batch["status"] == "validating":
            checked = await asyncio.to_thread(self._validate)
            if checked.errors:
                await self._end("failed", errors={"object": "list", "data": checked.errors})
                return
            batch["request_counts"]["total"] = checked.requests
            await self._set("in_progress")
        records = await asyncio.to_thread(RecordFile, self._shelf.records(batch["id"]))
        try:
            status = "completed"
            if batch["status"] in ("in_progress", "cancelling"):
                status = await self._answer(records)
                if status == "expired":
                    await asyncio.to_thread(self._expire, records)
                if status in ("completed", "expired"):
                    self._check_all_done(records)
                if status == "completed":
                    await self._set("finalizing")
            await asyncio.to_thread(self._make_files, records)
            self._count(records)
            await self._end(status)
        finally:
            records.close()
        self._shelf.records(batch["id"]).unlink(missing_ok=True)

    def _check_all_done(self, records: RecordFile) -> None:
        total = self._batch["request_counts"]["total"]
        if len(records.done) < total:
            told = f"{total - len(records.done)} of {total} requests have no record; the input file has changed"
            raise ApiError(500, told, "invalid_input_file")

    def _validate(self) -> Validated:
        path = self._shelf.data(self._batch["input_file_id"])
        return validate(path, self._reading, self._config.batches.max_requests)

    def _items(self, done: set[int]) -> Iterator[tuple[int, Item]]:
        with self._shelf.data(self._batch["input_file_id"]).open("rb") as file:
            for request, raw in enumerate(raw for raw in file if raw.strip()):
                if request not in done:
                    with contextlib.suppress(LineError):  # validated
                        yield request, self._reading.read_batch(raw)

    async def _answer(self, records: RecordFile) -> str:
        """Answer what has no record; the status in which that ends."""
        tasks: set[asyncio.Task[None]] = set()
        failed: list[BaseException] = []

        def over(task: asyncio.Task[None]) -> None:
            self._slots.release()
            tasks.discard(task)
            if not task.cancelled() and (error := task.exception()) is not None:
                failed.append(error)

        items = self._items(set(records.done))
        try:
            while window := await asyncio.to_thread(
                lambda: [item for _, item in zip(range(_WINDOW), items, strict=False)]
            ):
                for request, item in submission_order(window):
                    if (ended := await self._slot(records)) is not None:
                        return ended
                    if failed:
                        self._slots.release()
                        raise failed[0]
                    task = asyncio.create_task(self._answer_one(request, item, records))
                    tasks.add(task)
                    task.add_done_callback(over)
            while tasks and not failed:
                if (ended := await self._ended(records)) is not None:
                    return ended
                if tasks:
                    await asyncio.wait(tasks, timeout=_SAVE_S, return_when=asyncio.FIRST_COMPLETED)
            if failed:
                raise failed[0]
            return "completed"
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _slot(self, records: RecordFile) -> str | None:
        """Wait for room for one more request; the status in which the batch ends meanwhile."""
        while True:
            if (ended := await self._ended(records)) is not None:
                return ended
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_SAVE_S):
                    await self._slots.acquire()
                    return None

    async def _ended(self, records: RecordFile) -> str | None:
        if time.monotonic() - self._saved_s >= _SAVE_S:
            self._count(records)
            await _to_its_end(self._shelf.save_batch, self._batch)
            self._saved_s = time.monotonic()
            now = await asyncio.to_thread(self._shelf.batch, self._batch["id"], self._batch["owner"])
            if now["status"] == "cancelling":
                self._batch["cancelling_at"] = now["cancelling_at"]
                return "cancelled"
        return "expired" if time.time() >= self._batch["expires_at"] else None

    async def _answer_one(self, request: int, item: Item, records: RecordFile) -> None:
        key, names = self._key, (model.name for model in self._config.models)
        try:
            result = await answer(
                item,
                tuple(name for name in names if self._keys.check_model(key, name)),
                lambda call: patiently(self._respond, call, _PAUSE_S, self._config.limits.timeout_s),
                namespace=None if key is None else key.namespace,
                learn=None if key is None else key.learn,
                deadline_s=self._config.limits.timeout_s,
            )
        except Exception as error:
            _log.exception("a request cannot be answered", extra={"batch": self._batch["id"]})
            result = unanswered(item, "internal_error", f"an error of the service ({type(error).__name__})")
        await _to_its_end(records.add, request, result)

    async def _respond(self, call: Call) -> Reply:
        body = await whole(self._backend().answer(call.body["model"], call))
        return Reply(body, orjson.loads(body)["usage"])

    def _expire(self, records: RecordFile) -> None:
        for request, item in self._items(set(records.done)):
            message = "the batch's time was over before this request was answered"
            records.add(request, unanswered(item, "batch_expired", message))

    def _make_files(self, records: RecordFile) -> None:
        """Output and errors as files; their names follow from the batch's, so that doing it again makes no others."""
        batch, expires = self._batch, self._batch["output_expires_s"]
        paths = {kind: self._shelf.data(f"file-{batch['id']}-{kind}") for kind in ("output", "error")}
        with paths["output"].open("wb") as answers, paths["error"].open("wb") as errors:
            records.write_to(answers, errors)
        for kind, path in paths.items():
            if path.stat().st_size:
                sync(path)  # the records it is made of are deleted afterwards
                name = f"{batch['id']}_{kind}.jsonl"
                made = self._shelf.add_file(f"file-{batch['id']}-{kind}", batch["owner"], name, "batch_output", expires)
                batch[f"{kind}_file_id"] = made["id"]
            else:
                path.unlink()

    def _count(self, records: RecordFile) -> None:
        batch = self._batch
        batch["request_counts"] |= {"completed": len(records.done) - records.failed, "failed": records.failed}
        batch["usage"] = {
            "input_tokens": records.prompt_tokens,
            "input_tokens_details": {"cached_tokens": 0},
            "output_tokens": records.completion_tokens,
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": records.prompt_tokens + records.completion_tokens,
        }

    async def _set(self, status: str) -> None:
        self._batch |= {"status": status, f"{status}_at": int(time.time())}
        await _to_its_end(self._shelf.save_batch, self._batch)

    async def _end(self, status: str, **more: Any) -> None:
        self._batch |= more
        await self._set(status)
        counts = self._batch["request_counts"]
        _log.info("batch", extra={"batch": self._batch["id"], "status": status, **counts})


async def _to_its_end(write: Callable[..., object], *args: object) -> None:
    """Call ``write`` in a thread; who is cancelled meanwhile ends after it: nothing is written once locks are freed."""
    writing = asyncio.ensure_future(asyncio.to_thread(write, *args))
    try:
        await asyncio.shield(writing)
    finally:
        await asyncio.wait({writing})
