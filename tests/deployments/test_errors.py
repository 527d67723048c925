"""Whatever is wrong with a request is told in OpenAI's error object, with the right status, before any header."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx
import openai
import pytest

from deployments.config import AppConfig, KeyConfig
from tests.deployments.local import Served, chat_engine, serving, wait_until

CHAT = {"model": "tiny", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 4}
TEXT = {"model": "tiny", "prompt": "hi", "max_tokens": 4}


def refused(answer: httpx.Response, status: int, param: str | None, code: str | None = None) -> str:
    """The message of a refusal whose form and fields are checked."""
    assert answer.status_code == status, answer.text
    error = answer.json()["error"]
    assert set(error) == {"message", "type", "param", "code"} and error["param"] == param
    assert error["type"] == ("invalid_request_error" if status in (400, 413) else error["type"]) and error["message"]
    if code is not None:
        assert error["code"] == code
    message: str = error["message"]
    assert "\n" not in message and "pydantic" not in message
    return message


@pytest.mark.parametrize(  # faults 10, 25, 27 and fields that nothing here supports
    ("change", "param", "code"),
    [
        ({"max_tokens": "ten"}, "max_tokens", "invalid_value"),
        ({"max_tokens": 0}, "max_tokens", "invalid_value"),
        ({"max_tokens": 2.5}, "max_tokens", "invalid_value"),
        ({"temperature": "hot"}, "temperature", "invalid_value"),
        ({"temperature": -1}, "temperature", "invalid_value"),
        ({"top_p": 0}, "top_p", "invalid_value"),
        ({"n": 0}, "n", "invalid_value"),
        ({"n": True}, "n", "invalid_value"),
        ({"stop": 5}, "stop", "invalid_value"),
        ({"stop": ""}, "stop", "invalid_value"),
        ({"stop": ["x"] * 17}, "stop", "invalid_value"),
        ({"repetition_penalty": 0}, "repetition_penalty", "invalid_value"),
        ({"frequency_penalty": 3}, "frequency_penalty", "invalid_value"),
        ({"logit_bias": {"x": 1}}, "logit_bias", "invalid_value"),
        ({"logit_bias": {"5": 101}}, "logit_bias", "invalid_value"),
        ({"logit_bias": {"99999": 1}}, "logit_bias", "invalid_value"),
        ({"min_tokens": 9}, "min_tokens", "invalid_value"),
        ({"stop_token_ids": [99999]}, "stop_token_ids", "invalid_value"),
        ({"drafts": "many"}, "drafts", "invalid_value"),
        ({"budget": 0}, "budget", "invalid_value"),
        ({"stream": "yes"}, "stream", "invalid_value"),
        ({"stream_options": {"include_usage": True}}, None, "invalid_value"),
        ({"stream": True, "stream_options": {"include": True}}, "stream_options.include", "unsupported_field"),
        ({"stream": True, "return_stats": True}, "return_stats", "invalid_value"),
        ({"best_of": 2}, "best_of", "unsupported_field"),
        ({"guided_json": {}}, "guided_json", "unsupported_field"),
        ({"model": "other"}, "model", "model_not_found"),
        ({"model": 5}, "model", "invalid_value"),
    ],
)
def test_wrong_field_is_named(http: httpx.Client, change: dict[str, Any], param: str | None, code: str) -> None:
    status = 404 if code == "model_not_found" else 400
    for path, body in (("chat/completions", CHAT), ("completions", TEXT)):
        message = refused(
            http.post(f"/v1/{path}", json=body | change), status, param, code if param != "return_stats" else None
        )
        if param is not None:
            assert param.split(".")[-1] in message


@pytest.mark.parametrize(
    ("change", "param"),
    [
        ({"messages": []}, "messages"),
        ({"messages": "hi"}, "messages"),
        ({"messages": [{"role": "nobody", "content": "x"}]}, "messages[0].role"),
        ({"messages": [{"role": "user", "content": 5}]}, "messages[0].content"),
        ({"messages": [{"role": "user"}]}, "messages[0].content"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "messages[0].content"),
        ({"tools": []}, "tools"),
        ({"response_format": {"type": "json_object"}}, "response_format.type"),  # fault 15
        ({"response_format": {"type": "json_schema", "json_schema": {}}}, "response_format.type"),
        ({"max_completion_tokens": 5}, None),
        ({"top_logprobs": 2}, None),
        ({"logprobs": True, "top_logprobs": 21}, "top_logprobs"),
    ],
)
def test_wrong_chat_field_is_named(http: httpx.Client, change: dict[str, Any], param: str | None) -> None:
    answer = http.post("/v1/chat/completions", json=CHAT | change)
    assert answer.status_code == 400, answer.text
    error = answer.json()["error"]
    assert (error["param"] or "").startswith(param or ""), error


@pytest.mark.parametrize("prompt", [[], [[]], 5, None, {"a": 1}, ["x", 5], [1.5], [-1], [99999], ""])
def test_wrong_prompt(http: httpx.Client, prompt: Any) -> None:
    answer = http.post("/v1/completions", json=TEXT | {"prompt": prompt})
    assert refused(answer, 400, answer.json()["error"]["param"])
    assert answer.json()["error"]["param"].startswith("prompt")


@pytest.mark.parametrize("body", [b"{", b"", b"[]", b'"x"', b"\xff\xfe", b'{"model": "tiny"'])
def test_broken_bodies(http: httpx.Client, body: bytes) -> None:
    for path in ("chat/completions", "completions"):
        answer = http.post(f"/v1/{path}", content=body, headers={"Content-Type": "application/json"})
        assert refused(answer, 400, None)


def test_other_paths_and_methods(http: httpx.Client) -> None:
    assert refused(http.get("/v1/nothing"), 404, None)
    assert refused(http.get("/v1/completions"), 405, None)


def test_context_is_told_with_its_numbers(served: Served, http: httpx.Client) -> None:  # faults 9, 26
    length = served.engine.context_length
    for size, cap in ((length, 1), (length + 50, 1), (length - 1, 2), (10, length)):
        answer = http.post("/v1/completions", json=TEXT | {"prompt": [70] * size, "max_tokens": cap})
        message = refused(answer, 400, answer.json()["error"]["param"], "context_length_exceeded")
        assert str(size) in message and str(length) in message
    for size, cap in ((length - 1, 1), (length - 2, 2), (length - 17, 17)):
        answer = http.post(
            "/v1/completions", json=TEXT | {"prompt": [70] * size, "max_tokens": cap, "ignore_eos": True}
        )
        assert answer.status_code == 200 and answer.json()["usage"]["completion_tokens"] == cap
    open_ended = http.post("/v1/completions", json=TEXT | {"prompt": [70] * (length - 9), "max_tokens": None})
    assert open_ended.json()["usage"]["completion_tokens"] <= 9


def test_refusal_of_a_stream_is_a_status_not_an_event(http: httpx.Client) -> None:
    answer = http.post("/v1/completions", json=TEXT | {"stream": True, "max_tokens": 100_000})
    assert refused(answer, 400, "max_tokens", "context_length_exceeded")


def test_openai_raises_its_own_errors(client: openai.OpenAI) -> None:
    with pytest.raises(openai.BadRequestError) as wrong:
        client.chat.completions.create(model="tiny", messages=[{"role": "user", "content": "x"}], temperature=-1)
    assert wrong.value.param == "temperature" and wrong.value.code == "invalid_value"
    with pytest.raises(openai.NotFoundError):
        client.chat.completions.create(model="none", messages=[{"role": "user", "content": "x"}])


def test_limits_of_size() -> None:
    config = AppConfig.model_validate({"limits": {"body_bytes": 2000, "prompts": 2, "choices": 3}})
    with serving(chat_engine(), config) as server, httpx.Client(base_url=server.root) as http:
        long = http.post("/v1/completions", json=TEXT | {"prompt": "x" * 3000})
        assert "2000" in refused(long, 413, None, "too_large")

        def body() -> Any:  # sent in chunks: no length is told beforehand
            yield b'{"model": "tiny", "prompt": "'
            for _ in range(30):
                yield b"x" * 100
            yield b'"}'

        chunked = http.post("/v1/completions", content=body(), headers={"Content-Type": "application/json"})
        assert chunked.status_code == 413
        assert "3 prompts" in refused(http.post("/v1/completions", json=TEXT | {"prompt": ["a"] * 3}), 400, "prompt")
        many = http.post("/v1/completions", json=TEXT | {"prompt": ["a"] * 2, "n": 2})
        assert "4 choices" in refused(many, 400, "prompt")
        assert http.post("/v1/completions", json=TEXT | {"n": 3}).status_code == 200
        assert http.post("/v1/chat/completions", json=CHAT | {"n": 4}).status_code == 400


def test_keys_identify_callers_and_limit_them() -> None:
    keys = [
        KeyConfig(key="secret-of-a", namespace="a", max_concurrent=1),
        KeyConfig(key="secret-of-b", models=["other"]),
    ]
    with serving(chat_engine(max_context=4096), keys=keys) as server, httpx.Client(base_url=server.root) as http:
        for headers in ({}, {"Authorization": "Bearer wrong"}, {"Authorization": "Basic secret-of-a"}):
            answer = http.post("/v1/completions", json=TEXT, headers=headers)
            assert answer.status_code == 401 and answer.headers["www-authenticate"] == "Bearer"
            assert answer.json()["error"]["code"] == "invalid_api_key" and "secret" not in answer.text
        assert http.get("/v1/models").status_code == 401
        a, b = ({"Authorization": f"Bearer secret-of-{name}"} for name in "ab")
        assert http.post("/v1/completions", json=TEXT, headers=a).status_code == 200
        assert server.backend.records[-1].namespace == "a"
        assert http.post("/v1/completions", json=TEXT, headers=b).status_code == 404
        assert http.get("/v1/models", headers=b).json()["data"] == []
        long = TEXT | {"stream": True, "max_tokens": 3000, "ignore_eos": True}
        with http.stream("POST", "/v1/completions", json=long, headers=a) as stream:
            next(stream.iter_lines())
            second = http.post("/v1/completions", json=TEXT, headers=a)
            assert second.status_code == 429 and second.headers["retry-after"] == "1"
        wait_until(
            lambda: http.post("/v1/completions", json=TEXT, headers=a).status_code == 200, "the place is given back"
        )
        assert http.get("/health").status_code == 200  # probes bring no key


def test_too_long_an_answer_is_a_timeout() -> None:
    config = AppConfig.model_validate({"limits": {"timeout_s": 0.3, "first_token_timeout_s": 0.3}})
    engine = chat_engine(max_context=4096)
    with serving(engine, config) as server, httpx.Client(base_url=server.root) as http:
        long = TEXT | {"max_tokens": 4000, "ignore_eos": True, "prompt": [70] * 20, "drafts": "off"}
        whole = http.post("/v1/completions", json=long)
        assert whole.status_code == 504 and whole.json()["error"]["code"] == "timeout"
        with http.stream("POST", "/v1/completions", json=long | {"stream": True}) as stream:
            lines = [line for line in stream.iter_lines() if line]
        assert '"code":"timeout"' in lines[-1] and lines[-1].startswith("data: ")  # one error event, and the end
        wait_until(lambda: server.backend.engine.open_requests == 0, "the requests are aborted")
        assert [record.outcome for record in server.backend.records] == ["timeout", "timeout"]


def test_engine_that_dies_ends_streams_with_one_error_event(monkeypatch: pytest.MonkeyPatch) -> None:  # fault 32
    engine = chat_engine(max_context=4096)
    with serving(engine) as server, httpx.Client(base_url=server.root) as http:
        long = TEXT | {"max_tokens": 4000, "ignore_eos": True, "stream": True}
        with http.stream("POST", "/v1/completions", json=long) as stream:
            lines = stream.iter_lines()
            next(lines)

            def fail() -> None:
                raise MemoryError("no memory")

            monkeypatch.setattr(engine, "step", fail)
            rest = [line for line in lines if line]
        assert rest[-1].startswith('data: {"error":') and "[DONE]" not in rest[-1]
        assert sum('"error"' in line for line in rest) == 1
        after = http.post("/v1/completions", json=TEXT)
        assert after.status_code == 500 and after.json()["error"]["code"] == "engine_dead"
        assert not server.backend.engine.healthy()


def test_draining_engine_asks_to_come_back() -> None:
    with serving(chat_engine()) as server, httpx.Client(base_url=server.root) as http:
        asyncio.run(server.backend.engine.drain())
        answer = http.post("/v1/completions", json=TEXT)
        assert answer.status_code == 503 and answer.headers["retry-after"] == "1"
