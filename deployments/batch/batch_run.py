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
from deployments.batch.order import submission_order
from deployments.batch.records import RecordFile
from deployments.batch.requests import Item, LineError, Reading
from deployments.batch.shelf import Json, Shelf, new_id
from deployments.batch.validation import Validated, validate
from deployments.calls import Call
from deployments.config import AppConfig, KeyConfig
from deployments.errors import ApiError
from deployments.keys import KeyRing
from deployments.logs import LOGGER

if TYPE_CHECKING:
    from deployments.http import Backend

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
        backend: Callable[[], Backend],
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
        """Validate, answer, and make the files. Cancelled: it goes on later, from its records."""
        try:
            self._key = self._keys.of_owner(self._batch["owner"])
            await self._execute()
        except FileNotFoundError:
            self._fail("invalid_input_file", "the input file is not there any more")
        except ApiError as error:
            self._fail(error.code or "error", error.message)

    def _fail(self, code: str, message: str) -> None:
        error = {"code": code, "message": message, "line": None, "param": None}
        self._end("failed", errors={"object": "list", "data": [error]})

    async def _execute(self) -> None:
        batch = self._batch
        if batch["status"] == "validating":
            checked = await asyncio.to_thread(self._validate)
            if checked.errors:
                self._end("failed", errors={"object": "list", "data": checked.errors})
                return
            batch["request_counts"]["total"] = checked.requests
            self._set("in_progress")
        records = await asyncio.to_thread(RecordFile, self._shelf.records(batch["id"]))
        try:
            status = "completed"
            if batch["status"] in ("in_progress", "cancelling"):
                status = await self._answer(records)
                if status == "expired":
                    await asyncio.to_thread(self._expire, records)
                if status == "completed":
                    self._set("finalizing")
            await asyncio.to_thread(self._make_files, records)
            self._count(records)
            self._end(status)
        finally:
            records.close()
        self._shelf.records(batch["id"]).unlink(missing_ok=True)

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
        items = self._items(set(records.done))
        try:
            while window := await asyncio.to_thread(
                lambda: [item for _, item in zip(range(_WINDOW), items, strict=False)]
            ):
                for request, item in submission_order(window):
                    if (ended := await self._slot(records)) is not None:
                        return ended
                    task = asyncio.create_task(self._answer_one(request, item, records))
                    tasks.add(task)
                    task.add_done_callback(lambda _: self._slots.release())
                    task.add_done_callback(tasks.discard)
            while tasks:
                if (ended := self._ended(records)) is not None:
                    return ended
                done, _ = await asyncio.wait(tasks, timeout=_SAVE_S, return_when=asyncio.FIRST_COMPLETED)
                for task in done:
                    task.result()
            return "completed"
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _slot(self, records: RecordFile) -> str | None:
        """Wait for room for one more request; the status in which the batch ends meanwhile."""
        while True:
            if (ended := self._ended(records)) is not None:
                return ended
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_SAVE_S):
                    await self._slots.acquire()
                    return None

    def _ended(self, records: RecordFile) -> str | None:
        if time.monotonic() - self._saved_s >= _SAVE_S:
            self._count(records)
            self._shelf.save_batch(self._batch)
            self._saved_s = time.monotonic()
            now = self._shelf.batch(self._batch["id"], self._batch["owner"])
            if now["status"] == "cancelling":
                self._batch["cancelling_at"] = now["cancelling_at"]
                return "cancelled"
        return "expired" if time.time() >= self._batch["expires_at"] else None

    async def _answer_one(self, request: int, item: Item, records: RecordFile) -> None:
        key, names = self._key, (model.name for model in self._config.models)
        result = await answer(
            item,
            tuple(name for name in names if self._keys.check_model(key, name)),
            lambda call: patiently(self._respond, call, _PAUSE_S, self._config.limits.timeout_s),
            namespace=None if key is None else key.namespace,
            learn=None if key is None else key.learn,
            deadline_s=self._config.limits.timeout_s,
        )
        records.add(request, result)

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

    def _set(self, status: str) -> None:
        self._batch |= {"status": status, f"{status}_at": int(time.time())}
        self._shelf.save_batch(self._batch)

    def _end(self, status: str, **more: Any) -> None:
        self._batch |= more
        self._set(status)
        counts = self._batch["request_counts"]
        _log.info("batch", extra={"batch": self._batch["id"], "status": status, **counts})


def new_batch(asked: Json, owner: str, endpoint: str, window_s: int, output_expires_s: int | None) -> Json:
    """A batch as it begins; ``asked``: what of the request it repeats."""
    now = int(time.time())
    times = ("in_progress", "finalizing", "completed", "failed", "expired", "cancelling", "cancelled")
    return {
        "id": new_id("batch_"),
        "object": "batch",
        "endpoint": endpoint,
        "errors": None,
        "status": "validating",
        "output_file_id": None,
        "error_file_id": None,
        "created_at": now,
        "expires_at": now + window_s,
        **{f"{name}_at": None for name in times},
        "request_counts": {"total": 0, "completed": 0, "failed": 0},
        "usage": None,
        "owner": owner,
        "output_expires_s": output_expires_s,
    } | asked
