"""Clients that ask again by themselves, and one that waits in vain for its first token."""

from __future__ import annotations

import threading
from typing import Any

import httpx
import openai
import pytest

from deployments.calls import Piece
from deployments.config import AppConfig, KeyConfig
from deployments.errors import ApiError
from tests.deployments.local import Served, chat_engine, serving, wait_until


def test_openai_asks_again_after_429() -> None:
    keys = [KeyConfig(key="secret-of-a", max_concurrent=1)]
    with serving(chat_engine(max_context=4096), keys=keys) as server:
        seen = statuses(server)
        long = {"model": "tiny", "prompt": "abc", "stream": True, "max_tokens": 3500, "ignore_eos": True}
        headers = {"Authorization": "Bearer secret-of-a"}
        with (
            httpx.Client(base_url=server.root, headers=headers) as http,
            openai.OpenAI(base_url=server.url, api_key="secret-of-a", max_retries=10) as client,
        ):
            with http.stream("POST", "/v1/completions", json=long) as stream:
                lines = stream.iter_lines()  # kept: the stream ends with its iterator
                next(lines)
                asked = threading.Thread(target=lambda: answers.append(ask(client)))
                answers: list[str] = []
                asked.start()
                wait_until(lambda: 429 in seen, "it is refused")
            asked.join(30)
        assert answers and answers[0] and seen[-1] == 200


def test_openai_asks_again_after_503() -> None:
    with serving(chat_engine()) as server, openai.OpenAI(base_url=server.url, api_key="none", max_retries=10) as client:
        seen, answer = statuses(server), server.backend.answer

        async def full_at_first(model: str, call: Any) -> Any:
            if len(seen) < 2:
                yield Piece(error=ApiError(503, "full", code="overloaded", retry_after_s=1).to_wire())
                return
            async for piece in answer(model, call):
                yield piece

        server.backend.answer = full_at_first  # type: ignore[method-assign]
        assert ask(client) and seen == [503, 503, 200]


def ask(client: openai.OpenAI) -> str:
    return (
        client.completions.create(model="tiny", prompt="abc", max_tokens=4, extra_body={"ignore_eos": True})
        .choices[0]
        .text
    )


def statuses(server: Served) -> list[int]:
    """The status of each answer from now on."""
    seen: list[int] = []
    inner = server.app.middleware_stack

    async def noting(scope: Any, receive: Any, send: Any) -> None:
        async def noted(message: Any) -> None:
            if message["type"] == "http.response.start":
                seen.append(message["status"])
            await send(message)

        await inner(scope, receive, noted)

    server.app.middleware_stack = noting
    return seen


def test_first_token_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its limit is its own, beside that of the whole answer."""
    engine, release = chat_engine(), threading.Event()
    step = engine.step

    def frozen() -> Any:
        release.wait(20)
        return step()

    config = AppConfig.model_validate({"limits": {"first_token_timeout_s": 0.3}})
    with serving(engine, config) as server, httpx.Client(base_url=server.root, timeout=30) as http:
        monkeypatch.setattr(engine, "step", frozen)
        late = http.post("/v1/completions", json={"model": "tiny", "prompt": "abc", "max_tokens": 2})
        release.set()
        assert late.status_code == 504 and "first token took longer than 0.3 s" in late.text
