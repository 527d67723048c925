"""Clients that leave, and many at once: nothing stays behind, and nobody gets another's tokens."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx
import pytest

from deployments.config import KeyConfig
from racer.draft.sources import MemoryNgramSource
from tests.deployments.local import Served, chat_engine, serving, wait_until

LONG: dict[str, Any] = {"model": "tiny", "prompt": "abcabc", "max_tokens": 3000, "ignore_eos": True, "stream": True}


def nothing_left(server: Served) -> bool:
    engine = server.engine
    return (
        server.backend.engine.open_requests == 0
        and not engine.scheduler.running
        and not engine.scheduler.waiting
        and engine.scheduler.regions.allocated == 0
    )


@pytest.mark.parametrize("after_first_chunk", [False, True])
def test_abandoned_streams_leave_nothing(after_first_chunk: bool) -> None:  # fault 30
    engine = chat_engine(max_context=4096, max_running=64)

    async def abandon(http: httpx.AsyncClient) -> None:
        try:
            async with asyncio.timeout(None if after_first_chunk else 0.05):
                async with http.stream("POST", "/v1/completions", json=LONG) as answer:
                    async for _ in answer.aiter_bytes():
                        return
        except (TimeoutError, httpx.HTTPError):
            pass

    async def all_of_them(root: str) -> None:
        limits = httpx.Limits(max_connections=None)
        async with httpx.AsyncClient(base_url=root, limits=limits, timeout=60) as http:
            await asyncio.gather(*(abandon(http) for _ in range(300)))

    with serving(engine) as server:
        asyncio.run(all_of_them(server.root))
        wait_until(lambda: nothing_left(server), "all slots and the cache are free", 5.0)
        engine.check_integrity()
        with httpx.Client(base_url=server.root) as http:
            assert http.post("/v1/completions", json=LONG | {"stream": False, "max_tokens": 4}).status_code == 200


def test_client_that_leaves_before_a_whole_answer_aborts_it() -> None:
    engine = chat_engine(max_context=4096)
    with serving(engine) as server:
        with httpx.Client(base_url=server.root) as http, pytest.raises(httpx.ReadTimeout):
            http.post("/v1/completions", json=LONG | {"stream": False}, timeout=0.3)
        wait_until(lambda: nothing_left(server), "the answer is given up", 5.0)
        wait_until(lambda: server.backend.records, "the request is recorded")
        assert server.backend.records[-1].outcome == "cancelled"


def test_parallel_requests_each_get_their_own_answer() -> None:  # faults 2, 3, 12
    engine = chat_engine(max_context=1024)
    bodies = [
        {
            "model": "tiny",
            "prompt": f"{i} abc {i}" * 3,
            "max_tokens": 24,
            "temperature": i % 2,
            "seed": i if i % 4 else 5,
        }
        for i in range(8)
    ]

    async def ask(http: httpx.AsyncClient, body: dict[str, Any]) -> str:
        answer = await http.post("/v1/completions", json=body)
        text: str = answer.json()["choices"][0]["text"]
        return text

    async def together(root: str) -> list[str]:
        async with httpx.AsyncClient(base_url=root, timeout=60) as http:
            return await asyncio.gather(*(ask(http, body) for body in bodies))

    async def alone(root: str) -> list[str]:
        async with httpx.AsyncClient(base_url=root, timeout=60) as http:
            return [await ask(http, body | {"drafts": "off"}) for body in bodies]

    with serving(engine) as server:
        expected = asyncio.run(alone(server.root))
        assert len(set(expected)) == 8
        for _ in range(3):
            assert asyncio.run(together(server.root)) == expected


def test_usage_is_the_same_with_and_without_drafts_streamed_or_not() -> None:  # fault 8
    with serving(chat_engine()) as server, httpx.Client(base_url=server.root) as http:
        base = LONG | {"max_tokens": 40, "temperature": 0, "ignore_eos": False}
        text = http.post("/v1/completions", json=base | {"stream": False}).json()["choices"][0]["text"]
        usages = []
        for drafts in ("off", "racer"):
            for stop in (None, text[10:14]):
                body = base | {"drafts": drafts, "stop": stop, "stream_options": {"include_usage": True}}
                whole = {k: v for k, v in body.items() if k not in ("stream", "stream_options")}
                usage = http.post("/v1/completions", json=whole).json()["usage"]
                lines = [line for line in http.post("/v1/completions", json=body).text.splitlines() if line]
                import json

                assert json.loads(lines[-2].removeprefix("data: "))["usage"] == usage
                usages.append((stop, usage["prompt_tokens"], usage["completion_tokens"]))
        assert usages[:2] == usages[2:]


def test_a_tenants_text_speeds_up_nobody_else() -> None:  # fault 21
    keys = [KeyConfig(key="secret-of-a", namespace="a"), KeyConfig(key="secret-of-b", namespace="b")]
    engine = chat_engine(budget=16)
    sources: dict[str | None, Any] = {"a": MemoryNgramSource(), "b": MemoryNgramSource()}
    body = LONG | {"max_tokens": 48, "temperature": 0, "stream": False, "return_stats": True, "prompt": "the secret"}
    with serving(engine, keys=keys, sources=sources) as server, httpx.Client(base_url=server.root) as http:

        def ask(name: str) -> tuple[str, int, int]:
            answer = http.post("/v1/completions", json=body, headers={"Authorization": f"Bearer secret-of-{name}"})
            stats = answer.json()["usage"]["racer"]
            return answer.json()["choices"][0]["text"], stats["steps"], stats["accepted"]["store"]

        empty = ask("b")
        sources["b"] = server.backend.sources["b"] = MemoryNgramSource()
        first, second = ask("a"), ask("a")
        assert second[2] > first[2] and second[1] < first[1]  # to its own tenant the text is worth something
        assert ask("b") == empty == (first[0], first[1], 0)


def test_chunks_are_held_to_the_interval() -> None:
    engine = chat_engine(max_context=4096)
    body = LONG | {"max_tokens": 600, "drafts": "off", "temperature": 0}
    with serving(engine) as server, httpx.Client(base_url=server.root) as http:
        fast = http.post("/v1/completions", json=body).text
        server.backend.answerer.interval_s = 0.3
        with http.stream("POST", "/v1/completions", json=body) as answer:
            pieces = [piece for piece in answer.iter_raw() if piece]
    events = "".join(piece.decode() for piece in pieces).count("data: ")
    assert events == fast.count("data: ") >= 3 * len(pieces)
