"""Padded steps give what packed ones do, in every family; graphs are played by shape. No GPU: nothing is recorded."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor

from racer import Request, SamplingParams
from racer.model.graphs import MOST_ROWS, Play, Shape, StepGraphs
from racer.model.layout import Segment
from racer.model.runner import ModelRunner
from tests.racer.engine.helpers import decode, loaded, prompt, tiny_engine
from tests.tiny import FAMILIES, tiny_model


def chain(tokens: list[int], start: int, cached: int) -> Segment:
    return Segment(np.array(tokens, np.int32), np.arange(-1, len(tokens) - 1, dtype=np.int32), start, cached)


def tree(nodes: int, start: int, cached: int, seed: int, scored_from: int = 0) -> Segment:
    rng = np.random.default_rng(seed)
    parents = np.array([-1, *(rng.integers(0, i) for i in range(1, nodes))], np.int32)
    return Segment(rng.integers(3, 200, nodes).astype(np.int32), parents, start, cached, scored_from)


def graphs_of(runner: ModelRunner, played: list[Play] | None = None) -> StepGraphs:
    """Graphs that compute what they would play."""

    def record(forward: Play) -> Play:
        if played is not None:
            played.append(forward)
        return forward

    return StepGraphs(runner.pool, runner.dtype, runner.device, runner.run_padded, record)


@pytest.mark.parametrize("family", sorted(FAMILIES))
@torch.inference_mode()
def test_a_padded_step_gives_the_packed_ones_logits_and_cache(family: str) -> None:
    """Three requests of different lengths: a tree, one token, a chain of which the last row is scored."""
    runner = ModelRunner(loaded(tiny_model(family)).model, 1 << 22)
    texts = {0: prompt(40, 1), 100: prompt(3, 2), 200: prompt(17, 3)}
    runner.run([chain(list(text), start, 0) for start, text in texts.items()])
    step = [tree(7, 0, 40, 4), chain([5], 100, 3), tree(5, 200, 17, 6, scored_from=4)]
    packed = runner.run(step)
    stored = [
        (keys[:, :300].clone(), values[:, :300].clone())
        for keys, values in zip(runner.pool.keys, runner.pool.values, strict=True)
    ]
    for layer in range(len(stored)):
        for start, cached, nodes in ((0, 40, 7), (100, 3, 1), (200, 17, 5)):
            runner.pool.keys[layer][:, start + cached : start + cached + nodes] = 9.0
            runner.pool.values[layer][:, start + cached : start + cached + nodes] = 9.0
    padded = graphs_of(runner).run(step)
    assert padded is not None and padded.shape == packed.shape
    torch.testing.assert_close(padded, packed, atol=2e-4, rtol=2e-4)
    for layer, (keys, values) in enumerate(stored):
        for start, count in ((0, 47), (100, 4), (200, 22)):
            torch.testing.assert_close(
                runner.pool.keys[layer][:, start : start + count], keys[:, start : start + count], atol=2e-4, rtol=2e-4
            )
            torch.testing.assert_close(
                runner.pool.values[layer][:, start : start + count],
                values[:, start : start + count],
                atol=2e-4,
                rtol=2e-4,
            )


@pytest.mark.parametrize("family", ["llama", "gemma2", "gpt_oss"])
def test_an_engine_on_padded_steps_decodes_the_same(family: str) -> None:
    """Requests come and go, long prompts in pieces beside them, with drafts and without, past a window's length."""
    plain, graphed = tiny_engine(family, prefill_chunk=64), tiny_engine(family, prefill_chunk=64)
    played: list[Play] = []
    graphed.runner.graphs = graphs_of(graphed.runner, played)
    requests = [
        Request(prompt(length, length), SamplingParams(max_tokens=tokens, ignore_eos=True, seed=length, **more))
        for length, tokens, more in (
            (5, 40, {}),
            (90, 30, {"temperature": 0.9}),
            (14, 50, {"drafts": "off"}),
            (2, 20, {"n": 2, "temperature": 1.1}),
            (33, 44, {}),
        )
    ]
    expected, found = (
        [[one.token_ids for one in choices] for choices in decode(engine, requests)] for engine in (plain, graphed)
    )
    assert found == expected and len(played) > 3


