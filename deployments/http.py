"""The HTTP side: routes, checks and errors of the OpenAI-compatible API."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any

from fastapi import FastAPI, Header, Request
from starlette.responses import JSONResponse, PlainTextResponse, Response

from deployments.answerer import Answerer
from deployments.calls import Call
from deployments.config import AppConfig, KeyConfig, ModelConfig
from deployments.error_responses import ErrorBody, add_error_handlers
from deployments.errors import ApiError
from deployments.keys import KeyRing
from deployments.request_context import RequestContext
from deployments.schema import ApiRequest, ChatRequest, CompletionRequest
from deployments.streaming import EventStream, close_pieces, first_piece

FILES_PATH = "/v1/files"
FORM_BYTES = 64 << 10
"""What a form may have beside the file in it."""


def make_api(
    config: AppConfig, keys: KeyRing, backend: Callable[[], Answerer], *, behind_proxy: bool = False
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
    add_error_handlers(api)
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
            first = await first_piece(pieces, request)
            if first.error is not None:
                raise ApiError.from_wire(first.error)
            if body.stream:
                handed_over = True
                return EventStream(first, pieces, lambda: keys.leave(key))
            return Response(first.data, media_type="application/json")
        finally:
            if not handed_over:
                await close_pieces(pieces)
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
