"""The engine on the real demo model: the tokens of ``model.generate``, and what drafting is worth."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from racer import Engine, EngineConfig, Request, SamplingParams
from racer.commands.ties import compare
from racer.model.attention import ATTENTION
from racer.model.layout import Segment
from racer.model.loader import LoadedModel
from racer.model.native import target
from racer.text import render_chat
from tests.racer.engine.helpers import Answer, answer, decode

pytestmark = pytest.mark.timeout(900)  # whoever comes first computes the prior table

QUESTIONS = [
    "Write a Python function that returns the n-th Fibonacci number.",
    "Translate to French: The weather is nice today and we are going to the beach.",
    "珍妮特的鸭子每天下 16 颗蛋。她每天早上吃 3 颗，其余以每颗 2 美元卖掉。她每天赚多少钱？",
    "Summarise in one sentence: The committee met on Monday. It approved the budget. It postponed the vote on the "
    "new library until the autumn, because the architects had not delivered their revised drawings in time.",
    "word " * 48,  # fault 1
]
NEW_TOKENS = 32


def prompts(engine: Engine) -> list[tuple[int, ...]]:
    return [tuple(render_chat(engine.tokenizer, [{"role": "user", "content": text}])) for text in QUESTIONS]


def engine_on(loaded: LoadedModel, **settings: object) -> Engine:
    """An engine on the session's model, whose attention is put back by the fixtures below."""
    loaded.model.set_attn_implementation(ATTENTION)
    return Engine(EngineConfig(**({"cache_bytes": 1 << 28} | settings)), loaded=loaded)


@pytest.fixture(scope="module")
def float32(demo_float32: LoadedModel) -> Iterator[Engine]:
    own = demo_float32.model.config._attn_implementation
    yield engine_on(demo_float32, prior=False, compile=False)
    demo_float32.model.set_attn_implementation(own)


@pytest.fixture(scope="module")
def bfloat16(demo_bfloat16: LoadedModel) -> Iterator[Engine]:
    own = demo_bfloat16.model.config._attn_implementation
    yield engine_on(demo_bfloat16)
    demo_bfloat16.model.set_attn_implementation(own)


@pytest.fixture(scope="module")
def generated(float32: Engine) -> list[list[int]]:
    """What transformers decodes, without the end-of-sequence token."""
    model, stops = float32.loaded.model, float32.loaded.eos_token_ids
    model.set_attn_implementation("sdpa")
    answers = []
    for prompt in prompts(float32):
        ids = torch.tensor([prompt])
        row = model.generate(  # type: ignore[operator]
            ids, attention_mask=torch.ones_like(ids), max_new_tokens=NEW_TOKENS, do_sample=False, pad_token_id=2
        )[0, len(prompt) :].tolist()
        answers.append([token for token in row if token not in stops])
    model.set_attn_implementation(ATTENTION)
    return answers


@pytest.mark.slow
@pytest.mark.parametrize("drafts", ["off", "racer"])
def test_greedy_float32_equals_generate_alone_and_together(
    float32: Engine, generated: list[list[int]], drafts: str
) -> None:
    params = SamplingParams(max_tokens=NEW_TOKENS, drafts=drafts)
    together = decode(float32, [Request(prompt, params) for prompt in prompts(float32)])
    assert [choices[0].token_ids for choices in together] == generated
    alone = answer(float32, prompts(float32)[4], max_tokens=NEW_TOKENS, drafts=drafts)
    assert alone.token_ids == generated[4]


@pytest.mark.slow
def test_seeded_sampling_is_the_same_with_and_without_drafts(float32: Engine) -> None:
    def sample(drafts: str, count: int) -> list[Answer]:
        params = SamplingParams(max_tokens=NEW_TOKENS, temperature=0.8, top_p=0.9, seed=42, drafts=drafts)
        return [choices[0] for choices in decode(float32, [Request(p, params) for p in prompts(float32)[:count]])]

    plain, drafted, alone = sample("off", 4), sample("racer", 4), sample("racer", 1)
    assert [one.token_ids for one in drafted] == [one.token_ids for one in plain]
    assert alone[0].token_ids == plain[0].token_ids
    assert sum(one.stats.steps for one in drafted) < sum(one.stats.steps for one in plain)


@pytest.mark.slow
def test_bfloat16_differs_at_near_ties_only(bfloat16: Engine) -> None:
    for prompt in prompts(bfloat16):
        plain = answer(bfloat16, prompt, max_tokens=48, drafts="off")
        drafted = answer(bfloat16, prompt, max_tokens=48)
        difference = compare(bfloat16, prompt, plain.token_ids, drafted.token_ids)
        assert difference is None or difference.near_tie, difference


@pytest.mark.slow
def test_the_best_tree_beats_the_papers_and_the_prior_helps(bfloat16: Engine) -> None:
    """Mean accepted tokens over the questions at a fixed budget of 16; every prompt is cold."""

    def mat(tree: str) -> float:
        params = SamplingParams(max_tokens=64, tree=tree)
        answers = [choices[0] for choices in decode(bfloat16, [Request(p, params) for p in prompts(bfloat16)])]
        return sum(one.stats.decided - 1 for one in answers) / sum(one.stats.steps for one in answers)

    drafter, budget = bfloat16.drafter, bfloat16.budget
    bfloat16.budget, prior, free = 16, drafter.prior, drafter.free
    try:
        best = mat("best")
        assert best > mat("paper") > 1.3
        drafter.prior, drafter.free = drafter.no_prior, drafter.no_rows
        assert mat("best") < best
    finally:
        bfloat16.budget, drafter.prior, drafter.free = budget, prior, free


@pytest.mark.slow
def test_text_streams_as_the_tokenizer_would_write_it(bfloat16: Engine) -> None:
    for prompt in prompts(bfloat16):
        one = answer(bfloat16, prompt, max_tokens=40)
        assert one.text == bfloat16.tokenizer.decode(one.token_ids, skip_special_tokens=True)


@pytest.mark.slow
@pytest.mark.may_skip("attention on matrix tiles rounds differently for one row and for many")
def test_without_tiles_a_nodes_logits_are_those_of_single_steps(bfloat16: Engine) -> None:
    """To the last bit, behind a prompt in one piece, beside another request, anywhere in a tree."""
    if "-mamx-tile" in (target() or ("-mamx-tile",)):
        pytest.skip("this processor has matrix tiles, or no kernels of ours")
    rng, run = np.random.default_rng(0), bfloat16.runner.run
    text, other, drafts = (rng.integers(100, 40_000, size).astype(np.int32) for size in (90, 7, 30))
    parents = np.array([-1, *(rng.integers(0, i) for i in range(1, len(drafts)))], np.int32)

    def chain(tokens: NDArray[np.int32], start: int, cached: int) -> Segment:
        return Segment(tokens, np.arange(-1, len(tokens) - 1, dtype=np.int32), start, cached)

    run([chain(text, 0, 0)])
    for first, end in ((0, 33), (33, 70), *((i, i + 1) for i in range(70, 90))):
        run([chain(text[first:end], 200, first)])
    tree = run([chain(other, 400, 0), Segment(drafts, parents, 0, len(text))])[len(other) :]
    for leaf in range(len(drafts)):
        path = [leaf]
        while parents[path[0]] >= 0:
            path.insert(0, int(parents[path[0]]))
        for depth, node in enumerate(path):
            alone = run([chain(drafts[node : node + 1], 200, len(text) + depth)])
        assert torch.equal(alone[-1], tree[leaf])
