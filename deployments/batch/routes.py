"""``/v1/files`` and ``/v1/batches``, as OpenAI's clients know them."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import TYPE_CHECKING, Annotated, Any, Literal

from fastapi import APIRouter, FastAPI, Form, Header, Query, Request, Response, UploadFile
from fastapi.routing import APIRoute
from pydantic import BaseModel, ConfigDict, Field, StrictStr
from starlette.responses import FileResponse

from deployments.batch.runner import BatchRunner
from deployments.batch.shelf import ENDED, Json, Shelf, new_batch, new_id, public
from deployments.config import AppConfig
from deployments.errors import ApiError
from deployments.keys import KeyRing, owner_of

if TYPE_CHECKING:
    from deployments.answerer import Answerer

_HOUR_S = 3600
_MOST_S = 30 * 24 * _HOUR_S
_INTERNAL = ("output_expires_s",)

Authorization = Annotated[str | None, Header()]
Limit = Annotated[int, Query(ge=1, le=10_000)]


class Expiry(BaseModel):
    """When a file is deleted."""

    model_config = ConfigDict(extra="forbid")

    anchor: Literal["created_at"]
    seconds: int = Field(ge=_HOUR_S, le=_MOST_S)


class BatchRequest(BaseModel):
    """Body of ``POST /v1/batches``."""

    model_config = ConfigDict(extra="forbid")

    input_file_id: StrictStr = Field(description="an uploaded file with purpose batch")
    endpoint: Literal["/v1/chat/completions", "/v1/completions"] = Field(description="what all its lines ask")
    completion_window: Literal["24h"] = Field(description="how long it may take")
    metadata: dict[Annotated[str, Field(max_length=64)], Annotated[str, Field(max_length=512)]] | None = Field(
        None, max_length=16, description="told again with the batch"
    )
    output_expires_after: Expiry | None = Field(None, description="when its output and error files are deleted")


def add_batch_routes(
    api: FastAPI, config: AppConfig, keys: KeyRing, backend: Callable[[], Answerer], errors: dict[int | str, Any]
) -> None:
    """Add the routes to ``api``, and the runner to its lifespan. Raises ConfigError: the folder cannot be used."""
    assert config.batches.folder is not None
    shelf = Shelf(config.batches.folder)
    runner = BatchRunner(config, keys, backend, shelf)

    @contextlib.asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        runner.start()
        yield
        await runner.stop()

    api.router.lifespan_context = lifespan

    def owner(authorization: str | None) -> str:
        return owner_of(keys.identify(authorization))

    class KeyFirst(APIRoute):
        """A body is read, and kept in a temporary file, before its route is called: the key is checked before that."""

        def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
            handler = super().get_route_handler()

            async def checked(request: Request) -> Response:
                keys.identify(request.headers.get("authorization"))
                return await handler(request)

            return checked

    uploads, keeping = APIRouter(route_class=KeyFirst), asyncio.Lock()

    @uploads.post("/v1/files", responses=errors)
    async def upload(
        file: UploadFile,
        purpose: Annotated[Literal["batch"], Form()],
        anchor: Annotated[Literal["created_at"] | None, Form(alias="expires_after[anchor]")] = None,
        seconds: Annotated[int | None, Form(alias="expires_after[seconds]", ge=_HOUR_S, le=_MOST_S)] = None,
        authorization: Authorization = None,
    ) -> Json:
        """Keep a file of requests."""
        whose = owner(authorization)
        if (anchor is None) != (seconds is None):
            raise ApiError(400, "expires_after needs anchor and seconds", "invalid_value", "expires_after")
        if not file.size:
            raise ApiError(400, "the file is empty; give it one request a line", "invalid_value", "file")
        file_id, size = new_id("file-"), file.size

        def keep() -> Json:
            shelf.check_room(whose, size, config.batches.quota_bytes)
            try:
                with shelf.data(file_id).open("wb") as target:
                    shutil.copyfileobj(file.file, target)
                    target.flush()
                    os.fsync(target.fileno())
                return shelf.add_file(file_id, whose, file.filename or file_id, purpose, seconds)
            except OSError:  # a full disk: what is half written must not fill it
                shelf.remove_file(file_id)
                raise

        async with keeping:  # one after the other: together they might be too large
            return public(await asyncio.to_thread(keep))

    api.include_router(uploads)

    @api.get("/v1/files", responses=errors)
    async def files(
        purpose: str | None = None,
        after: str | None = None,
        limit: Limit = 10_000,
        order: Literal["asc", "desc"] = "desc",
        authorization: Authorization = None,
    ) -> Json:
        """The caller's files."""
        found = await asyncio.to_thread(shelf.files, owner(authorization))
        wanted = [one for one in found if purpose in (None, one["purpose"])]
        return _page(wanted[::-1] if order == "asc" else wanted, after, limit)

    @api.get("/v1/files/{file_id}", responses=errors)
    def file(file_id: str, authorization: Authorization = None) -> Json:
        """One file."""
        return public(shelf.file(file_id, owner(authorization)))

    @api.get("/v1/files/{file_id}/content", responses=errors, response_class=Response)
    def content(file_id: str, authorization: Authorization = None) -> Response:
        """What a file holds."""
        found = shelf.file(file_id, owner(authorization))
        return FileResponse(shelf.data(file_id), media_type="application/octet-stream", filename=found["filename"])

    @api.delete("/v1/files/{file_id}", responses=errors)
    def delete(file_id: str, authorization: Authorization = None) -> Json:
        """Delete a file that no batch needs any more."""
        whose = owner(authorization)
        shelf.file(file_id, whose)
        if (user := shelf.user_of(file_id, whose)) is not None:
            told = f"the file is the input of batch {user}; cancel it, or wait until it has ended"
            raise ApiError(409, told, "invalid_value", "file_id")
        shelf.remove_file(file_id)
        return {"id": file_id, "object": "file", "deleted": True}

    @api.post("/v1/batches", responses=errors)
    async def create(body: BatchRequest, authorization: Authorization = None) -> Json:
        """Answer the requests of a file in the background."""
        whose = owner(authorization)
        if (await asyncio.to_thread(shelf.file, body.input_file_id, whose))["purpose"] != "batch":
            raise ApiError(400, "the file's purpose is not batch", "invalid_value", "input_file_id")
        asked = body.model_dump(include={"input_file_id", "completion_window", "metadata"})
        kept_s = None if body.output_expires_after is None else body.output_expires_after.seconds
        batch = new_batch(asked, whose, body.endpoint, config.batches.window_s, kept_s)
        await asyncio.to_thread(shelf.save_batch, batch)
        runner.start()
        return _shown(batch)

    @api.get("/v1/batches", responses=errors)
    async def batches(after: str | None = None, limit: Limit = 20, authorization: Authorization = None) -> Json:
        """The caller's batches, the newest first."""
        found = await asyncio.to_thread(shelf.batches, owner(authorization))
        return _page([_shown(one) for one in found], after, limit)

    @api.get("/v1/batches/{batch_id}", responses=errors)
    def batch(batch_id: str, authorization: Authorization = None) -> Json:
        """One batch."""
        return _shown(shelf.batch(batch_id, owner(authorization)))

    @api.post("/v1/batches/{batch_id}/cancel", responses=errors)
    def cancel(batch_id: str, authorization: Authorization = None) -> Json:
        """End a batch; what it has answered is kept."""
        whose = owner(authorization)
        found = shelf.batch(batch_id, whose)
        if found["status"] in ENDED:
            raise ApiError(409, f"the batch has ended already: it is {found['status']}", "invalid_value", "batch_id")
        shelf.cancel(batch_id)
        return _shown(shelf.batch(batch_id, whose))


def _shown(batch: Json) -> Json:
    return {name: value for name, value in public(batch).items() if name not in _INTERNAL}


def _page(found: list[Json], after: str | None, limit: int) -> Json:
    """OpenAI's list object, from behind ``after`` on."""
    ids = [one["id"] for one in found]
    if after is not None and after not in ids:
        raise ApiError(404, f"there is nothing called {after!r} in this list", code="not_found", param="after")
    begin = 0 if after is None else ids.index(after) + 1
    data = [public(one) for one in found[begin : begin + limit]]
    ends = {"first_id": data[0]["id"] if data else None, "last_id": data[-1]["id"] if data else None}
    return {"object": "list", "data": data, **ends, "has_more": begin + limit < len(found)}
