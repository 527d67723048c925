"""One packed forward says what separate forwards say."""

import numpy as np
import pytest
import torch

from racer.errors import ConfigError, UnsupportedModelError
from racer.model.attention import ATTENTION, packed_attention
from racer.model.layout import Segment
from racer.model.native import load_kernels, target
from racer.model.runner import ModelRunner
from racer.model.selftest import check_verifiable
from tests.racer.engine.helpers import loaded, prompt
from tests.tiny import tiny_model


def chain(tokens: tuple[int, ...], start: int, cached: int = 0) -> Segment:
    return Segment(np.array(tokens, np.int32), np.arange(-1, len(tokens) - 1, dtype=np.int32), start, cached)


@pytest.mark.parametrize("family", ["llama", "gemma2", "gpt_oss", "mistral"])
def test_three_branches_equal_three_chains(family: str) -> None:
    """Window 16, text of 20: each branch crosses the window's edge at its own depth."""
    runner = ModelRunner(loaded(tiny_model(family)).model, 1 << 22)
    text, drafts = prompt(20, 1), prompt(6, 2)
    runner.run([chain(text[:-1], 100)])
    tree = Segment(
        np.array([text[-1], *drafts], np.int32), np.array([-1, 0, 0, 0, 1, 2, 4], np.int32), 100, len(text) - 1
    )
    other = prompt(7, 3)
    packed = runner.run([chain(other, 400), tree])
    torch.testing.assert_close(packed[:7], runner.run([chain(other, 0)]), atol=1e-4, rtol=1e-4)
    for branch in ([0, 1, 4, 6], [0, 2, 5], [0, 3]):
        alone = runner.run([chain(text + tuple(drafts[node - 1] for node in branch[1:]), 0)])
        torch.testing.assert_close(packed[7:][branch], alone[len(text) - 1 :], atol=1e-4, rtol=1e-4)


@pytest.mark.may_skip("a processor without AVX2 runs torch's own attention")
@pytest.mark.parametrize("family", ["llama", "mistral", "gemma2", "gpt_oss"])
def test_steps_are_the_kernels_where_they_know_the_models_attention(
    family: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Soft caps and sinks are not theirs; either way the logits are those of float32."""
    if not target():
        pytest.skip("this processor has none of AMX, AVX-512 and AVX2")
    assert load_kernels(), "the kernels could not be built"
    begun = []
    begin = torch.ops.racer.begin_step

    def noted(*arguments: object) -> None:
        begun.append(family)
        begin(*arguments)

    monkeypatch.setattr(torch.ops.racer, "begin_step", noted)
    model = tiny_model(family, head_dim=32, initializer_range=0.05)
    text, drafts = prompt(20, 1), prompt(3, 2)
    tree = Segment(np.array([text[-1], *drafts], np.int32), np.array([-1, 0, 0, 1], np.int32), 100, len(text) - 1)
    found = []
    for dtype in (torch.float32, torch.bfloat16):
        runner = ModelRunner(loaded(model).model.to(dtype), 1 << 22)  # type: ignore[arg-type]
        runner.run([chain(text[:-1], 100)])
        found.append(runner.run([tree, chain(prompt(5, 3), 10)]).float())
    tolerance = 0.2 if family == "gpt_oss" else 0.05  # rounding may choose other experts
    torch.testing.assert_close(found[1], found[0], atol=tolerance, rtol=0.05)
    assert bool(begun) == (family in ("llama", "mistral"))


def test_only_scored_rows_come_back() -> None:
    runner = ModelRunner(loaded(tiny_model("llama")).model, 1 << 22)
    tokens = prompt(10, 1)
    everything = runner.run([chain(tokens, 0)])
    segment = chain(tokens, 0)
    last = runner.run([Segment(segment.tokens, segment.parents, 0, 0, scored_from=8)])
    torch.testing.assert_close(last, everything[8:])


def test_accepted_places_are_kept_in_order() -> None:
    """A path through a tree, moved to contiguous places, gives the logits of the same text in one run."""
    runner = ModelRunner(loaded(tiny_model("llama")).model, 1 << 22)
    text, drafts = prompt(9, 1), prompt(5, 2)
    runner.run([chain(text[:-1], 50)])
    tree = Segment(np.array([text[-1], *drafts], np.int32), np.array([-1, 0, 0, 1, 2, 4], np.int32), 50, 8)
    runner.run([tree])
    path = np.array([0, 2, 4, 5])
    runner.copy_places([50 + 8 + path], [50 + 8 + np.arange(4)])
    accepted = text + tuple(drafts[node - 1] for node in path[1:])
    after = runner.run([chain((7, 8), 50, cached=len(accepted))])
    torch.testing.assert_close(after, runner.run([chain((*accepted, 7, 8), 300)])[-2:], atol=1e-4, rtol=1e-4)


def test_unsupported_attention_argument_is_refused_with_its_reason() -> None:
    module = torch.nn.Module()
    module.layer_idx = 0  # type: ignore[assignment]
    heads = torch.zeros(1, 1, 2, 4)
    with pytest.raises(UnsupportedModelError, match="position_bias"):
        packed_attention(module, heads, heads, heads, None, position_bias=torch.zeros(1))


def test_self_test_finds_attention_that_mixes_branches(monkeypatch: pytest.MonkeyPatch) -> None:
    """With a tree mask that hides nothing, branches see each other: the start-up check must refuse."""
    runner = ModelRunner(loaded(tiny_model("llama", initializer_range=0.5)).model, 1 << 22)
    check_verifiable(runner)
    assert runner.model.config._attn_implementation == ATTENTION
    monkeypatch.setattr("racer.model.layout.hidden_of", lambda parents: np.zeros((len(parents),) * 2, np.bool_))
    with pytest.raises(UnsupportedModelError, match="separate texts"):
        check_verifiable(runner)


def test_a_cache_too_small_for_one_token_is_a_config_error() -> None:
    with pytest.raises(ConfigError, match="cache_bytes=10 holds fewer"):
        ModelRunner(loaded(tiny_model("llama")).model, 10)
