"""Every setting of the engine does something: one test a field, and a test that none is left out."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from racer import Engine, EngineConfig, Source
from racer.draft.drafter import Drafter, RequestDrafts
from racer.draft.sources import Continuation, MemoryNgramSource
from racer.draft.tree import DraftTree
from racer.errors import ConfigError, ModelError
from racer.model.loader import load
from racer.step_curve import StepCurve
from tests.racer.engine.helpers import answer, prompt, tiny_engine

TEXT = prompt(12, 1, 24) * 3
Check = Callable[[Path, pytest.MonkeyPatch], None]
CHECKS: dict[str, Check] = {}


def checks(field: str) -> Callable[[Check], Check]:
    def register(check: Check) -> Check:
        CHECKS[field] = check
        return check

    return register


@pytest.mark.parametrize("field", EngineConfig.model_fields)
def test_setting_changes_something(
    field: str, tiny_folder: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    assert field in CHECKS, f"EngineConfig.{field} has no test that shows what it does"
    monkeypatch.setenv("RACER_CACHE", str(tmp_path))
    CHECKS[field](tiny_folder, monkeypatch)


def decode(**settings: Any) -> Any:
    return answer(tiny_engine(model={"vocab_size": 24}, **settings), TEXT, max_tokens=40, ignore_eos=True)


def taught(**settings: Any) -> RequestDrafts:
    """Drafts of a request whose text and logits are known, without a model."""
    drafts = Drafter(EngineConfig(**settings), 500, None).open()
    text = np.tile(np.arange(20, 50, dtype=np.int32), 3)
    drafts.learn_text(text)
    tops = (100 + np.arange(30)[:, None] * 8 + np.arange(8)[None, :]).astype(np.int32)
    drafts.learn_logits(text[:30], tops, np.full((30, 8), 0.1, np.float32))
    return drafts


def retrieved(tree: DraftTree) -> int:
    return int(np.count_nonzero(tree.sources == Source.RETRIEVAL))


@checks("model")
def _model(folder: Path, _: pytest.MonkeyPatch) -> None:
    assert load(EngineConfig(model=str(folder))).name == str(folder)
    with pytest.raises(ModelError, match="no-such-folder"):
        load(EngineConfig(model=str(folder / "no-such-folder")))


@checks("dtype")
def _dtype(folder: Path, _: pytest.MonkeyPatch) -> None:
    for name in ("float32", "bfloat16"):
        assert load(EngineConfig(model=str(folder), dtype=name)).model.dtype == getattr(torch, name)


@checks("device")
def _device(folder: Path, _: pytest.MonkeyPatch) -> None:
    assert load(EngineConfig(model=str(folder), device="cpu")).device == torch.device("cpu")
    with pytest.raises(ConfigError, match="device='abacus'"):
        load(EngineConfig(model=str(folder), device="abacus"))


@checks("trust_remote_code")
def _trust(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []
    original = load.__globals__["AutoConfig"].from_pretrained

    def spy(*args: Any, **options: Any) -> Any:
        asked.append(options["trust_remote_code"])
        return original(*args, **options)

    monkeypatch.setattr(load.__globals__["AutoConfig"], "from_pretrained", spy)
    for value in (False, True):
        load(EngineConfig(model=str(folder), trust_remote_code=value))
    assert set(asked[:1]) == {False} and True in asked  # tests/racer/model/test_loader.py runs such code


@checks("compile")
def _compile(*_: Any) -> None:
    compiled = tiny_engine(compile=True)
    plain = tiny_engine(compile=False)
    assert compiled.runner.compiled and not plain.runner.compiled
    assert answer(compiled, TEXT, max_tokens=8).token_ids == answer(plain, TEXT, max_tokens=8).token_ids


@checks("drafts")
def _drafts(*_: Any) -> None:
    found = {mode: decode(drafts=mode).stats.drafted for mode in ("off", "retrieval", "logits", "racer")}
    assert not any(found["off"].values())
    assert found["retrieval"][Source.RETRIEVAL] and not found["retrieval"][Source.LOGITS]
    assert found["logits"][Source.LOGITS] and not found["logits"][Source.RETRIEVAL]
    assert found["racer"][Source.LOGITS] and found["racer"][Source.RETRIEVAL]


@checks("tree")
def _tree(*_: Any) -> None:
    trees = {shape: taught(tree=shape).propose(16) for shape in ("best", "paper", "chain")}
    assert int(trees["chain"].depths.max()) == len(trees["chain"]) - 1
    assert trees["best"].tokens.tolist() != trees["paper"].tokens.tolist() != trees["chain"].tokens.tolist()


@checks("budget")
def _budget(*_: Any) -> None:
    for budget in (1, 4, 16):
        stats = decode(budget=budget).stats
        assert sum(stats.drafted.values()) <= (budget - 1) * stats.steps
        assert (sum(stats.drafted.values()) > 3 * stats.steps) == (budget == 16)


@checks("max_budget")
def _max_budget(*_: Any) -> None:
    free = StepCurve(alone=((1.0, 20.0), (512.0, 20.1)))  # more nodes cost next to nothing: all that are allowed pay
    most = []
    for limit in (4, 16):
        engine = tiny_engine(model={"vocab_size": 24}, budget="auto", max_budget=limit, step_curve=free)
        answer(engine, TEXT, max_tokens=40, ignore_eos=True)
        most.append(max(step.tokens for step in engine.metrics.recent if step.decoding))
    assert most[0] <= 4 < most[1] <= 16


@checks("ngram")
def _ngram(*_: Any) -> None:
    # continuations reach as deep as the n-grams of the automaton; the root is their second token
    depths = [int(taught(tree="paper", drafts="retrieval", ngram=n).propose(64).depths.max()) for n in (3, 10)]
    assert depths == [1, 8]


@checks("top_k")
def _top_k(*_: Any) -> None:
    children = [
        int(np.count_nonzero(taught(tree="paper", drafts="logits", top_k=k).propose(64).parents == 0)) for k in (2, 8)
    ]
    assert children == [2, 8]


@checks("min_depth")
def _min_depth(*_: Any) -> None:
    found = [retrieved(taught(tree="paper", drafts="retrieval", ngram=6, min_depth=d).propose(64)) for d in (2, 6)]
    assert found[0] > 0 == found[1]  # a match of 6 leaves nothing of a 6-gram to draft


@checks("max_automaton_nodes")
def _max_automaton_nodes(*_: Any) -> None:
    sizes = []
    for limit in (64, 10_000):
        drafts = Drafter(EngineConfig(tree="paper", max_automaton_nodes=limit), 500, None).open()
        drafts.learn_text(np.random.default_rng(0).integers(0, 400, 2000).astype(np.int32))
        sizes.append(len(drafts.automaton))
    assert sizes == [63, 9_999]  # besides the root


def prior_engine(**settings: Any) -> Engine:
    return tiny_engine(model={"vocab_size": 259}, **({"prior": True} | settings))


@checks("prior")
def _prior(*_: Any) -> None:
    with_prior, without = prior_engine(), prior_engine(prior=False)
    assert len(with_prior.drafter.prior.tokens) == 259 and not len(without.drafter.prior.tokens)
    assert with_prior.drafter.prior.tokens[:, 0].max() < 259


@checks("prior_limit_s")
def _prior_limit(_: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter(range(0, 100_000, 10))
    monkeypatch.setattr("racer.model.prior.time.monotonic", lambda: next(clock))
    assert not len(prior_engine(prior_limit_s=5).drafter.prior.tokens)
    assert len(prior_engine(prior_limit_s=1e9).drafter.prior.tokens) == 259


@checks("cache_bytes")
def _cache_bytes(*_: Any) -> None:
    places = [tiny_engine(cache_bytes=size).runner.pool.places for size in (1 << 20, 1 << 21)]
    assert places[1] == pytest.approx(2 * places[0], abs=1)


@checks("max_context")
def _max_context(*_: Any) -> None:
    assert [tiny_engine(max_context=length).context_length for length in (50, 100)] == [50, 100]


@checks("max_running")
def _max_running(*_: Any) -> None:
    assert [tiny_engine(max_running=n).scheduler.max_running for n in (2, 5)] == [2, 5]  # engine/test_scheduling.py


@checks("prefill_chunk")
def _prefill_chunk(*_: Any) -> None:
    steps = []
    for chunk in (10, 100):
        engine = tiny_engine(prefill_chunk=chunk)
        answer(engine, prompt(100, 1), max_tokens=1)
        steps.append(engine.metrics.steps)
    assert steps == [10, 1]


@checks("source_deadline_ms")
def _source_deadline(*_: Any) -> None:
    asked: set[float] = set()

    class Spy(MemoryNgramSource):
        def lookup(self, contexts: Sequence[NDArray[np.int32]], deadline_ms: float) -> list[list[Continuation]]:
            asked.add(deadline_ms)
            return super().lookup(contexts, deadline_ms)

    answer(tiny_engine(source=Spy(), source_deadline_ms=7.5), prompt(9, 1), max_tokens=5, ignore_eos=True)
    assert asked == {7.5}


@checks("seed")
def _seed(*_: Any) -> None:
    def sample(seed: int | None) -> list[int]:
        return answer(tiny_engine(seed=seed), prompt(9, 1), max_tokens=20, temperature=1.0).token_ids

    assert sample(3) == sample(3) != sample(4)
