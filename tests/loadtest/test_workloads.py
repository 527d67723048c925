"""Workloads: the same for a seed, different for another, and what files may say."""

from __future__ import annotations

import itertools
import json
import re
from pathlib import Path

import pytest

from loadtest.arrivals import poisson, shared
from loadtest.errors import UserError
from loadtest.workloads import NAMES, FromFile, open_workload, prompt_length
from tests.loadtest.commands import here, last_line


@pytest.mark.parametrize("name", NAMES)
def test_a_seed_and_a_number_give_one_conversation(name: str) -> None:
    one, same, other = open_workload(name, 1), open_workload(name, 1), open_workload(name, 2)
    later = one.conversation(7)
    assert [one.conversation(n) for n in range(8)] == [same.conversation(n) for n in range(8)] and later.turns
    assert [one.conversation(n).turns for n in range(8)] != [other.conversation(n).turns for n in range(8)]
    assert len({str(one.conversation(n).turns) for n in range(40)}) > 35
    assert max(len(one.conversation(n).turns) for n in range(40)) == one.most_turns
    assert all(turn.max_tokens and turn.messages for n in range(40) for turn in one.conversation(n).turns)


def test_workloads_are_what_they_are_called() -> None:
    chats = [open_workload("chat", 1).conversation(n) for n in range(30)]
    assert {len(chat.turns) for chat in chats} == {2, 3, 4}
    edit = open_workload("code-edit", 1).conversation(0).turns[0].messages[-1]["content"]
    compile(edit.split("```python\n")[1].split("```")[0], "module", "exec")
    prose = [open_workload("prose", 1).conversation(n) for n in range(5)]
    assert all(one.fields["temperature"] == 1.0 for one in prose) and len({one.fields["seed"] for one in prose}) == 5
    support = [open_workload("support", 1).conversation(n).turns[0].messages for n in range(20)]
    assert (
        len({rules["content"] for rules, _ in support}) == 1 and len({asked["content"] for _, asked in support}) == 20
    )


def test_documents_hold_what_is_asked_of_them() -> None:
    for n in range(30):
        turns = open_workload("rag", 1).conversation(n).turns
        handbook, question = turns[0].messages[-1]["content"].rsplit("\n\n", 1)
        titles = [title.lower() for title in re.findall(r"^\d+\. (.+)$", handbook, re.MULTILINE)]
        asked = [question, *(turn.messages[-1]["content"] for turn in turns[1:])]
        about = [next(title for title in titles if title in one) for one in asked]
        assert len(set(about)) == len(turns) and 4 <= len(titles) <= 6
        assert "{" not in handbook and re.search(r"\d", handbook)
        (minutes,) = (turn.messages[-1]["content"] for turn in open_workload("summary", 1).conversation(n).turns)
        assert 8 <= minutes.count(".") - 1 <= 40 and "{" not in minutes and minutes.startswith("Sum up")


def test_an_agent_gets_its_tools_results_one_by_one() -> None:
    """Every result is JSON, and each turn sends only what is new."""
    lengths = set()
    for n in range(30):
        first, *later = open_workload("agent", 1).conversation(n).turns
        assert [message["role"] for message in first.messages] == ["system", "user"]
        assert '"tool"' in first.messages[0]["content"] and first.messages[1]["content"].startswith("Task: ")
        for turn in later:
            (message,) = turn.messages
            result, _, then = message["content"].partition("\n")
            assert isinstance(json.loads(result.removeprefix("Result: ")), dict) and then
        assert "customer" in later[0].messages[0]["content"] and "orders" in later[1].messages[0]["content"]
        lengths.add(len(later))
    assert lengths == {2, 3, 4}


def write(path: Path, *lines: object) -> FromFile:
    path.write_text("".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines), encoding="utf-8")
    return FromFile(path)


def test_files_of_questions_requests_and_texts(tmp_path: Path) -> None:
    found = write(
        tmp_path / "q.jsonl",
        {"question_id": 1, "category": "reasoning", "turns": ["一", "二"], "max_tokens": 9},
        {"messages": [{"role": "user", "content": "hi"}], "temperature": 0.5, "seed": 3},
        {"prompt": "Once", "stop": ["."]},
        {"turns": [{"messages": [{"role": "system", "content": "s"}], "max_tokens": 4}, "then"]},
    )
    first, second, third, fourth = (found.conversation(n) for n in range(4))
    assert [turn.messages[0]["content"] for turn in first.turns] == ["一", "二"] and first.turns[1].max_tokens == 9
    assert first.fields == {"temperature": 0}
    assert second.fields == {"temperature": 0.5, "seed": 3}
    assert third.prompt == "Once" and third.fields["stop"] == ["."] and prompt_length(third) == 4
    assert [turn.max_tokens for turn in fourth.turns] == [4, None]
    assert found.conversation(4).turns == first.turns and found.length == 4


def test_only_a_line_feed_ends_a_line(tmp_path: Path) -> None:
    text = "a\u2028b\u2029c\x85d"  # str.splitlines() splits at each of them; JSON allows them as they are
    assert write(tmp_path / "q.jsonl", {"prompt": text}, {"prompt": "next"}).conversation(0).prompt == text


def test_a_log_is_in_order_of_its_times(tmp_path: Path) -> None:
    found = write(tmp_path / "log.jsonl", {"prompt": "b", "at_s": 12.5}, {"prompt": "a", "at_s": 10})
    assert [(one.prompt, one.at_s) for one in found.log()] == [("a", 0.0), ("b", 2.5)]
    with pytest.raises(UserError, match="no at_s"):
        write(tmp_path / "q.jsonl", {"prompt": "b"}).log()


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "has no requests"),
        ("{", ":1: not JSON"),
        ("[]", ":1: a JSON object"),
        ('{"turns": ["a"], "prompt": "b"}', "exactly one of"),
        ('{"turns": [7]}', "turns must be"),
        ('{"messages": []}', "not empty"),
        ('{"prompt": "a", "at_s": "now"}', "at_s must be"),
    ],
)
def test_wrong_lines_are_named(tmp_path: Path, text: str, said: str) -> None:
    path = tmp_path / "wrong.jsonl"
    path.write_text(text)
    with pytest.raises(UserError, match=said):
        FromFile(path)


def test_arrivals_are_poisson_and_shared_out() -> None:
    times = list(poisson(50.0, 3, 200.0))
    assert times == list(poisson(50.0, 3, 200.0)) != list(poisson(50.0, 4, 200.0))
    assert len(times) == pytest.approx(10_000, rel=0.05)
    gaps = [after - before for before, after in itertools.pairwise(times)]
    mean = sum(gaps) / len(gaps)
    assert sum((gap - mean) ** 2 for gap in gaps) / len(gaps) == pytest.approx(mean**2, rel=0.1)
    parts = [list(shared(iter(times), index, 3)) for index in range(3)]
    assert sorted(time for part in parts for _, time in part) == times
    assert [number for number, _ in parts[1]][:3] == [1, 4, 7]


def test_lengths_are_printed_and_what_is_written_reads_the_same(tmp_path: Path) -> None:
    path = tmp_path / "agent.jsonl"
    done = here("workload", "agent", "--count", "20", "--seed", "5", "--output", str(path))
    told = last_line(done)
    assert done.returncode == 0 and "characters sent" in done.stdout
    made, found = open_workload("agent", 5), FromFile(path)
    assert [made.conversation(n).turns for n in range(20)] == [found.conversation(n).turns for n in range(20)]
    assert told["lengths"]["turns"]["max"] == max(len(made.conversation(n).turns) for n in range(20))