def test_shapes_are_few_and_waste_little() -> None:
    def shape(*sizes: int, cached: int = 10) -> Shape | None:
        return Shape.of([chain([1] * size, 0, cached) for size in sizes])

    assert shape(1) == Shape(1, 1, 256) and shape(3, cached=254) == Shape(1, 4, 1024)
    assert shape(1, 1, 5) == Shape(4, 8, 256)
    assert shape(*[1] * 15, 8) is None  # 128 rows for 23
    assert shape(*[4] * 15, 8) == Shape(16, 8, 256)
    assert shape(MOST_ROWS) == Shape(1, MOST_ROWS, 256) and shape(MOST_ROWS + 1) is None
    short = [chain([1], 0, 10) for _ in range(31)]
    assert Shape.of([*short, chain([1], 0, 8000)]) is None  # 524,288 places for 8,342
    assert shape(1, cached=1 << 30) is None


def test_each_shape_is_recorded_once_and_the_oldest_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("racer.model.graphs._MOST_GRAPHS", 2)
    runner = ModelRunner(loaded(tiny_model("llama")).model, 1 << 22)
    played: list[Play] = []
    with torch.inference_mode():
        graphs = graphs_of(runner, played)
        for size, recorded in ((1, 1), (2, 2), (1, 2), (4, 3), (1, 3), (2, 4)):
            assert graphs.run([chain([7] * size, 0, 0)]) is not None
            assert len(played) == recorded, size


@pytest.mark.parametrize("wrong", ["fails", "differs"])
def test_graphs_that_fail_or_differ_are_not_used(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, wrong: str
) -> None:
    def recorder(device: torch.device) -> Callable[[Play], Play]:
        def record(forward: Play) -> Play:
            if wrong == "fails":
                raise RuntimeError("operation not permitted when stream is capturing")

            def play() -> Tensor:
                return forward() + 1.0

            return play

        return record

    monkeypatch.setattr("racer.model.runner.cuda_recorder", recorder)
    runner = ModelRunner(loaded(tiny_model("llama")).model, 1 << 22)
    assert runner._checked_graphs() is None
    said = "not permitted" if wrong == "fails" else "their logits differ by"
    assert "steps run without CUDA graphs" in caplog.text and said in caplog.text
    monkeypatch.setattr("racer.model.runner.cuda_recorder", lambda device: lambda forward: forward)
    assert runner._checked_graphs() is not None


@torch.inference_mode()
def test_what_is_not_finite_in_one_text_reaches_no_other() -> None:
    """Nor the steps behind it: padding rows see their text, and write what comes of it."""
    runner = ModelRunner(loaded(tiny_model("llama")).model, 1 << 22)
    graphs = graphs_of(runner)
    runner.run([chain(list(prompt(9, 1)), 0, 0)])
    runner.run([chain(list(prompt(5, 2)), 100, 0)])
    step = [chain([7, 8, 9], 0, 9), chain([5], 100, 5)]
    expected = runner.run(step)
    for keys, values in zip(runner.pool.keys, runner.pool.values, strict=True):
        keys[:, 100:105], values[:, 100:105] = float("nan"), float("inf")
    found = graphs.run(step)
    assert found is not None and not found[3].isfinite().all()
    torch.testing.assert_close(found[:3], expected[:3], atol=2e-4, rtol=2e-4)
    again = graphs.run([chain([7], 0, 9)])
    assert again is not None and again.isfinite().all()


def test_a_failure_ends_the_graphs_and_not_the_engine(caplog: pytest.LogCaptureFixture) -> None:
    plain, graphed = tiny_engine("llama"), tiny_engine("llama")
    played: list[Play] = []
    graphs = graphed.runner.graphs = graphs_of(graphed.runner, played)
    record = graphs._record

    def fails_later(forward: Play) -> Play:
        if len(played) == 2:
            raise RuntimeError("CUDA out of memory")
        return record(forward)

    graphs._record = fails_later
    requests = [Request(prompt(20, 4), SamplingParams(max_tokens=40, ignore_eos=True))]
    expected, found = (decode(engine, requests)[0][0].token_ids for engine in (plain, graphed))
    assert found == expected and len(played) == 2
    assert graphed.runner.graphs is None and "without CUDA graphs from now on: CUDA out of memory" in caplog.text


def test_a_step_that_was_recorded_is_not_timed() -> None:
    runner = ModelRunner(loaded(tiny_model("llama")).model, 1 << 22)
    assert runner.timed_fairly
    runner.graphs = graphs_of(runner)
    seen = []
    for size in (1, 1, 2, 1, 200):
        runner.run([chain([7] * size, 0, 0)])
        seen.append(runner.timed_fairly)
    assert seen == [False, True, False, True, True]
