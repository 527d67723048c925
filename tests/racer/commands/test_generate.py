from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from racer import Engine, Request, SamplingParams
from racer.commands.opening import open_engine
from racer.text import render_chat
from tests.racer.commands.conftest import Command
from tests.racer.engine.helpers import Answer, decode

Write = Callable[..., str]


def expected(engine: Engine, prompt: list[int], **params: Any) -> Answer:
    return decode(engine, [Request(tuple(prompt), SamplingParams(**params))])[0][0]


def chat(engine: Engine, *texts: str) -> list[int]:
    """Prompt of a conversation whose roles alternate."""
    roles = ("user", "assistant")
    assert engine.tokenizer is not None
    return render_chat(engine.tokenizer, [{"role": roles[i % 2], "content": text} for i, text in enumerate(texts)])


def plain(engine: Engine, text: str) -> list[int]:
    assert engine.tokenizer is not None
    return list(engine.tokenizer(text).input_ids)


def without(record: dict[str, Any], *names: str) -> dict[str, Any]:
    return {name: value for name, value in record.items() if name not in names}


def test_records_of_every_kind_of_line(racer: Command, engine: Engine, jsonl: Write, tmp_path: Path) -> None:
    source = jsonl(
        {"prompt": "the cat", "category": "animals"},
        {"id": "chat", "messages": [{"role": "user", "content": "hello"}], "max_tokens": 5},
        "",
        {"question_id": 7, "turns": ["one", "two", "three"], "reference": ["x"]},
    )
    target = tmp_path / "out.jsonl"
    done = racer("generate", "--input", source, "--output", str(target), "--max-tokens", "12")
    assert (done.code, done.out) == (0, "")
    first, second, third = map(json.loads, target.read_text().splitlines())

    answer = expected(engine, plain(engine, "the cat"), max_tokens=12)
    assert without(first, "elapsed_s", "steps", "mat") == {
        "id": 1,
        "category": "animals",
        "text": answer.text,
        "token_ids": answer.token_ids,
        "finish_reason": "length",
        "usage": {"prompt_tokens": 6, "completion_tokens": 12, "total_tokens": 18},  # "th" is one token
    }
    assert first["mat"] == round(11 / first["steps"], 4) and 0 < first["elapsed_s"] < 60

    answer = expected(engine, chat(engine, "hello"), max_tokens=5)
    assert (second["id"], second["token_ids"], second["text"]) == ("chat", answer.token_ids, answer.text)

    said: list[str] = []
    answers = []
    for turn in ("one", "two", "three"):
        answers.append(expected(engine, chat(engine, *said, turn), max_tokens=12))
        said += [turn, answers[-1].text]
    assert third["id"] == 7 and third["reference"] == ["x"]
    assert third["token_ids"] == [a.token_ids for a in answers]
    assert third["text"] == [a.text for a in answers]
    assert [u["prompt_tokens"] for u in third["usage"]] == [a.stats.prompt_tokens for a in answers]
    assert all(len(third[name]) == 3 for name in ("finish_reason", "steps", "mat", "elapsed_s"))


@pytest.mark.parametrize("concurrency", ["1", "3"])
def test_order_and_ids_do_not_depend_on_concurrency(
    racer: Command, engine: Engine, jsonl: Write, concurrency: str
) -> None:
    lines = [{"prompt": f"number {i}", "max_tokens": 20 - 3 * i} for i in range(6)]  # later ones end earlier
    done = racer("generate", "--input", jsonl(*lines), "--json", "--concurrency", concurrency)
    assert [r["id"] for r in done.records] == [1, 2, 3, 4, 5, 6]
    for i, record in enumerate(done.records):
        answer = expected(engine, plain(engine, f"number {i}"), max_tokens=20 - 3 * i)
        assert record["token_ids"] == answer.token_ids


