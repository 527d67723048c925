"""What the endpoint answers: the engine's own tokens, in OpenAI's forms, whole or streamed."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import httpx
import openai
import pytest

from racer import Request, SamplingParams, StepOutput
from racer.text import render_chat
from tests.deployments.local import Served
from tests.racer.engine.helpers import EOS

CHAT: list[Any] = [{"role": "user", "content": "abc abc abc"}]
GREEDY: dict[str, Any] = {"model": "tiny", "temperature": 0, "max_tokens": 24}


def plain_text(served: Served, prompt: list[int], **params: Any) -> str:
    """What the engine decodes by itself, without drafts."""
    request = Request(tuple(prompt), SamplingParams(**({"max_tokens": 24, "drafts": "off"} | params)))
    return "".join(output.text for output in outputs(served, request))


def decoded(served: Served, request: Request) -> list[int]:
    return [token for output in outputs(served, request) for token in output.token_ids]


def outputs(served: Served, request: Request) -> list[StepOutput]:
    async def run() -> list[StepOutput]:
        return [output async for output in served.backend.engine.generate(request)]

    return asyncio.run(run())


def events(lines: list[str]) -> list[dict[str, Any]]:
    data = [line.removeprefix("data: ") for line in lines if line]
    assert data[-1] == "[DONE]"
    return [json.loads(one) for one in data[:-1]]


def test_chat_whole_and_streamed_are_the_engines_tokens(served: Served, client: openai.OpenAI) -> None:
    expected = plain_text(served, render_chat(served.engine.tokenizer, CHAT))
    whole = client.chat.completions.create(messages=CHAT, **GREEDY)
    assert whole.choices[0].message.content == expected and whole.choices[0].finish_reason == "length"
    assert whole.id.startswith("chatcmpl-") and whole.object == "chat.completion" and whole.model == "tiny"
    stream = client.chat.completions.create(
        messages=CHAT, stream=True, stream_options={"include_usage": True}, **GREEDY
    )
    chunks = list(stream)
    assert chunks[0].choices[0].delta.role == "assistant"
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices) == expected
    assert [chunk.choices[0].finish_reason for chunk in chunks if chunk.choices][-1] == "length"
    assert chunks[-1].choices == [] and chunks[-1].usage is not None
    assert all(chunk.usage is None for chunk in chunks[:-1])
    assert chunks[-1].usage == whole.usage
    assert len({chunk.id for chunk in chunks}) == 1


def test_completions_take_text_tokens_and_lists_of_them(served: Served, client: openai.OpenAI) -> None:
    ids = list(served.engine.tokenizer("abcabc").input_ids)
    expected = plain_text(served, ids)
    prompts: list[Any] = ["abcabc", ids, ["abcabc"], [ids]]
    for prompt in prompts:
        answer = client.completions.create(prompt=prompt, **GREEDY)
        assert answer.choices[0].text == expected and answer.object == "text_completion"
    several = client.completions.create(prompt=["abcabc", "xyzxyz"], n=2, **GREEDY)
    other = plain_text(served, list(served.engine.tokenizer("xyzxyz").input_ids))
    assert [choice.text for choice in several.choices] == [expected, expected, other, other]
    assert [choice.index for choice in several.choices] == [0, 1, 2, 3]
    assert several.usage is not None and several.usage.prompt_tokens == 12 and several.usage.completion_tokens == 96


def test_several_choices_stream_under_their_numbers(served: Served, client: openai.OpenAI) -> None:
    whole = client.completions.create(model="tiny", prompt="abc", n=3, seed=7, max_tokens=12)
    texts = {0: "", 1: "", 2: ""}
    for chunk in client.completions.create(model="tiny", prompt="abc", n=3, seed=7, max_tokens=12, stream=True):
        for choice in chunk.choices:
            texts[choice.index] += choice.text
    assert [texts[i] for i in range(3)] == [choice.text for choice in whole.choices]
    assert len(set(texts.values())) == 3


def test_usage_counts_what_drafts_foresaw(client: openai.OpenAI) -> None:
    drafted = client.completions.create(prompt="abcabcabc", extra_body={"return_stats": True}, **GREEDY)
    plain = client.completions.create(prompt="abcabcabc", extra_body={"drafts": "off", "return_stats": True}, **GREEDY)
    assert drafted.choices[0].text == plain.choices[0].text
    assert drafted.usage is not None and plain.usage is not None
    assert (drafted.usage.prompt_tokens, drafted.usage.completion_tokens) == (9, 24)
    details = drafted.usage.completion_tokens_details
    stats = drafted.usage.to_dict()["racer"]
    assert details is not None and isinstance(stats, dict)
    assert details.accepted_prediction_tokens == sum(stats["accepted"].values()) > 0
    assert details.rejected_prediction_tokens == sum(stats["drafted"].values()) - sum(stats["accepted"].values())
    assert stats["mat"] == pytest.approx(23 / stats["steps"], abs=1e-3) and stats["steps"] < 23
    assert plain.usage.to_dict()["racer"]["mat"] == 1.0
    assert "racer" not in client.completions.create(prompt="abc", **GREEDY).usage.to_dict()


def test_budget_caps_the_drafts_of_one_request(client: openai.OpenAI) -> None:
    small, large = (
        client.completions.create(prompt="abcabcabc", extra_body={"budget": budget, "return_stats": True}, **GREEDY)
        for budget in (2, 16)
    )
    assert small.choices[0].text == large.choices[0].text
    per_step = [
        sum(one.usage.to_dict()["racer"]["drafted"].values()) / one.usage.to_dict()["racer"]["steps"]
        for one in (small, large)
    ]
    assert per_step[0] <= 1 < per_step[1]


def test_seed_gives_the_same_text_with_and_without_drafts(client: openai.OpenAI) -> None:
    texts = [
        client.completions.create(model="tiny", prompt="abcabc", seed=11, max_tokens=24, extra_body=body)
        .choices[0]
        .text
        for body in ({}, {}, {"drafts": "off"}, {"budget": 3})
    ]
    assert len(set(texts)) == 1
    assert client.completions.create(model="tiny", prompt="abcabc", seed=-5, max_tokens=24).choices[0].text


@pytest.mark.parametrize("cut", ["chat", "completion"])
def test_stop_string_never_leaks_however_it_is_cut(served: Served, client: openai.OpenAI, cut: str) -> None:  # fault 24
    ids = list(served.engine.tokenizer("abcabc").input_ids)
    text = plain_text(served, render_chat(served.engine.tokenizer, CHAT) if cut == "chat" else ids)
    stop = text[7:12]
    before = text[: text.index(stop)]
    if cut == "chat":
        whole: Any = client.chat.completions.create(messages=CHAT, stop=stop, **GREEDY)
        stream: Any = client.chat.completions.create(messages=CHAT, stop=[stop], stream=True, **GREEDY)
        assert whole.choices[0].message.content == before
        pieces = [chunk.choices[0].delta.content or "" for chunk in stream]
    else:
        whole = client.completions.create(prompt="abcabc", stop=stop, **GREEDY)
        stream = client.completions.create(prompt="abcabc", stop=[stop], stream=True, **GREEDY)
        assert whole.choices[0].text == before
        pieces = [chunk.choices[0].text for chunk in stream]
    assert "".join(pieces) == before and whole.choices[0].finish_reason == "stop"


def test_chat_logprobs_are_the_plain_ones(client: openai.OpenAI) -> None:  # fault 14
    answers = [
        client.chat.completions.create(
            messages=CHAT, logprobs=True, top_logprobs=3, extra_body={"drafts": drafts}, **GREEDY
        )
        for drafts in ("off", "racer")
    ]
    plain, drafted = ([*one.choices[0].logprobs.content] for one in answers)
    assert len(plain) == len(drafted) == 24
    for a, b in zip(plain, drafted, strict=True):
        assert a.token == b.token and a.logprob == pytest.approx(b.logprob, abs=1e-3)
        assert a.bytes is not None and len(a.top_logprobs) == 3
        assert a.top_logprobs[0].logprob == pytest.approx(a.logprob, abs=1e-5)  # greedy takes the most likely
    assert any(entry.logprob < -1e-6 for entry in plain)
    joined = bytes(byte for entry in plain for byte in entry.bytes or ())
    assert joined.decode(errors="replace") == answers[0].choices[0].message.content
    streamed = [
        entry
        for chunk in client.chat.completions.create(messages=CHAT, logprobs=True, top_logprobs=3, stream=True, **GREEDY)
        for entry in (chunk.choices[0].logprobs.content or [] if chunk.choices[0].logprobs else [])
    ]
    assert [entry.token for entry in streamed] == [entry.token for entry in plain]


def test_echo_scores_the_prompt(served: Served, client: openai.OpenAI) -> None:  # fault 29
    answer = client.completions.create(model="tiny", prompt="abcab", echo=True, logprobs=2, max_tokens=1, temperature=0)
    choice = answer.choices[0]
    assert choice.text.startswith("abcab") and len(choice.text) == 6
    found = choice.logprobs
    assert found is not None and found.tokens is not None and found.token_logprobs is not None
    assert found.tokens[:5] == ["a", "b", "c", "a", "b"] and len(found.tokens) == 6
    assert found.token_logprobs[0] is None and all(
        value is not None and value < 0 for value in found.token_logprobs[1:]
    )
    assert found.top_logprobs is not None and found.top_logprobs[0] is None and len(found.top_logprobs[1]) == 2
    assert found.text_offset == [0, 1, 2, 3, 4, 5]
    streamed = list(
        client.completions.create(
            model="tiny", prompt="abcab", echo=True, logprobs=2, max_tokens=1, temperature=0, stream=True
        )
    )
    assert "".join(chunk.choices[0].text for chunk in streamed) == choice.text


@pytest.mark.parametrize("field", ["max_tokens", "max_completion_tokens"])
def test_both_names_of_the_length_cap(client: openai.OpenAI, field: str) -> None:  # fault 27
    answer = client.chat.completions.create(**(GREEDY | {"messages": CHAT, "max_tokens": None, field: 5}))
    assert answer.usage is not None and answer.usage.completion_tokens == 5


def test_prompt_tokens_are_the_templates(served: Served, client: openai.OpenAI) -> None:  # fault 28
    expected = len(render_chat(served.engine.tokenizer, CHAT))
    answer = client.chat.completions.create(messages=CHAT, **GREEDY)
    assert answer.usage is not None and answer.usage.prompt_tokens == expected


def test_parts_and_developer_are_texts_and_system(served: Served, client: openai.OpenAI) -> None:
    parts: Any = [
        {"role": "developer", "content": "be brief"},
        {"role": "user", "content": [{"type": "text", "text": "ab"}, {"type": "text", "text": "cd"}]},
    ]
    same: Any = [{"role": "system", "content": "be brief"}, {"role": "user", "content": "abcd"}]
    one, other = (client.chat.completions.create(messages=messages, **GREEDY) for messages in (parts, same))
    assert one.choices[0].message.content == other.choices[0].message.content


@pytest.mark.parametrize(
    ("name", "one", "other"),
    [
        ("temperature", 0, 1.5),
        ("top_p", 1, 0.05),
        ("top_k", 0, 1),
        ("min_p", 0, 0.99),
        ("frequency_penalty", -2, 2),  # fault 10
        ("presence_penalty", 0, 2),
        ("repetition_penalty", 1, 5),
        ("logit_bias", {}, {"70": 100}),
        ("seed", 1, 2),
        ("min_tokens", 0, 20),
        ("ignore_eos", False, True),
        ("stop_token_ids", [], list(range(3, 120))),
    ],
)
def test_every_sampling_field_does_something(http: httpx.Client, name: str, one: Any, other: Any) -> None:
    body = {"model": "tiny", "prompt": "abcabc", "seed": 3, "max_tokens": 24, "temperature": 0.9}
    if name == "min_tokens":
        body["stop_token_ids"] = list(range(3, 120))
    if name == "ignore_eos":
        body["logit_bias"] = {str(EOS): 3}
    answers = []
    for value in (one, other):
        for drafts in ("off", "racer"):
            answer = http.post("/v1/completions", json=body | {name: value, "drafts": drafts})
            assert answer.status_code == 200, answer.text
            answers.append(answer.json()["choices"][0]["text"])
    assert answers[0] == answers[1] and answers[2] == answers[3], "drafts changed the text"
    assert answers[0] != answers[2]


def test_banned_token_never_appears(served: Served, http: httpx.Client) -> None:  # fault 11
    body = {"model": "tiny", "prompt": "abcabcabc", "temperature": 0, "max_tokens": 24}
    ids = tuple(served.engine.tokenizer("abcabcabc").input_ids)
    plain = decoded(served, Request(ids, SamplingParams(max_tokens=24)))
    banned = max(set(plain), key=plain.count)
    without = http.post("/v1/completions", json=body | {"logit_bias": {str(banned): -100}, "logprobs": 0}).json()
    name = served.engine.tokenizer.decode([banned])
    assert without["choices"][0]["logprobs"]["tokens"] and name not in without["choices"][0]["logprobs"]["tokens"]
    asked = decoded(served, Request(ids, SamplingParams(max_tokens=24, logit_bias={banned: -100.0})))
    assert banned not in asked


def test_models_health_and_readiness(served: Served, http: httpx.Client) -> None:
    listed = http.get("/v1/models").json()
    assert [model["id"] for model in listed["data"]] == ["tiny"]
    assert http.get("/v1/models/tiny").json()["object"] == "model"
    assert http.get("/v1/models/none").status_code == 404
    assert http.get("/health").json() == {"status": "ok"}
    assert http.get("/ready").status_code == 200
    served.backend.state = "not ready (RuntimeError)"
    try:
        answer = http.get("/ready")
        assert answer.status_code == 503 and answer.json()["models"] == {"tiny": "not ready (RuntimeError)"}
    finally:
        served.backend.state = "ready"


def test_request_id_comes_back(served: Served, http: httpx.Client) -> None:
    body = {"model": "tiny", "prompt": "abc", "max_tokens": 2, "ignore_eos": True, "user": "u1"}
    given = http.post("/v1/completions", json=body, headers={"X-Request-Id": "mine-1"})
    assert given.headers["x-request-id"] == "mine-1" and given.json()["id"] == "cmpl-mine-1"
    made = http.post("/v1/completions", json=body, headers={"X-Request-Id": "not usable!"})
    assert made.headers["x-request-id"] not in ("", "not usable!")
    assert http.get("/v1/nothing").headers["x-request-id"]
    record = next(one for one in served.backend.records if one.request_id == "mine-1")
    assert record.user == "u1" and record.outcome == "ok" and record.usage["completion_tokens"] == 2


def test_events_of_a_stream_are_well_formed(http: httpx.Client) -> None:
    body = {"model": "tiny", "prompt": "abcabc", "max_tokens": 8, "temperature": 0, "stream": True}
    with http.stream("POST", "/v1/completions", json=body) as answer:
        assert answer.headers["content-type"].startswith("text/event-stream")
        assert "content-length" not in answer.headers
        chunks = events(list(answer.iter_lines()))
    whole = http.post("/v1/completions", json=body | {"stream": False}).json()
    assert "".join(chunk["choices"][0]["text"] for chunk in chunks) == whole["choices"][0]["text"]
    assert "usage" not in chunks[0]
