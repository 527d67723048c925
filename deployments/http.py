"""The HTTP side: routes, checks and errors of the OpenAI-compatible API."""

from __future__ import annotations

import asyncio
import contextlib
import re
import secrets
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from typing import Annotated, Any, Protocol

from fastapi import FastAPI, Header, Request
from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel
from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from deployments.calls import Call, Piece
from deployments.config import AppConfig, KeyConfig, ModelConfig
from deployments.errors import ApiError
from deployments.keys import KeyRing
from deployments.responses import event
from deployments.schema import ApiRequest, ChatRequest, CompletionRequest

REQUEST_ID = "x-request-id"
FILES_PATH = "/v1/files"
FORM_BYTES = 64 << 10
"""What a form may have beside the file in it."""
_USABLE_ID = re.compile(r"[!-~]{1,128}")
_TYPE_NAMES = {"str", "int", "float", "bool", "list", "dict"}


class Backend(Protocol):
    """What the HTTP side needs of the rest."""

    models: dict[str, ModelConfig]

    def answer(self, model: str, call: Call) -> AsyncGenerator[Piece]:
        """The pieces of an answer, an error as the last of them."""
        ...

    async def ready(self) -> dict[str, str]:
        """The state of each model; "ready" or "asleep" are good."""
        ...

    async def metrics(self) -> str:
        """Metrics in Prometheus' text format."""
        ...


class ErrorDetail(BaseModel):
    """What went wrong."""

    message: str
    type: str
    param: str | None
    code: str | None


class ErrorBody(BaseModel):
    """OpenAI's error object."""

    error: ErrorDetail