@pytest.mark.parametrize(
    "line, sentence",
    [
        ("{oops", "the line is not JSON (Expecting property name enclosed in double quotes, column 2)"),
        ("[1]", "the line is no JSON object but a list"),
        ("{}", "has none of them"),
        ('{"prompt": "a", "turns": ["b"]}', "has prompt and turns"),
        ('{"prompt": 3}', "prompt must be text, not a number"),
        ('{"prompt": ""}', "prompt must not be empty"),
        ('{"prompt": "\\ud800"}', "half of a surrogate pair"),
        ('{"prompt": "a", "id": "\\ud800"}', "half of a surrogate pair"),
        ('{"prompt": "a", "category": "\\udfff"}', "half of a surrogate pair"),
        ('{"prompt": "a", "\\ud800": 1}', "half of a surrogate pair"),
        ('{"messages": [{"role": "\\ud800", "content": "a"}]}', "half of a surrogate pair"),
        ('{"prompt": "a", "id": NaN}', "the line is not JSON (NaN is no JSON value)"),
        ('{"prompt": "a", "stop_token_ids": [-1]}', "stop_token_ids names token -1"),
        ('{"turns": []}', "turns must be a list of texts, not an empty list"),
        ('{"turns": ["a", null]}', "turns must be text, not null"),
        ('{"messages": [{"role": "user"}]}', "content of a message must be text, not null"),
        ('{"messages": ["hi"]}', "an object with role and content"),
        ('{"prompt": "a", "max_token": 3}', "unknown field 'max_token'"),
        ('{"prompt": "a", "n": 2}', "unknown field 'n'"),
        ('{"prompt": "a", "top_p": 2}', "top_p=2 is not valid"),
        ('{"prompt": "' + "long " * 200 + '"}', "shorten the prompt"),
    ],
)
def test_bad_line_is_named_and_costs_nothing_else(racer: Command, jsonl: Write, line: str, sentence: str) -> None:
    source = jsonl({"id": "a", "prompt": "x"}, line, {"id": "c", "prompt": "y"})
    done = racer("generate", "--input", source, "--json", "--max-tokens", "3")
    assert done.code == 2
    assert [r["id"] for r in done.records] == ["a", 2, "c"]
    assert [len(r.get("token_ids", [])) for r in done.records] == [3, 0, 3]
    assert done.records[1].keys() == {"id", "error"} and sentence in done.records[1]["error"]
    assert f"error: {source}:2: {done.records[1]['error']}\n" in done.err


def test_conversation_that_outgrows_the_context_keeps_its_first_answers(racer: Command, jsonl: Write) -> None:
    source = jsonl({"turns": ["a", "b", "c"]})
    done = racer("generate", "--input", source, "--json", "--max-tokens", "40", "--max-context", "100")
    (record,) = done.records
    assert done.code == 2 and "together more than the context of 100" in record["error"]
    assert list(map(len, record["token_ids"])) == [40] and len(record["text"]) == 1


def test_prompt_streams_its_text(racer: Command, engine: Engine) -> None:
    done = racer("generate", "--prompt", "the cat", "--max-tokens", "12")
    assert (done.code, done.out) == (0, expected(engine, plain(engine, "the cat"), max_tokens=12).text + "\n")
    as_json = racer("generate", "--prompt", "the cat", "--max-tokens", "12", "--json", "--chat").records
    assert as_json[0]["text"] == expected(engine, chat(engine, "the cat"), max_tokens=12).text


def test_text_of_a_file_is_shown_under_its_ids(racer: Command, engine: Engine, jsonl: Write) -> None:
    done = racer("generate", "--input", jsonl({"prompt": "a"}, {"id": "q", "prompt": "b"}), "--max-tokens", "4")
    first, second = (expected(engine, plain(engine, text), max_tokens=4).text for text in "ab")
    assert done.out == f"--- 1\n{first}\n--- q\n{second}\n"


def test_a_line_that_failed_has_no_text_to_show(racer: Command, jsonl: Write, engine: Engine) -> None:
    text = expected(engine, plain(engine, "a"), max_tokens=4).text
    source = jsonl({}, {"prompt": "a"}, {"prompt": "long " * 200}, {"turns": ["long " * 200]})
    done = racer("generate", "--input", source, "--max-tokens", "4")
    assert (done.code, done.out) == (2, f"--- 2\n{text}\n")
    assert "1 done, 3 failed, 4 tokens in " in done.err.splitlines()[-1]


def test_nothing_decoded_has_no_mat(racer: Command, jsonl: Write) -> None:
    """One token is the prefill's own: nothing was verified."""
    done = racer("generate", "--prompt", "a", "--max-tokens", "1", "--json")
    assert (done.records[0]["steps"], done.records[0]["mat"]) == (0, None)
    assert "1 token in 0 steps, MAT -, " in done.err
    (turns,) = racer("generate", "--input", jsonl({"turns": ["a", "b"]}), "--max-tokens", "1", "--json").records
    assert turns["mat"] == [None, None]


