"""Lines as requests: OpenAI's form, plain prompts, conversations; what is none says why."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deployments.batch.answers import Reply, answer, patiently, refused
from deployments.batch.order import submission_order
from deployments.batch.requests import Item, LineError, Reading
from deployments.calls import Call
from deployments.errors import ApiError
from tests.deployments.batch.helpers import batch_line


def read(line: Any, **reading: Any) -> Item:
    raw = line if isinstance(line, bytes) else json.dumps(line).encode()
    return Reading(**reading).read(raw, 7)


def test_openai_lines_are_taken_as_they_are() -> None:
    assert read(batch_line("a", "x", max_tokens=3)) == Item(
        "a", "completion", {"model": "demo", "prompt": "x", "max_tokens": 3}
    )
    chat = {"messages": [{"role": "user", "content": "x"}], "model": "m"}
    line = {"custom_id": "b", "method": "POST", "url": "/v1/chat/completions", "body": chat}
    assert read(line) == Item("b", "chat", chat)


@pytest.mark.parametrize(
    ("line", "code", "word"),
    [
        (b"{", "invalid_json_line", "not JSON"),
        (b"\xff", "invalid_json_line", "not JSON"),
        (b'{"custom_id": NaN}', "invalid_json_line", "not JSON"),
        ([], "invalid_json_line", "a list"),
        (None, "invalid_json_line", "null"),
        ({"url": "/v1/completions"}, "missing_required_parameter", "custom_id"),
        (batch_line("a", "x") | {"custom_id": ""}, "missing_required_parameter", "custom_id"),
        (batch_line("a", "x") | {"method": "GET"}, "invalid_method", "'GET'"),
        (batch_line("a", "x") | {"url": "/v1/embeddings"}, "invalid_url", "/v1/embeddings"),
        (batch_line("a", "x") | {"url": ["a"]}, "invalid_url", "['a']"),
        (batch_line("a", "x") | {"body": "x"}, "invalid_body", "a text"),
        (batch_line("a", "x") | {"more": 1}, "unsupported_field", "'more'"),
        ({"question": "x"}, "invalid_request", "none of them"),
        ({"prompt": "x", "turns": ["y"]}, "invalid_request", "prompt and turns"),
        ({"prompt": ""}, "invalid_request", "an empty text"),
        ({"turns": []}, "invalid_request", "turns"),
        ({"turns": ["a", 5]}, "invalid_request", "turns"),
    ],
)
def test_what_is_no_request_says_why(line: Any, code: str, word: str) -> None:
    with pytest.raises(LineError) as wrong:
        read(line)
    assert wrong.value.code == code and word in str(wrong.value)
    assert wrong.value.custom_id == ("a" if isinstance(line, dict) and line.get("custom_id") == "a" else None)
    record = json.loads(refused(wrong.value, "in.jsonl:7").record)
    assert record["response"] is None and record["error"]["message"].startswith("in.jsonl:7: ")


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers(-(2**40), 2**40) | st.text(),
        lambda inner: (
            st.lists(inner, max_size=3)
            | st.dictionaries(
                st.sampled_from(["custom_id", "method", "url", "body", "prompt", "turns", "id", "x"]), inner
            )
        ),
    )
)
def test_any_line_is_a_request_or_says_why(line: Any) -> None:
    for reading in (Reading(), Reading(column="x"), Reading(chat=True)):
        try:
            item = reading.read(json.dumps(line).encode(), 1)
        except LineError as error:
            refused(error, "x:1")
        else:
            assert item.custom_id
            submission_order([(1, item)])


def test_plain_lines() -> None:
    assert read(b"caf\xc3\xa9\r\n", form="text", name="p.txt") == Item(
        "p.txt:7", "completion", {"model": "demo", "prompt": "café"}
    )
    given = {"id": 5, "prompt": "x", "max_tokens": 3, "category": "qa"}
    body = {"model": "m", "temperature": 0, "prompt": "x", "max_tokens": 3}
    defaults = {"temperature": 0, "max_tokens": 9}
    assert read(given, model="m", defaults=defaults) == Item("5", "completion", body, (), {"category": "qa"})
    as_chat = read({"prompt": "x"}, chat=True)
    assert as_chat.kind == "chat" and as_chat.body["messages"] == [{"role": "user", "content": "x"}]
    assert read({"messages": [{"role": "user", "content": "x"}]}).kind == "chat"
    in_column = read({"text": "x", "other": 1, "custom_id": "c"}, column="text")
    assert in_column == Item("c", "completion", {"model": "demo", "prompt": "x"})
    of_data = {"text": "x", "url": "https://example.org", "method": "GET", "body": "y"}  # no request of OpenAI's form
    assert read(of_data, column="text").body == {"model": "demo", "prompt": "x"}
    assert read(of_data, column="body").body["prompt"] == "y"
    with pytest.raises(LineError, match="no field 'text'"):
        read({"prompt": "x"}, column="text")
    spec_bench = {"question_id": 81, "category": "writing", "turns": ["a", "b"], "reference": []}
    assert read(spec_bench) == Item(
        "81", "chat", {"model": "demo"}, ("a", "b"), {"category": "writing", "reference": []}
    )
    assert read({"prompt": "x"}, name="in.jsonl").custom_id == "in.jsonl:7"


async def echo(call: Call) -> Reply:
    said = json.dumps(call.body["messages"]) if call.kind == "chat" else call.body["prompt"]
    usage = {"prompt_tokens": 2, "completion_tokens": 3, "total_tokens": 5}
    body = {"choices": [{"message": {"content": f"{len(json.loads(said))} messages"}}], "usage": usage}
    return Reply(json.dumps(body).encode(), usage | {"racer": {"steps": 2, "mat": 1.5}})


def test_turns_go_back_into_the_conversation() -> None:
    result = asyncio.run(answer(Item("a", "chat", {"model": "m"}, ("x", "y")), ("m",), echo))
    body = json.loads(result.record)["response"]["body"]
    assert body["turns"] == ["1 messages", "3 messages"]
    assert body["choices"][0]["message"]["content"] == "3 messages"
    assert body["usage"] == {"prompt_tokens": 4, "completion_tokens": 6, "total_tokens": 10}
    assert (result.tally.steps, result.tally.decided) == (4, 6) and not result.failed


@pytest.mark.parametrize(
    ("body", "status", "code", "param"),
    [
        ({"prompt": "x", "model": "other"}, 404, "model_not_found", "model"),
        ({"prompt": "x", "model": "m", "stream": True}, 400, "invalid_value", "stream"),
        ({"prompt": "x", "model": "m", "nonsense": 1}, 400, "unsupported_field", "nonsense"),
        ({"model": "m"}, 400, "missing_field", "prompt"),
        ({"prompt": "x", "model": "m", "temperature": -1}, 400, "invalid_value", "temperature"),
    ],
)
def test_bodies_mean_what_they_mean_over_http(body: dict[str, Any], status: int, code: str, param: str) -> None:
    result = asyncio.run(answer(Item("a", "completion", body), ("m",), echo))
    record = json.loads(result.record)
    assert result.failed and record["custom_id"] == "a" and record["error"] is None
    assert record["response"]["status_code"] == status
    error = record["response"]["body"]["error"]
    assert (error["code"], error["param"]) == (code, param)


def test_passing_errors_are_asked_again_until_time_is_up() -> None:
    tried: list[int] = []

    async def full(call: Call) -> Reply:
        tried.append(1)
        if len(tried) == 3:
            return Reply(b"{}", {})
        raise ApiError(503, "full")

    call = Call("a", "completion", {}, "")
    assert asyncio.run(patiently(full, call, 0.001, 10)).body == b"{}"
    tried.clear()
    with pytest.raises(ApiError):
        asyncio.run(patiently(full, call, 0.01, 0.005))
    assert len(tried) == 1


def test_submission_order() -> None:
    common = "the same beginning of a prompt, which is longer than what is compared, " * 2
    prompts = ["short", common + "b", "long" * 400, "other", common + "a", common]
    items = [(i, Item(str(i), "completion", {"prompt": prompt, "max_tokens": 10})) for i, prompt in enumerate(prompts)]
    order = [i for i, _ in submission_order(items)]
    assert sorted(order) == list(range(6))
    assert order[0] == 2  # the longest first
    at = order.index(5)
    assert order[at : at + 3] == [5, 4, 1]  # one beginning, one stretch
    many = (9, Item("9", "completion", {"prompt": "x", "max_tokens": 5000}))
    assert submission_order([*items, many])[0] == many
