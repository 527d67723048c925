from __future__ import annotations

import json
from collections.abc import Callable
from importlib.metadata import EntryPoint
from typing import Any

import pytest

from racer import store
from racer.commands import waves
from racer.commands.colour import legend
from racer.draft.sources import MemoryNgramSource
from racer.types import DRAFT_SOURCES, OWN_SOURCES
from tests.racer.commands.conftest import Command

Write = Callable[..., str]
QUESTIONS = [{"prompt": "abc abc abc"}, {"prompt": "1 2 3 4"}, {"prompt": "xyz xyz"}]
OPTIONS = ("--max-tokens", "24", "--drafts", "racer", "--json")


class MemoryStore(MemoryNgramSource):
    """A store in this process, which notes who asked for it and what was done with it."""

    latest: MemoryStore

    def __init__(self, url: str, *, namespace: str, tokenizer_json: str) -> None:
        super().__init__()
        self.url, self.namespace, self.closed = url, namespace, False
        self.lookups = self.learned = 0
        MemoryStore.latest = self

    def lookup(self, contexts: Any, deadline_ms: float) -> Any:
        self.lookups += 1
        return super().lookup(contexts, deadline_ms)

    def learn(self, tokens: Any, prompt_tokens: int = 0) -> None:
        self.learned += 1
        super().learn(tokens)

    def flush(self, timeout_s: float) -> bool:
        return True

    def counters(self) -> dict[str, Any]:
        return {"lookups": self.lookups, "learned": self.learned}

    def close(self) -> None:
        self.closed = True


@pytest.fixture(autouse=True)
def memory(monkeypatch: pytest.MonkeyPatch) -> None:
    point = EntryPoint("memory", f"{__name__}:MemoryStore", store.GROUP)
    monkeypatch.setattr(store, "entry_points", lambda group: [point])


def rows_of(out: str) -> dict[tuple[str, bool], dict[str, Any]]:
    rows = json.loads(out.splitlines()[-1])["rows"]
    return {(row["drafts"], row["store"]): row for row in rows if row["category"] == "all"}


def bench(racer: Command, jsonl: Write, *options: str) -> dict[str, Any]:
    done = racer("bench", "--data", jsonl(*QUESTIONS), *OPTIONS, "--store", "memory://", *options)
    assert done.code == 0, done.err
    found: dict[str, Any] = json.loads(done.out.splitlines()[-1])
    return found | {"by_mode": rows_of(done.out)}


def test_each_mode_that_a_store_feeds_comes_with_and_without(racer: Command, jsonl: Write) -> None:
    result = bench(racer, jsonl, "--namespace", "tenant", "--drafts", "retrieval,logits,racer")
    assert set(result["by_mode"]) == {("off", False), ("logits", False)} | {
        (drafts, with_store) for drafts in ("retrieval", "racer") for with_store in (False, True)
    }
    assert result["mismatches"] == 0 and result["store"]["namespace"] == "tenant"
    assert (MemoryStore.latest.namespace, MemoryStore.latest.closed) == ("tenant", True)


def test_a_store_that_is_not_taught_stays_empty(racer: Command, jsonl: Write) -> None:
    """Nothing of plain decoding, of the other modes or of warming up gets into it."""
    result = bench(racer, jsonl)
    assert result["store"]["counters"]["learned"] == 0 and result["store"]["counters"]["lookups"] > 0
    assert result["by_mode"]["racer", True]["accepted_by_source"]["store"] == 0
    assert result["by_mode"]["racer", True]["steps"] == result["by_mode"]["racer", False]["steps"]


def test_a_store_warmed_by_one_pass_foresees_the_same_answers(racer: Command, jsonl: Write) -> None:
    result = bench(racer, jsonl, "--store-warm")
    rows = result["by_mode"]
    assert result["store"]["counters"]["learned"] == len(QUESTIONS) and result["store"]["warm"] is True
    assert rows["racer", True]["accepted_by_source"]["store"] > 0 == rows["racer", False]["accepted_by_source"]["store"]
    assert rows["racer", True]["steps"] < rows["racer", False]["steps"] and result["mismatches"] == 0


