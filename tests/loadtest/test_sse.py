"""What a stream tells, line by line."""

from __future__ import annotations

import pytest

from loadtest.sample import Sample
from loadtest.sse import StreamError, StreamReader, http_error
from tests.loadtest.scripted import DONE, ROLE, event, piece, usage


def read(*parts: tuple[float, bytes]) -> Sample:
    sample = Sample("c", 0, 0.0)
    reader = StreamReader(sample)
    for time, data in parts:
        for line in data.splitlines(keepends=True):
            reader.line(line, time)
    reader.finish()
    return sample


def test_first_token_is_the_first_content_that_is_not_empty() -> None:
    sample = read(
        (0.1, ROLE),
        (0.5, piece("ab")),
        (0.7, piece("c")),
        (1.1, piece("defg", "stop")),
        (1.2, usage(9, 5)),
        (1.2, DONE),
    )
    assert sample.ttft_ms == 500 and sample.chunks == [(0.5, 2), (0.7, 1), (1.1, 4)]
    assert sample.gaps_ms == pytest.approx([200, 400])
    assert sample.time_per_token_ms == pytest.approx(600 / 4)
    assert (sample.prompt_tokens, sample.completion_tokens, sample.finish_reason) == (9, 5, "stop")
    sample.end_s = 1.2
    assert sample.latency_per_token_ms == pytest.approx(240)


def test_statistics_of_the_server_are_kept() -> None:
    told = usage(9, 5, steps=2, mat=2.0, drafted={"logits": 7}, accepted={"logits": 2})
    sample = read((0.1, piece("a")), (0.2, told), (0.2, DONE))
    assert (sample.steps, sample.mat, sample.drafted, sample.accepted) == (2, 2.0, {"logits": 7}, {"logits": 2})


def test_plain_completions_and_comments_are_read_too() -> None:
    text = event({"choices": [{"index": 0, "text": "hi", "finish_reason": "length"}]})
    sample = read((0.1, b": ping\n\n"), (0.2, text), (0.3, usage(1, 1)), (0.3, DONE))
    assert sample.chunks == [(0.2, 2)] and sample.finish_reason == "length" and sample.time_per_token_ms is None


@pytest.mark.parametrize(
    ("parts", "said"),
    [
        ([piece("a"), event({"error": {"message": "the engine died"}})], "error in the stream: the engine died"),
        ([piece("a"), usage(1, 1)], r"without \[DONE\]"),
        ([piece("a"), DONE], "told no usage"),
        ([b"data: {broken\n\n"], "not JSON"),
        ([b"data: 7\n\n"], "no object"),
    ],
)
def test_what_is_no_whole_answer_is_an_error(parts: list[bytes], said: str) -> None:
    with pytest.raises(StreamError, match=said):
        read(*((0.1, part) for part in parts))


def test_tokens_are_counted_where_they_came() -> None:
    sample = Sample("c", 0, 10.0, chunks=[(1.0, 30), (2.0, 10)], completion_tokens=8)
    assert sample.tokens_between(0, 100) == 8
    assert sample.tokens_between(10, 11.5) == 6 and sample.tokens_between(11.5, 20) == 2
    assert Sample.from_json(sample.to_json()).to_json() == sample.to_json()


def test_a_refusal_is_one_sentence() -> None:
    assert http_error(503, b'{"error": {"message": "the queue is full"}}') == "HTTP 503: the queue is full"
    assert http_error(500, b"") == "HTTP 500: no body"
