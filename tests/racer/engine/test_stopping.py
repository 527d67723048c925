"""An answer ends at the first stop condition, wherever in an accepted run it lies."""

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from transformers import PreTrainedTokenizerBase

from racer import Engine, Request, SamplingParams
from racer.draft.sources import MemoryNgramSource
from racer.errors import ConfigError, ContextLengthError, InvalidRequestError
from tests.racer.engine.helpers import Answer, answer, both, decode, prompt, tiny_engine
from tests.tiny import byte_tokenizer


@pytest.fixture(scope="module")
def tokenizer() -> PreTrainedTokenizerBase:
    return byte_tokenizer()


def warm_engine(tokens: tuple[int, ...], **settings: Any) -> tuple[Engine, Answer]:
    """An engine whose store knows the greedy answer by heart, so that runs of it are accepted in one step."""
    source = MemoryNgramSource()
    engine = tiny_engine(source=source, **settings)
    known = answer(engine, tokens, max_tokens=40, ignore_eos=True)
    again = answer(engine, tokens, max_tokens=40, ignore_eos=True)
    assert again.token_ids == known.token_ids and (again.stats.mat or 0) > 3, "the store does not help: runs are short"
    return engine, known


def first_new(tokens: list[int], start: int) -> int:
    """Index of the first token from ``start`` on that did not occur before."""
    return next(i for i in range(start, len(tokens)) if tokens[i] not in tokens[:i])


def test_stop_token_inside_an_accepted_run() -> None:
    """Fault 7: the stop lies before the cap, then behind it."""
    engine, known = warm_engine(prompt(12, 3))
    at = first_new(known.token_ids, 3)
    stop = {"stop_token_ids": (known.token_ids[at],), "ignore_eos": True}
    before = answer(engine, prompt(12, 3), max_tokens=at + 5, **stop)
    assert before.token_ids == known.token_ids[:at]
    assert (before.finish_reason, before.stop_reason) == ("stop", known.token_ids[at])
    behind = answer(engine, prompt(12, 3), max_tokens=at - 1, **stop)
    assert behind.token_ids == known.token_ids[: at - 1]
    assert (behind.finish_reason, behind.stop_reason) == ("length", None)
    exactly = answer(engine, prompt(12, 3), max_tokens=at, **stop)
    assert (exactly.token_ids, exactly.finish_reason) == (known.token_ids[:at], "length")


def test_usage_counts_delivered_tokens_only() -> None:
    """Fault 8: whatever was accepted behind the stop is neither delivered, counted nor learned."""
    engine, known = warm_engine(prompt(12, 3))
    at = first_new(known.token_ids, 3)
    plain, drafted = both(engine, prompt(12, 3), max_tokens=30, stop_token_ids=(known.token_ids[at],), ignore_eos=True)
    for one in (plain, drafted):
        assert one.stats.completion_tokens == len(one.token_ids) == len(one.sources) == at
        assert one.stats.prompt_tokens == 12
    assert sum(drafted.stats.accepted.values()) == sum(source != 0 for source in drafted.sources)
    assert plain.stats.mat == 1.0


@pytest.mark.parametrize("drafts", ["off", "racer"])
@pytest.mark.parametrize("length", [1, 2, 3, 7])
def test_stop_string_cuts_the_text_and_ends_the_tokens(
    tokenizer: PreTrainedTokenizerBase, drafts: str, length: int
) -> None:
    source = MemoryNgramSource()
    engine = tiny_engine(model={"vocab_size": len(tokenizer)}, tokenizer=tokenizer, source=source)
    whole = answer(engine, prompt(12, 3), max_tokens=40, ignore_eos=True)
    assert whole.text == tokenizer.decode(whole.token_ids, skip_special_tokens=True)
    start = next(i for i in range(5, 30) if "�" not in whole.text[i : i + length])
    stop = whole.text[start : start + length]
    cut = whole.text.index(stop)
    stopped = answer(engine, prompt(12, 3), max_tokens=40, ignore_eos=True, stop=(stop, "never"), drafts=drafts)
    assert stopped.text == whole.text[:cut]
    assert (stopped.finish_reason, stopped.stop_reason) == ("stop", stop)
    # the last token is the one that completes the stop string; without it the text does not hold it yet
    assert stop in tokenizer.decode(stopped.token_ids) and stop not in tokenizer.decode(stopped.token_ids[:-1])


def test_length_flushes_what_was_held_for_a_stop_string(tokenizer: PreTrainedTokenizerBase) -> None:
    engine = tiny_engine(model={"vocab_size": len(tokenizer)}, tokenizer=tokenizer)
    whole = answer(engine, prompt(12, 3), max_tokens=25, ignore_eos=True)
    held = answer(engine, prompt(12, 3), max_tokens=25, ignore_eos=True, stop=(whole.text[-3:] + "x",))
    assert held.text == whole.text and held.finish_reason == "length"


