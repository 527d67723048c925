"""The same tokens with drafts as without: greedy and sampled, alone and in a batch."""

from collections import defaultdict
from typing import Any

import numpy as np
import pytest
import torch
from scipy import stats

from racer import Engine, Request, SamplingParams
from racer.draft.sources import MemoryNgramSource
from tests.racer.engine.helpers import EOS, Answer, answer, both, decode, prompt, tiny_engine

SHAPES: list[dict[str, Any]] = [
    {},
    {"temperature": 1.0, "seed": 1},
    {"temperature": 0.7, "top_p": 0.9, "seed": 2},
    {"temperature": 1.5, "top_k": 5, "seed": 3},
    {"temperature": 1.0, "min_p": 0.1, "seed": 4},
    {"frequency_penalty": 2.0},
    {"frequency_penalty": -2.0},
    {"presence_penalty": 1.5},
    {"repetition_penalty": 1.3},
    {"temperature": 0.8, "repetition_penalty": 1.2, "frequency_penalty": 0.5, "top_p": 0.8, "seed": 5},
    {"logit_bias": {7: 3.0, 9: -100.0}},
    {"min_tokens": 30},
]

REPEATED = prompt(12, 1, 24) * 3


@pytest.fixture(scope="module", params=["best", "paper", "chain"])
def engine(request: pytest.FixtureRequest) -> Engine:
    # 24 tokens only: random text that repeats, so that drafts are accepted and rejected
    return tiny_engine(model={"vocab_size": 24}, tree=request.param)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_equal_to_plain(engine: Engine, shape: dict[str, Any]) -> None:
    plain, drafted = both(engine, REPEATED, max_tokens=60, ignore_eos=True, **shape)
    assert drafted.token_ids == plain.token_ids
    assert drafted.finish_reason == plain.finish_reason
    assert sum(plain.stats.drafted.values()) == 0 < sum(drafted.stats.drafted.values())
    if shape.get("frequency_penalty") != 2.0:  # which forbids what drafts are made of
        assert drafted.stats.steps < plain.stats.steps, "no draft was ever accepted"


@pytest.mark.parametrize("drafts", ["retrieval", "logits", "racer"])
@pytest.mark.parametrize("budget", [1, 2, 5, 16])
def test_every_source_and_budget_equal_plain(drafts: str, budget: int) -> None:
    engine = tiny_engine(model={"vocab_size": 24}, budget=16)
    shape: dict[str, Any] = {"max_tokens": 50, "temperature": 0.6, "seed": 9, "ignore_eos": True}
    plain, drafted = both(engine, REPEATED, **shape)
    limited = answer(engine, REPEATED, drafts=drafts, budget=budget, **shape)
    assert limited.token_ids == drafted.token_ids == plain.token_ids
    assert sum(limited.stats.drafted.values()) <= (budget - 1) * limited.stats.steps
    assert (sum(limited.stats.drafted.values()) > 0) == (budget > 1)


def test_seed_42_alone_among_seven_with_store_empty_and_warm() -> None:
    """Fault 12."""
    mine = SamplingParams(max_tokens=40, temperature=1.0, seed=42)
    source = MemoryNgramSource()
    engine = tiny_engine(model={"vocab_size": 24}, source=source)
    texts = []
    for others in (0, 7, 0):  # store empty, then warmed by what went before
        requests = [Request(prompt(20, 1, 24), mine)]
        requests += [
            Request(prompt(20 + i, i, 24), SamplingParams(max_tokens=40, temperature=1.0)) for i in range(2, 2 + others)
        ]
        texts.append(decode(engine, requests)[0][0])
    assert texts[0].token_ids == texts[1].token_ids == texts[2].token_ids
    assert texts[2].stats.steps < texts[0].stats.steps, "the warm store changed nothing: it was not used"
    other = tiny_engine(model={"vocab_size": 24}, drafts="off")
    assert decode(other, [Request(prompt(20, 1, 24), mine)])[0][0].token_ids == texts[0].token_ids


def test_without_a_seed_answers_differ_and_with_an_engine_seed_they_repeat() -> None:
    def texts(engine: Engine) -> list[list[int]]:
        return [answer(engine, prompt(9, 1), max_tokens=20, temperature=1.0).token_ids for _ in range(2)]

    first, second = texts(tiny_engine())
    assert first != second
    first, second = texts(tiny_engine(seed=5))
    assert first == second


def test_choices_of_one_request_differ_and_repeat_with_the_seed() -> None:
    engine = tiny_engine()
    params = SamplingParams(n=3, max_tokens=20, temperature=1.0, seed=11)
    once, again = (decode(engine, [Request(prompt(9, 1), params)])[0] for _ in range(2))
    assert [c.token_ids for c in once] == [c.token_ids for c in again]
    assert len({tuple(c.token_ids) for c in once}) == 3


