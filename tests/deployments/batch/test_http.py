"""Files and batches of the endpoint under OpenAI's own client, on a server that is ended and started again."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import httpx
import openai
import pytest

from deployments.config import AppConfig, KeyConfig
from tests.deployments.batch.helpers import batch_line
from tests.deployments.local import Served, chat_engine, serving, wait_until

LINE = batch_line("one", "abc", model="tiny", max_tokens=4, temperature=0)


def config(folder: Path, **settings: Any) -> AppConfig:
    models = [{"name": "tiny"}]
    return AppConfig.model_validate({"models": models, "batches": {"folder": str(folder)} | settings})


@contextlib.contextmanager
def served(folder: Path, keys: list[KeyConfig] | None = None, **settings: Any) -> Iterator[Served]:
    with serving(chat_engine(max_context=256), config(folder, **settings), keys) as server:
        yield server


def client_of(server: Served, key: str = "none") -> openai.OpenAI:
    return openai.OpenAI(base_url=server.url, api_key=key, max_retries=0)


def upload(client: openai.OpenAI, lines: list[Any]) -> str:
    data = "".join((line if isinstance(line, str) else json.dumps(line)) + "\n" for line in lines).encode()
    return client.files.create(file=("in.jsonl", data), purpose="batch").id


def begin(
    client: openai.OpenAI,
    lines: list[Any],
    endpoint: Literal["/v1/completions", "/v1/chat/completions"] = "/v1/completions",
    **more: Any,
) -> str:
    made = client.batches.create(
        input_file_id=upload(client, lines), endpoint=endpoint, completion_window="24h", **more
    )
    assert made.status == "validating"
    return made.id


def ended(client: openai.OpenAI, batch_id: str, timeout_s: float = 30) -> Any:
    wait_until(
        lambda: client.batches.retrieve(batch_id).status in ("completed", "failed", "expired", "cancelled"),
        "the batch ends",
        timeout_s,
    )
    return client.batches.retrieve(batch_id)


def completed(client: openai.OpenAI, batch_id: str) -> int:
    counts = client.batches.retrieve(batch_id).request_counts
    assert counts is not None
    return counts.completed


def content(client: openai.OpenAI, file_id: str | None) -> list[Any]:
    assert file_id is not None
    return [json.loads(line) for line in client.files.content(file_id).text.splitlines()]


def slow(count: int) -> list[dict[str, Any]]:
    return [batch_line(f"r{i}", f"{i} abc", model="tiny", max_tokens=100, ignore_eos=True) for i in range(count)]


def test_a_batch_from_upload_to_output(tmp_path: Path) -> None:
    with served(tmp_path) as server, client_of(server) as client:
        lines = [LINE, batch_line("two", "x" * 500, model="tiny"), batch_line("three", "a", model="other")]
        batch_id = begin(client, lines, metadata={"for": "a test"})
        batch = ended(client, batch_id)
        assert batch.status == "completed" and batch.metadata == {"for": "a test"}
        counts = batch.request_counts
        assert (counts.total, counts.completed, counts.failed) == (3, 1, 2)
        assert batch.in_progress_at and batch.finalizing_at and batch.completed_at and batch.expires_at
        assert batch.usage is not None and batch.usage.output_tokens == 4
        (answer,) = content(client, batch.output_file_id)
        expected = client.completions.create(**LINE["body"])
        assert answer["custom_id"] == "one" and answer["error"] is None
        assert answer["response"]["status_code"] == 200
        assert answer["response"]["body"]["choices"][0]["text"] == expected.choices[0].text
        errors = {record["custom_id"]: record["response"] for record in content(client, batch.error_file_id)}
        assert errors["two"]["status_code"] == 400
        assert errors["two"]["body"]["error"]["code"] == "context_length_exceeded"
        assert errors["three"]["status_code"] == 404
        assert [one.id for one in client.batches.list()] == [batch_id]
        purposes = sorted(one.purpose for one in client.files.list())
        assert purposes == ["batch", "batch_output", "batch_output"]


def test_a_batch_of_chats(tmp_path: Path) -> None:
    with served(tmp_path) as server, client_of(server) as client:
        asked: Any = {"model": "tiny", "messages": [{"role": "user", "content": "abc"}], "max_tokens": 4}
        line = LINE | {"url": "/v1/chat/completions", "body": asked | {"temperature": 0}}
        batch = ended(client, begin(client, [line], "/v1/chat/completions"))
        (answer,) = content(client, batch.output_file_id)
        expected = client.chat.completions.create(**line["body"])
        message = answer["response"]["body"]["choices"][0]["message"]
        assert message["content"] == expected.choices[0].message.content and batch.request_counts.completed == 1


@pytest.mark.parametrize(
    ("lines", "code", "line"),
    [
        ([LINE, "[1]"], "invalid_json_line", 2),
        ([LINE, "{"], "invalid_json_line", 2),
        ([LINE, LINE], "duplicate_custom_id", 2),
        ([LINE | {"custom_id": 5}], "missing_required_parameter", 1),
        ([LINE | {"url": "/v1/chat/completions"}], "mismatched_url", 1),
        ([LINE | {"url": "/v1/embeddings"}], "invalid_url", 1),
        ([LINE | {"method": "GET"}], "invalid_method", 1),
        ([LINE | {"body": []}], "invalid_body", 1),
        ([LINE | {"more": 1}], "unsupported_field", 1),
        ([" "], "empty_file", None),
        ([LINE | {"custom_id": str(i)} for i in range(4)], "too_many_requests", None),
    ],
)
def test_wrong_files_fail_and_say_why(validating: openai.OpenAI, lines: list[Any], code: str, line: int | None) -> None:
    batch = ended(validating, begin(validating, lines))
    assert batch.status == "failed" and batch.failed_at and batch.output_file_id is None
    assert batch.errors is not None and batch.errors.data is not None
    assert [(error.code, error.line) for error in batch.errors.data] == [(code, line)]


@pytest.fixture(scope="module")
def validating(tmp_path_factory: pytest.TempPathFactory) -> Iterator[openai.OpenAI]:
    with served(tmp_path_factory.mktemp("batches"), max_requests=3) as server, client_of(server) as client:
        yield client


def test_cancelled_keeps_what_is_answered(tmp_path: Path) -> None:
    with served(tmp_path, max_in_flight=2) as server, client_of(server) as client:
        batch_id = begin(client, slow(200))
        wait_until(lambda: completed(client, batch_id) > 2, "some are answered", 30)
        source = client.batches.retrieve(batch_id).input_file_id
        with pytest.raises(openai.ConflictError, match=batch_id):
            client.files.delete(source)
        described = tmp_path / "files" / f"{source}.json"  # nor does it go when its time is over
        described.write_text(json.dumps(json.loads(described.read_text()) | {"expires_at": int(time.time()) - 1}))
        assert client.batches.cancel(batch_id).status == "cancelling"
        batch = ended(client, batch_id)
        assert batch.status == "cancelled" and batch.cancelling_at and batch.cancelled_at
        done = batch.request_counts.completed
        assert 2 < done < 200 and len(content(client, batch.output_file_id)) == done
        with pytest.raises(openai.ConflictError):
            client.batches.cancel(batch_id)
        wait_until(lambda: not server.engine.has_work, "nothing is decoded any more")
        wait_until(lambda: not described.exists(), "the input goes now that nobody reads it")


def test_expired_has_a_record_for_each_line(tmp_path: Path) -> None:
    with served(tmp_path, max_in_flight=2, window_s=2) as server, client_of(server) as client:
        batch = ended(client, begin(client, slow(300)))
        assert batch.status == "expired" and batch.expired_at
        answers, errors = content(client, batch.output_file_id), content(client, batch.error_file_id)
        assert {record["custom_id"] for record in answers + errors} == {f"r{i}" for i in range(300)}
        assert len(answers) + len(errors) == 300 and {record["error"]["code"] for record in errors} == {"batch_expired"}


def test_goes_on_after_a_restart_and_runs_once(tmp_path: Path) -> None:
    with served(tmp_path, max_in_flight=2) as server, client_of(server) as client:
        batch_id = begin(client, slow(40))
        wait_until(lambda: completed(client, batch_id) > 5, "some are answered", 30)
    (records,) = (tmp_path / "batches").glob("*.records")
    before = records.read_bytes()
    records.write_bytes(before + b'{"request": 39, "fai')  # as a killed process leaves it
    with served(tmp_path) as server, served(tmp_path) as other, client_of(server) as client:  # two replicas, one batch
        batch = ended(client, batch_id)
        answers = content(client, batch.output_file_id)
        assert batch.status == "completed" and batch.request_counts.completed == 40
        assert sorted(record["custom_id"] for record in answers) == sorted(f"r{i}" for i in range(40))
        kept = [json.loads(line)["record"]["id"] for line in before.splitlines()]
        assert len(kept) > 5 and set(kept) <= {record["id"] for record in answers}
        decoded = [len(one.backend.records) for one in (server, other)]
        assert sorted(decoded) == [0, 40 - len(kept)]


def test_no_more_are_under_way_than_may_be(tmp_path: Path) -> None:
    """Of all batches together."""
    with served(tmp_path, max_in_flight=3) as server, client_of(server) as client:
        under_way, most, answer = 0, 0, server.backend.answer

        async def counted(model: str, call: Any) -> Any:
            nonlocal under_way, most
            under_way += 1
            most = max(most, under_way)
            try:
                async for piece in answer(model, call):
                    yield piece
            finally:
                under_way -= 1

        server.backend.answer = counted  # type: ignore[method-assign]
        batches = [begin(client, slow(5)) for _ in range(2)]
        assert [ended(client, one).request_counts.completed for one in batches] == [5, 5]
        assert most == 3


def test_overloaded_is_asked_again(tmp_path: Path) -> None:
    with served(tmp_path) as server, client_of(server) as client:
        refused: list[int] = []
        answer = server.backend.answer

        async def sometimes(model: str, call: Any) -> Any:
            from deployments.calls import Piece
            from deployments.errors import ApiError

            if len(refused) < 2:
                refused.append(1)
                yield Piece(error=ApiError(503, "full", code="overloaded").to_wire())
                return
            async for piece in answer(model, call):
                yield piece

        server.backend.answer = sometimes  # type: ignore[method-assign]
        batch = ended(client, begin(client, [LINE]))
        assert batch.request_counts.completed == 1 and len(refused) == 2


def test_keys_see_their_own_only(tmp_path: Path) -> None:
    keys = [KeyConfig(key="key-of-one"), KeyConfig(key="key-of-two", models=["none"])]
    with (
        served(tmp_path, keys) as server,
        client_of(server, "key-of-one") as one,
        client_of(server, "key-of-two") as two,
    ):
        batch = ended(one, begin(one, [LINE]))
        assert batch.request_counts.completed == 1
        with pytest.raises(openai.NotFoundError):
            two.batches.retrieve(batch.id)
        with pytest.raises(openai.NotFoundError):
            two.files.content(batch.output_file_id)
        with pytest.raises(openai.NotFoundError):
            two.batches.create(input_file_id=batch.input_file_id, endpoint="/v1/completions", completion_window="24h")
        assert not two.files.list().data and not two.batches.list().data
        mine = ended(two, begin(two, [LINE]))  # of a key that may not use the model
        assert mine.request_counts.failed == 1
        with pytest.raises(openai.AuthenticationError):
            client_of(server, "nobody").files.list()
    with served(tmp_path, keys[1:]) as server, client_of(server, "key-of-two") as two:
        assert two.batches.retrieve(mine.id).status == "completed"


def test_files_are_listed_read_deleted_and_expire(tmp_path: Path) -> None:
    with served(tmp_path, file_bytes=2048) as server, client_of(server) as client:
        made = client.files.create(
            file=("a.jsonl", b"{}\n"), purpose="batch", expires_after={"anchor": "created_at", "seconds": 3600}
        )
        assert (made.filename, made.bytes, made.purpose) == ("a.jsonl", 3, "batch")
        assert made.expires_at == made.created_at + 3600
        second = upload(client, [LINE])
        assert client.files.retrieve(second).bytes == len(json.dumps(LINE)) + 1
        assert {one.id for one in client.files.list(limit=1)} == {made.id, second}  # page by page
        assert client.files.content(made.id).content == b"{}\n"
        described = tmp_path / "files" / f"{made.id}.json"
        described.write_text(json.dumps(json.loads(described.read_text()) | {"expires_at": int(time.time()) - 1}))
        with pytest.raises(openai.NotFoundError):
            client.files.retrieve(made.id)
        wait_until(lambda: not described.exists(), "it is deleted")
        assert client.files.delete(second).deleted
        with pytest.raises(openai.NotFoundError):
            client.files.delete(second)
        for wrong in ("..%2Fx", "x" * 100, "none"):
            assert httpx.get(f"{server.url}/files/{wrong}").status_code == 404
        with pytest.raises(openai.BadRequestError, match="purpose"):
            client.files.create(file=("a", b"x"), purpose="vision")
        with pytest.raises(openai.BadRequestError, match="empty"):
            client.files.create(file=("a", b""), purpose="batch")
        with pytest.raises(openai.APIStatusError) as large:
            client.files.create(file=("a", b"x" * (80 << 10)), purpose="batch")
        assert large.value.status_code == 413
        body = {"input_file_id": "none", "endpoint": "/v1/completions", "completion_window": "24h"}
        for change, status in (
            ({}, 404),
            ({"completion_window": "1h"}, 400),
            ({"endpoint": "/v1/x"}, 400),
            ({"z": 1}, 400),
        ):
            assert httpx.post(f"{server.url}/batches", json=body | change).status_code == status


def test_without_a_folder_there_is_none(tmp_path: Path) -> None:
    with serving(chat_engine(max_context=256)) as server:
        assert httpx.get(f"{server.url}/batches").status_code == 404
