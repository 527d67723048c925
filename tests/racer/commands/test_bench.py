from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from racer import Engine
from racer.commands import waves
from racer.commands.measure import Measured, measure
from racer.commands.modes import Mode
from racer.commands.suites import Question
from racer.commands.table import as_table
from racer.config import TreeShape
from racer.draft.drafter import RequestDrafts
from racer.draft.tree import DraftTree
from racer.types import DRAFT_SOURCES, OWN_SOURCES, SamplingParams
from tests.racer.commands.conftest import Command

Write = Callable[..., str]
KEYS = {
    "drafts",
    "tree",
    "budget",
    "store",
    "mean_budget",
    "concurrency",
    "category",
    "prompts",
    "tokens",
    "steps",
    "mat",
    "tok_per_s",
    "speedup",
    "accepted_by_source",
    "draft_ms_per_step",
    "forward_ms_per_step",
    "step_ms",
    "mismatches",
    "near_ties",
}
QUESTIONS = [
    {"question_id": 1, "category": "letters", "turns": ["abc abc abc", "again"], "tokenizer": "passed over"},
    {"question_id": 2, "category": "numbers", "turns": ["1 2 3 4"]},
    {"question_id": 3, "category": "letters", "turns": ["xyz xyz"]},
    {"question_id": 4, "category": "letters", "turns": ["a third of its category"]},
]
OPTIONS = ("--max-tokens", "16", "--limit-per-category", "2", "--json")


def summary(out: str) -> dict[str, Any]:
    last: dict[str, Any] = json.loads(out.splitlines()[-1])
    return last


def test_rows_and_identity(racer: Command, jsonl: Write) -> None:
    done = racer(
        "bench",
        "--data",
        jsonl(*QUESTIONS),
        *OPTIONS,
        "--tree",
        "best,paper",
        "--budget",
        "4,8",
        "--concurrency",
        "1,2",
    )
    assert done.code == 0 and len(done.out.splitlines()) == 1
    result = summary(done.out)
    rows = result["rows"]
    assert (result["prompts"], result["dtype"], result["mismatches"], result["differences"]) == (3, "float32", 0, [])
    assert result["interrupted"] is False
    assert [row["category"] for row in rows] == ["letters"] * 26 + ["numbers"] * 26 + ["all"] * 26
    modes = {(row["drafts"], row["tree"], row["budget"], row["concurrency"]) for row in rows}
    drafted = {(d, t, b) for d in ("retrieval", "logits", "racer") for t in ("best", "paper") for b in (4, 8)}
    assert modes == {(*mode, n) for mode in drafted | {("off", None, None)} for n in (1, 2)}
    for row in rows:
        assert row.keys() == KEYS and row["mismatches"] == 0
        prompts = {"letters": 2, "numbers": 1, "all": 3}[row["category"]]
        assert (row["prompts"], row["tokens"]) == (prompts, 16 * prompts)
        assert row["mat"] == round(15 * prompts / row["steps"], 4) and row["tok_per_s"] > 0
        assert 0 < row["draft_ms_per_step"] + row["forward_ms_per_step"] < row["step_ms"]
        if row["drafts"] == "off":
            assert (row["mat"], row["speedup"], sum(row["accepted_by_source"].values())) == (1.0, 1.0, 0)
        accepted = sum(row["accepted_by_source"].values())
        assert accepted == 15 * prompts - row["steps"] or row["drafts"] != "racer"
    assert max(row["mat"] for row in rows) > 1.2