@pytest.mark.slow
def test_draws_follow_the_models_distribution() -> None:
    """Fault 13: 20,480 draws of two tokens from a model of 5, through branching trees; chi-square over the 25 pairs."""
    engine = tiny_engine(
        model={"vocab_size": 5}, max_running=512, prefill_chunk=4096, budget=8, cache_bytes=1 << 26, seed=None
    )
    start = (3, 4, 3, 3, 4)
    with torch.inference_mode():
        model = engine.runner.model
        model.set_attn_implementation("eager")
        first = torch.softmax(model(torch.tensor([start])).logits[0, -1].double(), -1)
        rows = torch.tensor([[*start, token] for token in range(5)])
        second = torch.softmax(model(rows).logits[:, -1].double(), -1)
        model.set_attn_implementation("racer")
    expected = (first[:, None] * second).numpy()
    params = SamplingParams(n=128, max_tokens=3, temperature=1.0, ignore_eos=True)
    counts = np.zeros((5, 5))
    drafted = accepted = 0
    for _ in range(5):
        drawn: dict[tuple[str, int], list[int]] = defaultdict(list)
        for output in engine.generate([Request(start, params) for _ in range(32)]):
            drawn[output.request_id, output.choice] += output.token_ids
            if output.stats:
                drafted += sum(output.stats.drafted.values())
                accepted += sum(output.stats.accepted.values())
        for one, two, _ in drawn.values():
            counts[one, two] += 1
    assert counts.sum() == 20_480
    assert accepted > 2_000 and drafted > accepted, "drafts were not both accepted and rejected"
    assert stats.chisquare(counts.ravel(), expected.ravel() * counts.sum()).pvalue > 1e-3


def test_top_p_draws_stay_inside_the_nucleus() -> None:
    engine = tiny_engine(model={"vocab_size": 24})
    params = SamplingParams(n=64, max_tokens=12, temperature=1.0, top_p=0.3, seed=1)
    for choice in decode(engine, [Request(prompt(12, 5, 24), params)])[0]:
        check = answer(engine, [*prompt(12, 5, 24), *choice.token_ids], max_tokens=1, prompt_logprobs=20)
        assert check.prompt_logprobs is not None
        for scored in check.prompt_logprobs[12:]:
            assert scored is not None
            more_likely = sum(np.exp(value) for _, value in scored.top if value > scored.logprob)
            assert more_likely < 0.3 + 1e-4


def test_logprobs_with_drafts_are_the_plain_ones() -> None:
    """Fault 14."""
    engine = tiny_engine(model={"vocab_size": 24})
    plain, drafted = both(engine, prompt(20, 1, 24), max_tokens=40, logprobs=5)
    assert len(drafted.logprobs) == len(drafted.token_ids) == len(plain.logprobs)
    for one, other in zip(plain.logprobs, drafted.logprobs, strict=True):
        assert one.token_id == other.token_id
        assert one.logprob == pytest.approx(other.logprob, abs=1e-3)
        assert [t for t, _ in one.top] == [t for t, _ in other.top]
        assert [v for _, v in one.top] == pytest.approx([v for _, v in other.top], abs=1e-3)
        assert len(one.top) == 5 and one.top[0] == (one.token_id, one.logprob)
    assert any(one.logprob < -1e-3 for one in plain.logprobs)


@pytest.mark.parametrize("chunk", [3, 512])
def test_prompt_logprobs(chunk: int) -> None:
    engine = tiny_engine(prefill_chunk=chunk)
    tokens = prompt(11, 4)
    scored = answer(engine, tokens, max_tokens=1, prompt_logprobs=2).prompt_logprobs
    assert scored is not None and len(scored) == 11 and scored[0] is None
    with torch.inference_mode():
        engine.runner.model.set_attn_implementation("eager")
        expected = torch.log_softmax(engine.runner.model(torch.tensor([tokens])).logits[0], -1)
    for position, one in enumerate(scored[1:], 1):
        assert one is not None and one.token_id == tokens[position]
        assert one.logprob == pytest.approx(float(expected[position - 1, tokens[position]]), abs=1e-4)
        assert len(one.top) == 2


def test_the_biased_token_never_appears() -> None:
    """Fault 11: ban the token that drafts propose most."""
    engine = tiny_engine(model={"vocab_size": 24})
    free = answer(engine, prompt(20, 1, 24), max_tokens=60, ignore_eos=True)
    favourite = max(set(free.token_ids), key=free.token_ids.count)
    plain, drafted = both(engine, prompt(20, 1, 24), max_tokens=60, ignore_eos=True, logit_bias={favourite: -100.0})
    assert drafted.token_ids == plain.token_ids and favourite not in drafted.token_ids


def test_frequency_penalties_of_both_signs() -> None:
    """Fault 10."""
    engine = tiny_engine(model={"vocab_size": 24})
    answers: list[Answer] = []
    for penalty in (-2.0, 2.0):
        plain, drafted = both(engine, prompt(20, 1, 24), max_tokens=40, ignore_eos=True, frequency_penalty=penalty)
        assert plain.token_ids == drafted.token_ids
        answers.append(drafted)
    assert answers[0].token_ids != answers[1].token_ids
    assert len(set(answers[0].token_ids)) < len(set(answers[1].token_ids))


def test_eos_is_banned_before_min_tokens() -> None:
    engine = tiny_engine(model={"vocab_size": 24})
    bias = {EOS: 50.0}
    assert answer(engine, prompt(9, 1, 24), max_tokens=20, logit_bias=bias).token_ids == []
    plain, drafted = both(engine, prompt(9, 1, 24), max_tokens=20, logit_bias=bias, min_tokens=7)
    assert len(drafted.token_ids) == 7 and drafted.token_ids == plain.token_ids and EOS not in drafted.token_ids
    assert drafted.finish_reason == "stop"
