"""Pieces of an answer as an HTTP response, for as long as the client is there."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Callable

from fastapi import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from deployments.calls import Piece
from deployments.errors import ApiError
from deployments.responses import event


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
                await close_pieces(self._pieces)
            finally:
                self._ended()


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def close_pieces(pieces: AsyncGenerator[Piece]) -> None:
    """End an answer, which aborts what is being decoded for it."""
    for _ in range(100):
        try:
            await pieces.aclose()
            return
        except RuntimeError:  # its cancelled step is still ending
            await asyncio.sleep(0.01)


async def first_piece(pieces: AsyncGenerator[Piece], request: Request) -> Piece:
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