def test_prompts_at_the_edge_of_the_context() -> None:
    """Fault 9: the tree shrinks to the room that is left; other streams go on."""
    length = 64
    engine = tiny_engine(context_length=length)
    other = prompt(10, 9)
    alone = answer(engine, other, max_tokens=40, ignore_eos=True)
    for room in (1, 2, 3, 5, 17):
        edge = prompt(length - room, 4)
        plain = answer(engine, edge, ignore_eos=True, drafts="off")
        requests = [
            Request(edge, SamplingParams(ignore_eos=True)),
            Request(other, SamplingParams(max_tokens=40, ignore_eos=True)),
        ]
        (at_edge,), (beside,) = decode(engine, requests)
        assert at_edge.token_ids == plain.token_ids and len(at_edge.token_ids) == room
        assert at_edge.finish_reason == "length"
        assert beside.token_ids == alone.token_ids


def test_what_can_never_fit_is_refused_with_the_numbers() -> None:
    engine = tiny_engine(context_length=64)
    with pytest.raises(ContextLengthError, match=r"64 tokens.*context of 64") as refusal:
        engine.add(Request(prompt(64, 1)))
    assert refusal.value.param == "prompt"
    with pytest.raises(ContextLengthError, match=r"60 tokens.*asks for 5.*at most 4") as refusal:
        engine.add(Request(prompt(60, 1), SamplingParams(max_tokens=5)))
    assert refusal.value.param == "max_tokens"
    assert not engine.has_work
    answer(engine, prompt(60, 1), max_tokens=4)


def test_a_prompt_longer_than_the_cache_is_refused() -> None:
    engine = tiny_engine(cache_bytes=engine_bytes(70))
    assert engine.context_length == 70
    with pytest.raises(ContextLengthError, match="context of 70"):
        engine.add(Request(prompt(70, 1)))
    assert len(answer(engine, prompt(60, 1), ignore_eos=True).token_ids) == 10


def test_a_context_that_model_or_cache_cannot_hold_is_a_config_error() -> None:
    with pytest.raises(ConfigError, match="max_context=513 exceeds this model's context; use at most 512"):
        tiny_engine(max_context=513)
    with pytest.raises(ConfigError, match=r"max_context=100 does not fit the cache, which holds 70 tokens"):
        tiny_engine(max_context=100, cache_bytes=engine_bytes(70))
    engine = tiny_engine(max_context=100)
    assert engine.context_length == 100
    with pytest.raises(ContextLengthError, match="context of 100"):
        engine.add(Request(prompt(100, 1)))


def engine_bytes(places: int) -> int:
    """Bytes of ``places`` tokens in the tiny llama's cache: 3 layers, keys and values, 2 heads of 16 floats."""
    return places * 3 * 2 * 2 * 16 * 4


@pytest.mark.parametrize(
    ("tokens", "params", "message"),
    [
        ((), {}, "prompt is empty"),
        ((5, 256), {}, "prompt token 256"),
        ((5, -1), {}, "prompt token -1"),
        ((5,), {"logit_bias": {300: 1.0}}, "logit_bias names token 300"),
        ((5,), {"stop_token_ids": (-1,)}, "stop_token_ids names token -1"),
        ((5,), {"stop_token_ids": (256,)}, "stop_token_ids names token 256"),
    ],
)
def test_bad_requests_name_the_fault(tokens: tuple[int, ...], params: dict[str, Any], message: str) -> None:
    engine = tiny_engine()
    with pytest.raises(InvalidRequestError, match=message):
        engine.add(Request(tokens, SamplingParams(**params)))
    assert not engine.has_work


def test_a_request_id_in_use_is_refused() -> None:
    engine = tiny_engine()
    engine.add(Request(prompt(5), request_id="one"))
    with pytest.raises(InvalidRequestError, match="'one'"):
        engine.add(Request(prompt(5), request_id="one"))


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({"repetition_penalty": 0}, "repetition_penalty"),
        ({"top_p": 2}, "top_p"),
        ({"top_p": 0}, "top_p"),
        ({"temperature": -1}, "temperature"),
        ({"frequency_penalty": 2.1}, "frequency_penalty"),
        ({"n": 0}, "n"),
        ({"budget": 0}, "budget"),
        ({"seed": -1}, "seed"),
        ({"stop": ("",)}, "stop"),
        ({"logit_bias": {1: 101.0}}, "logit_bias"),
        ({"max_tokens": "many"}, "max_tokens"),
        ({"min_tokens": 6, "max_tokens": 5}, "min_tokens"),
        ({"response_format": {"type": "json_schema"}}, "response_format"),  # fault 15: never silently dropped
    ],
)
def test_bad_parameters_name_their_field(params: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidRequestError) as refusal:
        SamplingParams(**params)
    assert refusal.value.param == message and message in str(refusal.value) and "\n" not in str(refusal.value)


def test_nothing_behind_the_stop_is_learned() -> None:
    """The store is taught what was delivered, and no more."""
    taught: list[list[int]] = []

    class Recorder(MemoryNgramSource):
        def learn(self, tokens: NDArray[np.int32], prompt_tokens: int = 0) -> None:
            taught.append(tokens.tolist())
            super().learn(tokens)

    engine = tiny_engine(source=Recorder())
    whole = answer(engine, prompt(12, 3), max_tokens=40, ignore_eos=True)
    at = first_new(whole.token_ids, 3)
    stopped = answer(engine, prompt(12, 3), max_tokens=40, ignore_eos=True, stop_token_ids=(whole.token_ids[at],))
    assert taught[1] == [*prompt(12, 3), *stopped.token_ids] == [*prompt(12, 3), *whole.token_ids[:at]]
