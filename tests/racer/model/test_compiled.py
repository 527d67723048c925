"""Compiled layers decode what the layers as written decode; where they cannot be compiled, they run as written."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest
import torch
from torch import nn
from torch._inductor import cpu_vec_isa

from racer import Engine, EngineConfig, Request, SamplingParams
from racer.model import compiled
from racer.model.compiled import repeated_blocks
from tests.racer.engine.helpers import answer, decode, loaded, prompt, tiny_engine
from tests.tiny import tiny_model


@pytest.mark.parametrize("family", ["llama", "gemma2", "qwen3_moe", "gpt_oss"])
def test_ids_equal_generate(family: str) -> None:
    """Plain attention, windows with soft-caps, experts, and sinks; one row and many, chunks and trees."""
    model, prompts, tokens = tiny_model(family), [prompt(5, 1), prompt(14, 2), prompt(40, 3)], 24
    expected = [
        model.generate(  # type: ignore[operator]
            torch.tensor([text]), max_new_tokens=tokens, do_sample=False, eos_token_id=None, pad_token_id=0
        )[0, len(text) :].tolist()
        for text in prompts
    ]
    engine = tiny_engine(family, prefill_chunk=16, compile=True)
    assert engine.runner.compiled
    params = SamplingParams(max_tokens=tokens, ignore_eos=True)
    together = decode(engine, [Request(text, params) for text in prompts])
    assert [choices[0].token_ids for choices in together] == expected
    alone = [decode(engine, [Request(text, params)])[0][0].token_ids for text in prompts]
    assert alone == expected


@pytest.mark.parametrize(
    "params",
    [
        {"temperature": 0.9, "top_p": 0.9, "seed": 1},
        {"temperature": 0.7, "top_k": 20, "min_p": 0.02, "seed": 2},
        {"frequency_penalty": 1.5, "repetition_penalty": 1.3, "logit_bias": {7: -100.0, 9: 5.0}},
        {"temperature": 0.8, "presence_penalty": -1.0, "seed": 3, "logprobs": 3},
    ],
    ids=["nucleus", "top-k", "penalties", "logprobs"],
)
def test_sampled_and_shaped_tokens_are_those_of_the_layers_as_written(params: dict[str, Any]) -> None:
    """With drafts and without, alone and beside others."""
    made, plain = (tiny_engine(compile=one, budget=12) for one in (True, False))
    assert made.runner.compiled and not plain.runner.compiled
    asked = {"max_tokens": 24, "ignore_eos": True} | params
    texts = [prompt(5, 1), prompt(14, 2) * 3, prompt(40, 3)]
    expected = [answer(plain, text, drafts="off", **asked) for text in texts]
    together = decode(made, [Request(text, SamplingParams(**asked)) for text in texts])
    for one, (other,), text in zip(expected, together, texts, strict=True):
        assert other.token_ids == one.token_ids == answer(made, text, drafts="off", **asked).token_ids
        for theirs, ours in zip(one.logprobs, other.logprobs, strict=True):
            assert theirs.logprob == pytest.approx(ours.logprob, abs=1e-3)


SECOND_START = """
from torch._dynamo.utils import counters
from tests.racer.engine.helpers import tiny_engine
assert tiny_engine(compile=True).runner.compiled
print(counters["inductor"]["fxgraph_cache_hit"], counters["inductor"]["fxgraph_cache_miss"])
"""


@pytest.mark.slow
def test_a_second_start_loads_what_the_first_compiled() -> None:
    assert tiny_engine(compile=True).runner.compiled
    command = [sys.executable, "-c", SECOND_START]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    hits, misses = map(int, done.stdout.split())
    assert hits > 0 == misses


def test_models_of_one_process_do_not_disturb_each_other() -> None:
    """They share the cache of compiled code; only dtype, or the sizes, tell them apart."""
    kinds: list[dict[str, Any]] = [{"dtype": torch.bfloat16}, {}, {"hidden_size": 96}]
    pairs = []
    for kind in kinds:
        values = {name: value for name, value in kind.items() if name != "dtype"}
        models = [tiny_model("llama", **values).to(kind.get("dtype", torch.float32)) for _ in range(2)]
        settings = EngineConfig(prior=False, cache_bytes=1 << 22, budget=8)
        plain = Engine(settings.model_copy(update={"compile": False}), loaded=loaded(models[0]))
        pairs.append((plain, Engine(settings, loaded=loaded(models[1]))))
    for plain, made in pairs * 2:
        assert made.runner.compiled
        requests = [Request(prompt(14, 2), SamplingParams(max_tokens=12, ignore_eos=True))]
        answers = [decode(engine, requests)[0][0].token_ids for engine in (plain, made)]
        assert answers[0] == answers[1]


def test_an_engine_on_a_model_that_another_one_compiled() -> None:
    model = loaded(tiny_model("llama"))
    first, second = (Engine(EngineConfig(prior=False, cache_bytes=1 << 22, budget=8), loaded=model) for _ in range(2))
    assert second.runner.compiled
    requests = [Request(prompt(14, 2), SamplingParams(max_tokens=12, ignore_eos=True))]
    answers = [decode(engine, requests)[0][0].token_ids for engine in (first, second, first)]
    assert answers[0] == answers[1] == answers[2]


def test_blocks_are_those_that_hold_attention() -> None:
    model = loaded(tiny_model("gpt_neox")).model
    attention = [module for module in model.modules() if type(module).__name__.endswith("Attention")]
    assert repeated_blocks(model, attention) == list(model.get_submodule("gpt_neox.layers").children())
    assert repeated_blocks(nn.Linear(2, 2), attention) == []


def test_no_time_goes_into_trying_the_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the processor has is told by the processor."""
    tried: list[str] = []
    build = cpu_vec_isa.VecISA.check_build

    def recorded(isa: cpu_vec_isa.VecISA, code: str) -> bool:
        tried.append(code)
        return build(isa, code)

    monkeypatch.setattr(cpu_vec_isa.VecISA, "check_build", recorded)
    monkeypatch.setitem(compiled._OPTIONS, "fx_graph_cache", False)
    known = [type(isa).__bool__ for isa in cpu_vec_isa.supported_vec_isa_list]
    for cached in (cpu_vec_isa.valid_vec_isa_list, cpu_vec_isa.VecISA._VecISA__bool__impl, *known):  # type: ignore[attr-defined]
        getattr(cached, "cache_clear", int)()
    made = torch.compile(lambda x: (x + 1).cos(), backend=compiled._backend)(torch.ones(64))
    assert made.allclose(torch.full((64,), 2.0).cos())
    assert cpu_vec_isa.VecISA._avx_code not in tried


def test_without_a_compiler_layers_run_as_written(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(compiled, "_why_not", lambda device: "no C++ compiler was found")
    engine = tiny_engine(compile=True)
    assert not engine.runner.compiled and "no C++ compiler was found" in caplog.text


def test_a_layer_that_does_not_compile_runs_as_written(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise RuntimeError("internal compiler error")

    def broken(block: nn.Module, **_: Any) -> None:
        block._compiled_call_impl = fail

    monkeypatch.setattr(nn.Module, "compile", broken)
    engine = tiny_engine(compile=True)
    assert not engine.runner.compiled and "internal compiler error" in caplog.text
    assert len(decode(engine, [Request(prompt(5), SamplingParams(max_tokens=4))])[0][0].token_ids) > 0