def test_start_up_does_not_count_as_decoding(racer: Command, jsonl: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0

    def slow(*args: Any) -> Any:
        nonlocal now
        now += 1000.0
        return open_engine(*args)

    def step(self: Engine) -> Any:
        nonlocal now
        now += 0.5
        return stepped(self)

    stepped = Engine.step
    monkeypatch.setattr("racer.commands.generate.open_engine", slow)
    monkeypatch.setattr(Engine, "step", step)
    monkeypatch.setattr("time.perf_counter", lambda: now)
    done = racer("generate", "--prompt", "a", "--max-tokens", "4", "--drafts", "off")
    assert done.err.splitlines()[-1].endswith(", 2.0 s, 2.0 tok/s")
    nothing = racer("generate", "--input", jsonl("{}"))
    assert nothing.err.splitlines()[-1] == "0 done, 1 failed, 0 tokens in 0 steps, MAT -, 0.0 s, - tok/s"


def test_answer_has_a_length_cap_that_fits_the_context(racer: Command) -> None:
    (record,) = racer("generate", "--prompt", "abcd", "--json", "--max-context", "64").records
    assert record["usage"]["total_tokens"] == 64 and record["finish_reason"] == "length"


SAMPLED = ("--temperature", "1.5", "--seed", "3", "--max-tokens", "16")


@pytest.mark.parametrize(
    "options",
    [
        ("--top-k", "2"),
        ("--top-p", "0.3"),
        ("--min-p", "0.5"),
        ("--seed", "4"),
        ("--temperature", "0"),
        ("--repetition-penalty", "5"),
        ("--frequency-penalty", "2"),
        ("--presence-penalty", "2"),
        ("--max-tokens", "7"),
    ],
)
def test_every_sampling_option_changes_the_answer(racer: Command, options: tuple[str, str]) -> None:
    prompt = ("generate", "--prompt", "the cat", "--json", *SAMPLED)
    usual, again, changed = racer(*prompt), racer(*prompt), racer(*prompt, *options)
    assert usual.records[0]["token_ids"] == again.records[0]["token_ids"] != changed.records[0]["token_ids"]


def test_stop_and_min_tokens_and_ignore_eos(racer: Command, engine: Engine, jsonl: Write) -> None:
    text = expected(engine, plain(engine, "the cat"), max_tokens=30).text
    character = text[9]
    ask = ("generate", "--prompt", "the cat", "--max-tokens", "30", "--json")
    (stopped,) = racer(*ask, "--stop", character, "--stop", "never seen").records
    assert stopped["text"] == text[: text.index(character)] and stopped["finish_reason"] == "stop"
    (later,) = racer(*ask, "--stop", character, "--min-tokens", "30").records
    assert later["usage"]["completion_tokens"] == 30
    bias = {"prompt": "a", "max_tokens": 4, "logit_bias": {"1": 100}}  # 1 ends an answer
    ended, ignored = racer("generate", "--input", jsonl(bias, bias | {"ignore_eos": True}), "--json").records
    assert (ended["token_ids"], ended["finish_reason"]) == ([], "stop")
    assert ignored["token_ids"] == [1, 1, 1, 1]


def test_interrupt_keeps_what_is_done(
    racer: Command, jsonl: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The third line is done before the first: it is written though it waited for its turn."""
    steps = 0
    step = Engine.step

    def interrupted(self: Engine) -> Any:
        nonlocal steps
        steps += 1
        if steps == 8:
            raise KeyboardInterrupt
        return step(self)

    monkeypatch.setattr(Engine, "step", interrupted)
    source = jsonl({"prompt": "a"}, {"prompt": "b", "max_tokens": 2}, {"prompt": "c", "max_tokens": 3}, "{}")
    target = tmp_path / "out.jsonl"
    done = racer("generate", "--input", source, "--output", str(target), "--max-tokens", "90", "--drafts", "off")
    assert done.code == 130 and "Traceback" not in done.err
    assert done.err.splitlines()[-1] == f"interrupted: 2 of 4 done, 1 failed, written to {target}"
    records = [json.loads(line) for line in target.read_text().splitlines()]
    assert [(r["id"], len(r.get("token_ids", ()))) for r in records] == [(2, 2), (3, 3), (4, 0)]


def test_interrupt_before_anything_is_done(
    racer: Command, jsonl: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("racer.commands.generate.open_engine", interrupted)
    target = str(tmp_path / "out.jsonl")
    done = racer("generate", "--input", jsonl({"prompt": "a"}, {"prompt": "b"}), "--output", target)
    assert (done.code, done.err) == (130, "interrupted: 0 of 2 done\n")
    assert racer("generate", "--prompt", "a").err == "interrupted\n"