class EventStream(Response):
    """Server-sent events; whatever ends it, the pieces are closed and ``ended`` is called."""

    media_type = "text/event-stream"

    def __init__(self, first: Piece, pieces: AsyncGenerator[Piece], ended: Callable[[], None]) -> None:
        super().__init__(headers={"Cache-Control": "no-cache", "X-Accel-Buffering": "no"})
        del self.headers["content-length"]
        self._first, self._pieces, self._ended = first, pieces, ended

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the events; an error on the way is one event, and the last."""
        gone = asyncio.create_task(_disconnected(receive))
        try:
            await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
            await send({"type": "http.response.body", "body": self._first.data, "more_body": True})
            following = asyncio.ensure_future(anext(self._pieces, None))
            while True:
                await asyncio.wait({following, gone}, return_when=asyncio.FIRST_COMPLETED)
                if gone.done():
                    following.cancel()
                    break
                piece = following.result()
                if piece is None:
                    break
                if piece.error is not None:
                    body = event(ApiError.from_wire(piece.error).body())
                    await send({"type": "http.response.body", "body": body, "more_body": True})
                    break
                await send({"type": "http.response.body", "body": piece.data, "more_body": True})
                following = asyncio.ensure_future(anext(self._pieces, None))
            if not gone.done():
                await send({"type": "http.response.body", "body": b"", "more_body": False})
        finally:
            gone.cancel()
            try:
                await _close(self._pieces)
            finally:
                self._ended()


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def _close(pieces: AsyncGenerator[Piece]) -> None:
    for _ in range(100):
        try:
            await pieces.aclose()
            return
        except RuntimeError:  # its cancelled step is still ending
            await asyncio.sleep(0.01)


def make_api(
    config: AppConfig, keys: KeyRing, backend: Callable[[], Backend], *, behind_proxy: bool = False
) -> FastAPI:
    """The application's routes. ``backend`` gives what answers, when a request needs it.

    ``behind_proxy``: Serve's proxy, which gives each request an id and the client that id.
    """
    api = FastAPI(
        title="racer-serve",
        description="OpenAI-compatible endpoint; answers are the model's own tokens, decoded with drafts.",
        version="1",
        docs_url=None,
        redoc_url=None,
    )
    errors: dict[int | str, dict[str, Any]] = {
        status: {"model": ErrorBody} for status in (400, 401, 403, 404, 413, 429, 500, 502, 503, 504)
    }
    _add_error_handlers(api)
    uploads = {FILES_PATH: config.batches.file_bytes + FORM_BYTES}
    api.add_middleware(RequestContext, most_bytes=config.limits.body_bytes, uploads=uploads, tells_id=not behind_proxy)

    def caller(authorization: str | None) -> KeyConfig | None:
        return keys.identify(authorization)

    async def respond(request: Request, body: ApiRequest, authorization: str | None) -> Response:
        key = caller(authorization)
        if body.model not in backend().models or not keys.check_model(key, body.model):
            raise ApiError(
                404, f"the model {body.model!r} does not exist; see /v1/models", code="model_not_found", param="model"
            )
        if body.return_stats and body.stream and not (body.stream_options and body.stream_options.include_usage):
            raise ApiError(
                400, "return_stats is told with the usage; set stream_options.include_usage too", param="return_stats"
            )
        call = Call.of(
            body,
            request.state.request_id,
            namespace=None if key is None else key.namespace,
            learn=None if key is None else key.learn,
            deadline_s=config.limits.timeout_s,
            first_token_s=config.limits.first_token_timeout_s,
        )
        keys.enter(key)
        pieces = backend().answer(body.model, call)
        handed_over = False
        try:
            first = await _first_piece(pieces, request)
            if first.error is not None:
                raise ApiError.from_wire(first.error)
            if body.stream:
                handed_over = True
                return EventStream(first, pieces, lambda: keys.leave(key))
            return Response(first.data, media_type="application/json")
        finally:
            if not handed_over:
                await _close(pieces)
                keys.leave(key)

    @api.post("/v1/chat/completions", responses=errors)
    async def chat_completions(
        request: Request, body: ChatRequest, authorization: Annotated[str | None, Header()] = None
    ) -> Response:
        """Answer a conversation."""
        return await respond(request, body, authorization)

    @api.post("/v1/completions", responses=errors)
    async def completions(
        request: Request, body: CompletionRequest, authorization: Annotated[str | None, Header()] = None
    ) -> Response:
        """Continue texts."""
        return await respond(request, body, authorization)

    def described(model: ModelConfig) -> dict[str, Any]:
        return {"id": model.name, "object": "model", "created": 0, "owned_by": "racer-serve"}

    @api.get("/v1/models", responses={401: {"model": ErrorBody}})
    async def models(authorization: Annotated[str | None, Header()] = None) -> dict[str, Any]:
        """The models that the caller may use."""
        key = caller(authorization)
        visible = [model for model in backend().models.values() if keys.check_model(key, model.name)]
        return {"object": "list", "data": [described(model) for model in visible]}

    @api.get("/v1/models/{name:path}", responses={401: {"model": ErrorBody}, 404: {"model": ErrorBody}})
    async def model(name: str, authorization: Annotated[str | None, Header()] = None) -> dict[str, Any]:
        """One model."""
        key = caller(authorization)
        if name not in backend().models or not keys.check_model(key, name):
            raise ApiError(404, f"the model {name!r} does not exist; see /v1/models", code="model_not_found")
        return described(backend().models[name])

    @api.get("/health")
    async def health() -> dict[str, str]:
        """The HTTP side is alive."""
        return {"status": "ok"}

    @api.get("/ready", responses={503: {"description": "some model cannot answer yet"}})
    async def ready() -> Response:
        """Every model has just decoded a token (or sleeps, where it may)."""
        states = await backend().ready()
        good = all(state in ("ready", "asleep") for state in states.values())
        body = {"status": "ready" if good else "not ready", "models": states}
        return JSONResponse(body, 200 if good else 503)

    @api.get("/metrics", response_class=PlainTextResponse)
    async def metrics() -> PlainTextResponse:
        """Metrics of all replicas, for Prometheus."""
        return PlainTextResponse(await backend().metrics(), media_type="text/plain; version=0.0.4")

    if config.batches.folder is not None:
        from deployments.batch.routes import add_batch_routes

        add_batch_routes(api, config, keys, backend, errors)
    return api


async def _first_piece(pieces: AsyncGenerator[Piece], request: Request) -> Piece:
    """The first piece; where the client leaves before it comes, the answer is given up."""
    coming = asyncio.ensure_future(anext(pieces))
    gone = asyncio.create_task(_disconnected(request.receive))
    try:
        await asyncio.wait({coming, gone}, return_when=asyncio.FIRST_COMPLETED)
        if not coming.done():
            raise ApiError(499, "the client left", code="cancelled")
        return coming.result()
    finally:
        gone.cancel()
        if not coming.done():
            coming.cancel()
            with contextlib.suppress(asyncio.CancelledError, Exception):
                await coming


class RequestContext:
    """Middleware: each request gets an id, its own if it brings a usable one, and may have so many bytes of body.

    ``uploads``: paths whose bodies may have another size.
    """

    def __init__(self, app: ASGIApp, most_bytes: int, uploads: Mapping[str, int], *, tells_id: bool) -> None:
        self._app, self._most_bytes, self._uploads, self._tells_id = app, most_bytes, uploads, tells_id

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        given = Headers(scope=scope).get(REQUEST_ID, "")
        request_id = given if _USABLE_ID.fullmatch(given) else secrets.token_hex(12)
        scope.setdefault("state", {})["request_id"] = request_id
        taken, most_bytes = 0, self._uploads.get(scope["path"], self._most_bytes)

        async def counted() -> Message:
            nonlocal taken
            message = await receive()
            taken += len(message.get("body", b""))
            if taken > most_bytes:
                raise HTTPException(413, f"the body has more than {most_bytes} bytes; send less")
            return message

        async def named(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message)[REQUEST_ID] = request_id
            await send(message)

        await self._app(scope, counted, named if self._tells_id else send)


def _add_error_handlers(api: FastAPI) -> None:
    async def on_api_error(request: Request, error: Exception) -> Response:
        assert isinstance(error, ApiError)
        return _error_response(error)

    async def on_invalid(request: Request, error: Exception) -> Response:
        assert isinstance(error, RequestValidationError)
        return _error_response(validation_error(error))

    async def on_http(request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        known = {
            404: ("there is nothing at this path", "not_found"),
            405: ("this path does not take this method", "method_not_allowed"),
            413: (str(error.detail), "too_large"),
        }
        message, code = known.get(error.status_code, (str(error.detail), "invalid_request"))
        return _error_response(ApiError(error.status_code, message, code=code), dict(error.headers or {}))

    async def on_other(request: Request, error: Exception) -> Response:
        return _error_response(ApiError(500, "an error of the server; see its log", code="internal_error"))

    handlers: dict[type[Exception], Callable[[Request, Exception], Awaitable[Response]]] = {
        ApiError: on_api_error,
        RequestValidationError: on_invalid,
        HTTPException: on_http,
        Exception: on_other,
    }
    for kind, handler in handlers.items():
        api.add_exception_handler(kind, handler)


def _error_response(error: ApiError, headers: dict[str, str] | None = None) -> Response:
    return JSONResponse(error.body(), error.status, headers=(headers or {}) | error.headers())


def validation_error(error: RequestValidationError) -> ApiError:
    """The first of a body's problems, in one sentence that names the field."""
    first = error.errors()[0]
    where = [part for part in first["loc"] if part not in ("body", "header", "query", "path")]
    param = _param(where)
    kind, message = first["type"], str(first["msg"]).removeprefix("Value error, ")
    if kind == "json_invalid":
        return ApiError(400, f"the body is not JSON: {first.get('ctx', {}).get('error', message)}", code="invalid_json")
    if kind == "extra_forbidden":
        return ApiError(
            400, f"the field {param!r} is not supported; leave it out", code="unsupported_field", param=param
        )
    if kind == "missing":
        said = f"the field {param!r} is missing" if param else "a JSON object is expected as body"
        return ApiError(400, said, code="missing_field", param=param)
    said = message[:1].lower() + message[1:]
    return ApiError(400, f"{param}: {said}" if param else said, code="invalid_value", param=param)


def _param(where: list[Any]) -> str | None:
    """The field's path as a client writes it: ``messages[0].role``. Names of union members are no part of it."""
    path = ""
    for part in where:
        if isinstance(part, int):
            path += f"[{part}]"
        elif part.isidentifier() and part not in _TYPE_NAMES and not part[0].isupper():
            path += f".{part}" if path else part
        elif path:
            break
    return path or None
