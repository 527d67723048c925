"""What Serve's proxy adds to answers that were cut off, and not to others; test_cluster.py has the real thing."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from typing import Any

import pytest

from deployments.proxy import AnswerForTheLost, middlewares

STREAM = (b"content-type", b"text/event-stream; charset=utf-8")
JSON = (b"content-type", b"application/json")


def sent(*messages: dict[str, Any], kind: str = "http") -> list[dict[str, Any]]:
    """What a client gets if the application sends ``messages`` and ends."""
    found: list[dict[str, Any]] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        for message in messages:
            await send(message)

    async def send(message: Any) -> None:
        found.append(message)

    async def receive() -> Any:
        return {"type": "http.disconnect"}

    asyncio.run(AnswerForTheLost(app)({"type": kind, "headers": []}, receive, send))
    return found


def start(*headers: tuple[bytes, bytes]) -> dict[str, Any]:
    return {"type": "http.response.start", "status": 200, "headers": list(headers)}


def body(data: bytes, more: bool) -> dict[str, Any]:
    return {"type": "http.response.body", "body": data, "more_body": more}


def test_no_answer_becomes_503() -> None:
    begun, told = sent()
    assert begun["status"] == 503 and (b"retry-after", b"1") in begun["headers"]
    assert json.loads(told["body"])["error"]["code"] == "replica_lost"


def test_stream_that_is_cut_off_ends_with_an_error_event() -> None:
    *before, last = sent(start(STREAM), body(b"data: 1\n\n", True))
    assert len(before) == 2 and last["more_body"] is False
    assert last["body"].startswith(b'data: {"error":') and last["body"].endswith(b"\n\n")


@pytest.mark.parametrize(
    "messages",
    [
        [start(STREAM), body(b"data: 1\n\n", True), body(b"", False)],
        [start(JSON), body(b"{}", False)],
        [start(JSON), body(b'{"half', True)],  # nobody may take it for a whole one
    ],
)
def test_others_are_as_they_were(messages: list[dict[str, Any]]) -> None:
    assert sent(*messages) == messages
    assert sent(*messages, kind="websocket") == messages and sent(kind="lifespan") == []


def test_proxies_stay_small() -> None:
    made: list[Any] = middlewares()
    assert [one.cls for one in made] == [AnswerForTheLost]
    code = "import sys, deployments.proxy; print({'torch', 'transformers', 'numba', 'ray'} & set(sys.modules))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout == "set()\n"
