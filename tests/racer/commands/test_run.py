from __future__ import annotations

import io
import re
import sys
from typing import Any

import pytest

from racer import Engine, Request, SamplingParams, Source
from racer.commands.colour import ColouredText, legend, paint, wants_colour
from racer.text import render_chat
from racer.types import DRAFT_SOURCES, OWN_SOURCES
from tests.racer.commands.conftest import Command
from tests.racer.engine.helpers import decode
from tests.tiny import byte_tokenizer

R, L, M = Source.RETRIEVAL, Source.LOGITS, Source.ROOT
FIGURES = re.compile(
    r"drafts racer: (\d+) tokens, (\d+) steps, MAT ([\d.]+), [\d.]+ tok/s"
    r" \| plain: (\d+) tokens, (\d+) steps, MAT ([\d.]+), [\d.]+ tok/s; [\d.]+x, same tokens"
)


def test_answer_and_figures(racer: Command, engine: Engine) -> None:
    done = racer("run", "--prompt", "the cat", "--max-tokens", "40")
    assert engine.tokenizer is not None
    prompt = tuple(render_chat(engine.tokenizer, [{"role": "user", "content": "the cat"}]))
    answer = decode(engine, [Request(prompt, SamplingParams(max_tokens=40))])[0][0]
    text, _, figures = done.out.rstrip("\n").rpartition("\n\n")
    assert done.code == 0 and text == answer.text and "\x1b[" not in done.out
    found = FIGURES.fullmatch(figures)
    assert found, figures
    tokens, steps, mat, *plain = found.groups()
    assert (tokens, plain) == ("40", ["40", "39", "1.00"])
    assert float(mat) == round(39 / int(steps), 2) > 1


def test_figures_of_an_answer_without_a_step(racer: Command) -> None:
    figures = racer("run", "--prompt", "x", "--max-tokens", "1").out.splitlines()[-1]
    assert figures.startswith("drafts racer: 1 token, 0 steps, MAT -, ")


def test_sampled_answers_are_compared_under_one_seed(racer: Command) -> None:
    assert racer("run", "--prompt", "x", "--max-tokens", "20", "--temperature", "1").out.endswith("x, same tokens\n")


def test_answer_that_differs_is_admitted(racer: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    from racer.commands import run

    decode_once = run._decode

    def bent(*args: Any) -> Any:
        answer = decode_once(*args)
        if args[3] is None:
            answer.token_ids[2] = (answer.token_ids[2] + 1) % 256
        return answer

    monkeypatch.setattr(run, "_decode", bent)
    out = racer("run", "--prompt", "x", "--max-tokens", "8").out
    assert out.endswith("tokens differ from number 3 on (NOT a near tie)\n")


def test_on_a_terminal_accepted_tokens_are_coloured(racer: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    coloured = racer("run", "--prompt", "the cat", "--max-tokens", "40").out
    own = legend(OWN_SOURCES)
    assert coloured.startswith(own + "\n\n") and "\x1b[3" in coloured.removeprefix(own)
    assert "store" not in own and "store" in legend(DRAFT_SOURCES)
    monkeypatch.setenv("NO_COLOR", "1")
    assert "\x1b[" not in racer("run", "--prompt", "the cat", "--max-tokens", "40").out


def test_each_piece_has_the_colour_of_the_token_that_completes_it() -> None:
    tokenizer = byte_tokenizer()
    ids = tokenizer("aé!").input_ids  # é is two tokens
    shown = ColouredText(tokenizer, coloured=True)
    assert shown.push(ids, [R, M, L, M]) + shown.flush() == paint("a", R) + paint("é", L) + "!"
    whole = ColouredText(tokenizer, coloured=False)
    assert whole.push(ids, [R, M, L, M]) + whole.flush() == "aé!"
    cut = ColouredText(tokenizer, coloured=True)
    assert cut.push(ids[:2], [M, R]) + cut.flush() == "a" + paint("\N{REPLACEMENT CHARACTER}", R)


def test_text_cannot_steer_the_terminal() -> None:
    tokenizer = byte_tokenizer()
    ids = tokenizer("a\x1b[2J\n").input_ids
    shown = ColouredText(tokenizer, coloured=True).push(ids, [M] * len(ids))
    assert shown == "a\N{REPLACEMENT CHARACTER}[2J\n"


@pytest.mark.parametrize("variable, value", [("NO_COLOR", "1"), ("TERM", "dumb")])
def test_colour_is_declined(monkeypatch: pytest.MonkeyPatch, variable: str, value: str) -> None:
    terminal = io.StringIO()
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    assert not wants_colour(terminal)
    monkeypatch.setattr(terminal, "isatty", lambda: True)
    assert wants_colour(terminal)
    monkeypatch.setenv(variable, value)
    assert not wants_colour(terminal)
