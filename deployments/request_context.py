"""What each HTTP request gets before its route: an id, and a limit for its body."""

from __future__ import annotations

import re
import secrets
from collections.abc import Mapping

from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

REQUEST_ID = "x-request-id"
_USABLE_ID = re.compile(r"[!-~]{1,128}")


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
