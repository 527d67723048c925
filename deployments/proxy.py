"""What Serve's HTTP proxies wrap around the application: an answer where the replica of the HTTP side was lost.

The proxies name :func:`middlewares` in ``RAY_SERVE_HTTP_PROXY_CALLBACK_IMPORT_PATH``. Without it such a request ends as
a 500 without a body, and a stream breaks off. This module imports no engine: proxies stay small.
"""

from __future__ import annotations

import contextlib

from starlette.datastructures import Headers
from starlette.middleware import Middleware
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from deployments.errors import ApiError

LOST = ApiError(
    503, "the part of the endpoint that had the request was lost; send it again", code="replica_lost", retry_after_s=1
)


def middlewares() -> list[Middleware]:
    """Called by each proxy as it starts."""
    return [Middleware(AnswerForTheLost)]


class AnswerForTheLost:
    """Middleware: a request that gets no answer gets 503 and ``Retry-After``; a stream cut off, one error event."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        started: Message | None = None
        ended = False

        async def watched(message: Message) -> None:
            nonlocal started, ended
            if message["type"] == "http.response.start":
                started = message
            elif message["type"] == "http.response.body":
                ended = not message.get("more_body", False)
            await send(message)

        await self._app(scope, receive, watched)
        if started is None:
            await _answer()(scope, receive, send)
        elif not ended and _is_stream(started):
            with contextlib.suppress(OSError):  # the client may be what has gone
                event = b"data: " + bytes(_answer().body) + b"\n\n"
                await send({"type": "http.response.body", "body": event, "more_body": False})


def _answer() -> JSONResponse:
    return JSONResponse(LOST.body(), LOST.status, headers=LOST.headers())


def _is_stream(started: Message) -> bool:
    return Headers(raw=started["headers"]).get("content-type", "").startswith("text/event-stream")