def test_learning_while_measuring_teaches_what_the_store_mode_decoded(racer: Command, jsonl: Write) -> None:
    result = bench(racer, jsonl, "--store-learn")
    assert result["store"]["counters"]["learned"] == len(QUESTIONS) and result["store"]["learn"] is True


def test_sources_of_the_table_are_those_in_use(racer: Command, jsonl: Write) -> None:
    ask = ("bench", "--data", jsonl(*QUESTIONS), "--max-tokens", "4", "--drafts", "racer")
    without, with_store = racer(*ask).out, racer(*ask, "--store", "memory://").out
    assert "retrieval/logits " in without and "store" not in without.partition("{")[0]
    assert "retrieval/logits/store" in with_store and "racer best 8 +store" in with_store


def test_the_legend_names_the_store_where_there_is_one(racer: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("racer.commands.run.wants_colour", lambda stream: True)
    ask = ("run", "--prompt", "abc", "--max-tokens", "4")
    assert racer(*ask).out.startswith(legend(OWN_SOURCES) + "\n\n")
    assert racer(*ask, "--store", "memory:").out.startswith(legend(DRAFT_SOURCES) + "\n\n")


def test_interrupt_tells_what_the_store_did_so_far(
    racer: Command, jsonl: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, calls = waves.Bench.run, 0

    def interrupted(self: waves.Bench, *args: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == 2:
            raise KeyboardInterrupt
        return run(self, *args)

    monkeypatch.setattr(waves.Bench, "run", interrupted)
    done = racer("bench", "--data", jsonl(*QUESTIONS), *OPTIONS, "--store", "memory:", "--store-learn")
    found = json.loads(done.out)
    assert (done.code, found["interrupted"], found["prompts"]) == (130, True, 1)
    assert found["store"]["counters"]["learned"] == 1 and MemoryStore.latest.closed


@pytest.mark.parametrize(
    "options, sentence",
    [
        (("--store-warm",), "--store-warm and --store-learn are about a store; name one with --store"),
        (("--store", "memory://", "--drafts", "logits"), "no mode drafts from the store; add racer or retrieval"),
        (("--store", "memory://", "--store-learn", "--tree", "best,paper"), "it would be 2 times"),
        (("--store", "memory://", "--store-learn", "--concurrency", "1,2,3"), "it would be 3 times"),
        (("--store", "memory://", "--store-learn", "--repeat", "2"), "it would be 2 times"),
        (("--store", "nowhere://"), "store 'nowhere:': use a URL that begins with one of memory"),
    ],
)
def test_what_would_measure_nothing_is_refused(
    racer: Command, jsonl: Write, options: tuple[str, ...], sentence: str
) -> None:
    done = racer("bench", "--data", jsonl(*QUESTIONS), "--drafts", "racer", *options)
    assert done.code == 2 and sentence in done.err and done.out == ""


def test_generate_and_run_feed_from_and_teach_the_store(racer: Command, jsonl: Write) -> None:
    path = jsonl(QUESTIONS[0], QUESTIONS[0])
    alone = racer("generate", "--input", path, "--json", "--max-tokens", "24", "--concurrency", "1").records
    fed = racer("generate", "--input", path, "--json", "--max-tokens", "24", "--concurrency", "1", "--store", "memory:")
    assert [record["token_ids"] for record in fed.records] == [record["token_ids"] for record in alone]
    assert fed.records[1]["steps"] < alone[1]["steps"]  # the first answer taught the second
    assert (MemoryStore.latest.learned, MemoryStore.latest.closed) == (2, True)
    shown = racer("run", "--prompt", "abc", "--max-tokens", "8", "--store", "memory:", "--namespace", "mine")
    assert shown.code == 0 and "same tokens" in shown.out
    assert (MemoryStore.latest.namespace, MemoryStore.latest.closed) == ("mine", True)


def test_the_store_is_closed_when_the_command_fails(racer: Command) -> None:
    done = racer("run", "--prompt", "abc " * 5000, "--max-tokens", "8", "--store", "memory:")
    assert done.code == 2 and MemoryStore.latest.closed