def test_of_repeated_runs_the_median_counts(racer: Command, jsonl: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    times = {"off": iter([9.0, 1.0, 2.0]), "racer": iter([0.5, 8.0, 1.0])}
    order: list[str] = []

    def timed(engine: Engine, mode: Mode, prompts: list[Any], params: Any, concurrency: int) -> list[Measured]:
        measured = measure(engine, mode, prompts, params, concurrency)
        if len(prompts) == 2:  # not while warming up
            order.append(str(mode.drafts))
            measured[0].busy_s, measured[1].busy_s = next(times[str(mode.drafts)]), 0.0
        return measured

    monkeypatch.setattr(waves, "measure", timed)
    options = ("--max-tokens", "16", "--drafts", "racer", "--concurrency", "2", "--repeat", "3", "--json")
    result = summary(racer("bench", "--data", jsonl(*QUESTIONS[1:3]), *options).out)
    rows = {row["drafts"]: row for row in result["rows"] if row["category"] == "all"}
    assert (order, result["repeat"]) == (["off", "racer", "racer", "off", "off", "racer"], 3)
    assert rows["off"]["tok_per_s"] == round(32 / 2.0, 3) and rows["racer"]["tok_per_s"] == round(32 / 1.0, 3)
    assert rows["racer"]["prompts"] == 2 and rows["racer"]["tokens"] == 32


def test_table_comes_before_the_json(racer: Command, jsonl: Write) -> None:
    out = racer("bench", "--data", jsonl(*QUESTIONS), "--max-tokens", "4", "--drafts", "racer").out
    assert [line for line in out.splitlines() if line.startswith("==")] == ["== letters", "== numbers", "== all"]
    assert out.count("racer best 8") == 3 and summary(out)["rows"][0]["drafts"] == "off"


def test_suites_have_rows_of_their_own(racer: Command, jsonl: Write) -> None:
    first, second = jsonl(*QUESTIONS[:2], name="spec.jsonl"), jsonl({"prompt": "def f"}, name="code.jsonl")
    out = racer("bench", "--data", first, "--data", second, *OPTIONS, "--drafts", "off").out
    assert [(row["category"], row["prompts"]) for row in summary(out)["rows"]] == [
        ("spec", 2),
        ("spec/letters", 1),
        ("spec/numbers", 1),
        ("code", 1),
        ("all", 3),
    ]


def test_all_turns_continue_plain_answers(racer: Command, jsonl: Write, engine: Engine) -> None:
    out = racer("bench", "--data", jsonl(*QUESTIONS[:2]), *OPTIONS, "--turns", "all", "--drafts", "racer").out
    rows = {(row["drafts"], row["category"]): row for row in summary(out)["rows"]}
    assert [rows["racer", group]["tokens"] for group in ("letters", "numbers", "all")] == [32, 16, 48]
    assert rows["racer", "all"]["mismatches"] == 0


def test_model_generate_is_a_mode(racer: Command, jsonl: Write) -> None:
    out = racer("bench", "--data", jsonl(*QUESTIONS), *OPTIONS, "--drafts", "off,generate,lookup").out
    rows = summary(out)["rows"]
    assert [(row["drafts"], row["mismatches"]) for row in rows] == [("off", 0), ("generate", 0), ("lookup", 0)] * 3
    plain, lookup = rows[-2:]
    assert plain["tokens"] == lookup["tokens"] == 48 and plain["draft_ms_per_step"] is None
    assert plain["mat"] == 1.0 and lookup["mat"] >= 1.0


def test_lines_bring_their_own_sampling(racer: Command, jsonl: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    """Drawn with one seed in every mode, so that the tokens are the same; what a line leaves out is greedy."""
    asked: list[SamplingParams] = []

    def noted(
        engine: Engine, mode: Mode, prompts: Any, params: list[SamplingParams], concurrency: int
    ) -> list[Measured]:
        asked.extend(params if params[0].max_tokens == 16 else [])
        return measure(engine, mode, prompts, params, concurrency)

    monkeypatch.setattr("racer.commands.waves.measure", noted)
    sampled = {"temperature": 1.5, "top_p": 0.9, "max_tokens": 3}
    lines = [QUESTIONS[0] | sampled, QUESTIONS[1] | sampled | {"seed": 5}, QUESTIONS[2]]
    done = racer("bench", "--data", jsonl(*lines), *OPTIONS, "--drafts", "racer")
    assert done.code == 0 and summary(done.out)["mismatches"] == 0
    found = [(one.temperature, one.top_p, one.seed) for one in asked]
    assert found == [(1.5, 0.9, 0)] * 2 + [(1.5, 0.9, 5)] * 2 + [(0.0, 1.0, 0)] * 2
    refused = racer("bench", "--data", jsonl(*lines), *OPTIONS, "--drafts", "generate")
    assert refused.code == 2 and "generate decodes greedily" in refused.err


def test_a_mode_that_decodes_other_tokens_is_found(
    racer: Command, jsonl: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every answer of one mode is bent at its fifth token; nothing else may be reported."""

    def bent(engine: Engine, mode: Mode, prompts: Any, params: Any, concurrency: int) -> list[Measured]:
        results = measure(engine, mode, prompts, params, concurrency)
        if mode.tree is TreeShape.PAPER:
            for result in results:
                result.token_ids[4] = (result.token_ids[4] + 1) % 256
        return results

    monkeypatch.setattr("racer.commands.waves.measure", bent)
    done = racer("bench", "--data", jsonl(*QUESTIONS), *OPTIONS, "--drafts", "racer", "--tree", "best,paper")
    result = summary(done.out)
    assert done.code == 1 and "error: 3 answers left plain decoding's tokens by more than a near tie" in done.err
    assert (result["mismatches"], result["near_ties"]) == (3, 0)
    assert {(d["mode"], d["position"]) for d in result["differences"]} == {("racer paper 8", 4)}
    assert [d["id"] for d in result["differences"]] == [1, 2, 3]
    assert all(row["mismatches"] == (row["prompts"] if row["tree"] == "paper" else 0) for row in result["rows"])


def test_verification_that_accepts_anything_is_found(
    racer: Command, jsonl: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A fault in the engine itself: the tree's first child is taken for the model's choice."""
    from racer import turn as module
    from racer.verify.accept import walk

    def gullible(tree: DraftTree, choose: Any, decide: Any) -> Any:
        return walk(tree, lambda node: int(tree.tokens[1]) if len(tree) > 1 and not node else choose(node), decide)

    monkeypatch.setattr(module, "walk", gullible)
    done = racer("bench", "--data", jsonl(*QUESTIONS), *OPTIONS, "--drafts", "racer")
    assert done.code == 1 and summary(done.out)["mismatches"] > 0


def test_prompt_over_the_context_is_left_out(racer: Command, jsonl: Write) -> None:
    """Of one conversation the first turn fits, of another none."""
    lines = [*QUESTIONS[:2], {"question_id": 9, "category": "long", "turns": ["long " * 200]}]
    ask = ("bench", "--data", jsonl(*lines), *OPTIONS, "--turns", "all", "--drafts", "racer", "--max-context", "50")
    done = racer(*ask)
    result = summary(done.out)
    assert [(note["id"], note["turn"]) for note in result["skipped"]] == [(1, 2), (9, 1)]
    assert done.code == 0 and "error: question 9, turn 1 is left out: the prompt has 1" in done.err
    assert {row["category"] for row in result["rows"]} == {"letters", "numbers", "all"} and result["prompts"] == 2
    nothing = racer("bench", "--data", jsonl(lines[2]), *OPTIONS, "--drafts", "off")
    assert nothing.code == 2 and nothing.err.endswith("error: nothing was measured\n")


def test_interrupt_reports_finished_waves(racer: Command, jsonl: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    run, calls = waves.Bench.run, 0

    def interrupted(self: waves.Bench, *args: Any, **kwargs: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == 3:
            raise KeyboardInterrupt
        return run(self, *args, **kwargs)

    monkeypatch.setattr(waves.Bench, "run", interrupted)
    done = racer("bench", "--data", jsonl(*QUESTIONS), *OPTIONS, "--drafts", "off", "--concurrency", "1,2")
    rows = summary(done.out)["rows"]
    assert done.code == 130 and (summary(done.out)["prompts"], summary(done.out)["interrupted"]) == (2, True)
    assert [(row["category"], row["prompts"], row["concurrency"]) for row in rows] == [
        ("letters", 1, 1),
        ("numbers", 1, 1),
        ("all", 2, 1),
    ]


def test_categories_apart(racer: Command, jsonl: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    run, asked = waves.Bench.run, list[list[str]]()

    def noted(self: waves.Bench, wave: list[Question], *args: Any) -> Any:
        asked.append([question.groups[0] for question in wave])
        return run(self, wave, *args)

    monkeypatch.setattr(waves.Bench, "run", noted)
    ask = ("bench", "--data", jsonl(*QUESTIONS), *OPTIONS, "--drafts", "off", "--concurrency", "2")
    assert summary(racer(*ask).out)["apart"] is False
    assert asked == [["letters", "numbers", "letters"]]
    done = summary(racer(*ask, "--apart").out)
    assert asked[1:] == [["letters", "letters"], ["numbers"]] and done["apart"] is True and done["prompts"] == 3


def test_interrupt_before_anything_is_measured(racer: Command, jsonl: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*args: Any, **kwargs: Any) -> Any:
        raise KeyboardInterrupt

    monkeypatch.setattr(waves.Bench, "run", interrupted)
    done = racer("bench", "--data", jsonl(*QUESTIONS), *OPTIONS, "--drafts", "off")
    assert (done.code, done.out, done.err.splitlines()[-1]) == (130, "", "interrupted")


def test_what_was_not_counted_is_no_number(racer: Command, jsonl: Write) -> None:
    """Answers of one token end in their prefill: no step was taken."""
    done = racer("bench", "--data", jsonl(*QUESTIONS[:1]), "--max-tokens", "1", "--drafts", "racer")
    (row,) = [row for row in summary(done.out)["rows"] if (row["drafts"], row["category"]) == ("racer", "all")]
    assert (row["tokens"], row["steps"]) == (1, 0)
    assert [row[name] for name in ("mat", "mean_budget", "draft_ms_per_step", "forward_ms_per_step", "step_ms")] == [
        None
    ] * 5
    (cells,) = {
        line.split()[3:8] == ["1", "1", "0", "-", "-"] for line in done.out.splitlines() if "racer best" in line
    }
    assert cells


def test_the_table_tells_the_sources_it_is_asked_for_and_counts_in_english() -> None:
    row: dict[str, Any] = dict.fromkeys(KEYS, 1) | {"drafts": "racer", "tree": "best", "category": "all"}
    row["accepted_by_source"] = {"retrieval": 7, "logits": 8, "store": 9}
    own = as_table([row | {"mismatches": 2}], OWN_SOURCES)
    assert "  retrieval/logits  " in own and "  7/8  " in own and own.endswith("2 (1 near tie)")
    shared = as_table([row | {"mismatches": 2, "near_ties": 2}], DRAFT_SOURCES)
    assert "  retrieval/logits/store  " in shared and "  7/8/9  " in shared and shared.endswith("2 (2 near ties)")


def test_each_mode_grows_its_own_tree(racer: Command, jsonl: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    grown: set[tuple[str, str, int]] = set()
    propose = RequestDrafts.propose

    def spied(self: RequestDrafts, budget: int, *args: Any, **kwargs: Any) -> DraftTree:
        if budget > 1:  # the last token of an answer is decided without a draft
            grown.add((str(self.drafts), str(self.tree), budget))
        return propose(self, budget, *args, **kwargs)

    monkeypatch.setattr(RequestDrafts, "propose", spied)
    monkeypatch.setattr("racer.draft.drafter.Drafter.warm_up", lambda self: None)
    racer(
        "bench",
        "--data",
        jsonl(*QUESTIONS[:1]),
        *OPTIONS,
        "--tree",
        "chain,best",
        "--drafts",
        "racer,logits",
        "--budget",
        "3,5",
    )
    assert grown == {(d, t, b) for d in ("racer", "logits") for t in ("chain", "best") for b in (3, 5)}


def test_fixed_and_chosen_budgets_side_by_side(racer: Command, jsonl: Write) -> None:
    done = racer("bench", "--data", jsonl(*QUESTIONS), *OPTIONS, "--drafts", "racer", "--budget", "5,auto")
    rows = {row["budget"]: row for row in summary(done.out)["rows"] if row["category"] == "all"}
    assert done.code == 0 and list(rows) == [None, 5, "auto"] and "budget auto" in done.err
    assert rows[None]["mean_budget"] == 1.0 < rows[5]["mean_budget"] <= 5.0
    assert 1.0 <= rows["auto"]["mean_budget"] <= 64.0 and rows["auto"]["mismatches"] == 0
    generate = racer("bench", "--data", jsonl(*QUESTIONS), *OPTIONS, "--drafts", "generate").out
    assert [row["mean_budget"] for row in summary(generate)["rows"][:2]] == [1.0, None]
