"""What one caller gets does not depend on the others: beside whom, after whom, and whatever a store holds."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import httpx
import pytest
from tokenizers.processors import TemplateProcessing

from deployments.config import KeyConfig
from racer.draft.sources import MemoryNgramSource
from tests.deployments.local import TEMPLATE, Served, chat_engine, serving, wait_until
from tests.racer.engine.helpers import tiny_engine
from tests.tiny import byte_tokenizer

BASE: dict[str, Any] = {"model": "tiny", "max_tokens": 32, "ignore_eos": True, "temperature": 0}


def text_of(answer: httpx.Response) -> str:
    assert answer.status_code == 200, answer.text
    text: str = answer.json()["choices"][0]["text"]
    return text


def alone(server: Served, body: dict[str, Any]) -> str:
    return text_of(httpx.post(f"{server.root}/v1/completions", json=body | {"drafts": "off"}, timeout=60))


async def together(root: str, bodies: list[dict[str, Any]]) -> list[str]:
    async with httpx.AsyncClient(base_url=root, timeout=60) as http:
        return [text_of(one) for one in await asyncio.gather(*(http.post("/v1/completions", json=b) for b in bodies))]


def test_eight_at_once_some_of_them_seeded() -> None:  # fault 2
    seeds = [{"seed": i} if i % 2 else {} for i in range(8)]
    bodies = [BASE | {"prompt": f"{i}: abcabc {i}"} | seed for i, seed in enumerate(seeds)]
    with serving(chat_engine()) as server:
        expected = [alone(server, body) for body in bodies]
        assert len(set(expected)) == 8
        for _ in range(5):
            assert asyncio.run(together(server.root, bodies)) == expected


def test_one_of_three_with_a_common_beginning_leaves() -> None:  # fault 3
    """Fifty times: the other two's tokens never change."""
    shared = "".join(chr(97 + (7 * i * i + i) % 26) for i in range(500))
    bodies = [BASE | {"prompt": shared + end} for end in ("x", "y", "z")]

    async def round_of(http: httpx.AsyncClient, number: int) -> list[str]:
        leaving = bodies[number % 3]

        async def leave() -> None:
            async with http.stream("POST", "/v1/completions", json=leaving | {"stream": True}) as answer:
                async for _ in answer.aiter_bytes():
                    return

        staying = asyncio.gather(*(http.post("/v1/completions", json=b) for b in bodies if b is not leaving))
        _, answers = await asyncio.gather(leave(), staying)
        return [text_of(one) for one in answers]

    async def rounds(root: str) -> list[list[str]]:
        async with httpx.AsyncClient(base_url=root, timeout=60) as http:
            return [await round_of(http, number) for number in range(50)]

    engine = chat_engine(prefill_chunk=128)
    with serving(engine) as server:
        expected = {body["prompt"]: alone(server, body) for body in bodies}
        found = asyncio.run(rounds(server.root))
        for number, texts in enumerate(found):
            left = bodies[number % 3]
            assert texts == [expected[body["prompt"]] for body in bodies if body is not left], f"round {number}"
        wait_until(lambda: server.backend.engine.open_requests == 0, "nothing is in flight", 5.0)
        engine.check_integrity()


@pytest.mark.parametrize("temperature", [0.8, 1.3])
def test_a_seed_gives_one_text_whatever_happens(temperature: float) -> None:  # fault 12
    """Alone, among seven others, with an empty store and with one that knows the text."""
    body = BASE | {"prompt": "abcabc", "seed": 42, "temperature": temperature}
    others = [BASE | {"prompt": f"{i} abcabc", "temperature": 1.0} for i in range(7)]
    sources: dict[str | None, Any] = {}
    with serving(chat_engine(), sources=sources) as server:
        expected = alone(server, body)
        assert asyncio.run(together(server.root, [body])) == [expected]
        assert asyncio.run(together(server.root, [*others[:4], body, *others[4:]]))[4] == expected
        store = server.backend.sources[None] = MemoryNgramSource()
        assert asyncio.run(together(server.root, [body])) == [expected]  # empty: this teaches it
        assert store.lookup([server.engine.tokenizer("abcabc", return_tensors="np").input_ids[0]], 1.0)[0]
        assert asyncio.run(together(server.root, [body])) == [expected]
        assert asyncio.run(together(server.root, [*others, body]))[7] == expected


def test_a_tenants_chunks_tell_nothing_of_anothers_text() -> None:  # fault 21
    keys = [KeyConfig(key="secret-of-a", namespace="a"), KeyConfig(key="secret-of-b", namespace="b")]
    sources: dict[str | None, Any] = {"a": MemoryNgramSource(), "b": MemoryNgramSource()}
    body = BASE | {"prompt": "the secret is", "stream": True, "max_tokens": 60}

    with serving(chat_engine(budget=16), keys=keys, sources=sources) as server:

        def chunks(name: str) -> list[int]:
            """Characters of each chunk."""
            headers = {"Authorization": f"Bearer secret-of-{name}"}
            answer = httpx.post(f"{server.root}/v1/completions", json=body, headers=headers, timeout=60)
            lines = [line for line in answer.text.splitlines() if line.startswith("data: {")]
            return [len(json.loads(line[6:])["choices"][0]["text"]) for line in lines]

        empty = chunks("b")
        server.backend.sources["b"] = MemoryNgramSource()
        first, second = chunks("a"), chunks("a")
        assert first == empty != second  # what a has said drafts for a
        assert chunks("b") == empty


def test_a_templates_bos_is_not_doubled() -> None:  # fault 28
    """The tokenizer puts one before every text, and the template begins with one."""
    tokenizer = byte_tokenizer()
    tokenizer.backend_tokenizer.post_processor = TemplateProcessing("<bos> $A", special_tokens=[("<bos>", 0)])
    tokenizer.chat_template = "{{ bos_token }}" + TEMPLATE
    assert tokenizer("a").input_ids[0] == 0
    messages = [{"role": "user", "content": "abc"}]
    template: Any = tokenizer.apply_chat_template
    expected: list[int] = template(messages, tokenize=True, add_generation_prompt=True, return_dict=False)
    assert expected.count(0) == 1 and expected[0] == 0
    engine = tiny_engine("llama", model={"vocab_size": len(tokenizer)}, tokenizer=tokenizer)
    with serving(engine) as server:
        body = BASE | {"messages": messages}
        answer = httpx.post(f"{server.root}/v1/chat/completions", json=body, timeout=60).json()
        assert answer["usage"]["prompt_tokens"] == len(expected)
        by_ids = httpx.post(f"{server.root}/v1/completions", json=BASE | {"prompt": expected}, timeout=60).json()
        assert answer["choices"][0]["message"]["content"] == by_ids["choices"][0]["text"]
