"""Engines over tiny models, and what comes out of them gathered by request."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from racer import Engine, EngineConfig, Request, RequestStats, SamplingParams, Source, StepOutput, TokenLogprob
from racer.draft.sources import NgramSource
from racer.model.attention import ATTENTION
from racer.model.loader import LoadedModel
from racer.step_curve import StepCurve
from tests.tiny import byte_tokenizer, tiny_model

EOS = 2


@dataclass
class Answer:
    """Everything one choice delivered."""

    token_ids: list[int] = field(default_factory=list)
    sources: list[Source] = field(default_factory=list)
    text: str = ""
    logprobs: list[TokenLogprob] = field(default_factory=list)
    prompt_logprobs: tuple[TokenLogprob | None, ...] | None = None
    finish_reason: str | None = None
    stop_reason: str | int | None = None
    stats: RequestStats = field(default_factory=RequestStats)

    def add(self, output: StepOutput) -> None:
        assert self.finish_reason is None, "an output after the last one"
        self.token_ids += output.token_ids
        self.sources += output.sources
        self.text += output.text
        self.logprobs += output.logprobs or ()
        self.prompt_logprobs = output.prompt_logprobs or self.prompt_logprobs
        self.finish_reason, self.stop_reason = output.finish_reason, output.stop_reason
        self.stats = output.stats or self.stats


def loaded(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase | None = None, context_length: int | None = 512
) -> LoadedModel:
    """``model`` as the loader would hand it over, with our attention."""
    model.set_attn_implementation(ATTENTION)
    return LoadedModel(
        model=model,
        tokenizer=tokenizer or byte_tokenizer(),
        name="tiny",
        dtype=model.dtype,
        device=torch.device("cpu"),
        vocab_size=model.config.vocab_size,
        context_length=context_length,
        eos_token_ids=frozenset([EOS]),
        fingerprint="tiny",
    )


def tiny_engine(
    family: str = "llama",
    *,
    model: dict[str, Any] | None = None,
    tokenizer: PreTrainedTokenizerBase | None = None,
    source: NgramSource | None = None,
    context_length: int | None = 512,
    step_curve: StepCurve | None = None,
    **settings: Any,
) -> Engine:
    """An engine over a tiny random model; no prior table unless asked for."""
    config = EngineConfig(**({"prior": False, "compile": False, "cache_bytes": 1 << 23, "budget": 16} | settings))
    target = loaded(tiny_model(family, **(model or {})), tokenizer, context_length)
    return Engine(config, loaded=target, source=source, step_curve=step_curve)


def prompt(length: int, seed: int = 0, vocab: int = 256) -> tuple[int, ...]:
    """Random tokens, none of them special."""
    return tuple(np.random.default_rng(seed).integers(3, vocab, length).tolist())


def decode(engine: Engine, requests: Iterable[Request]) -> list[list[Answer]]:
    """Decode all and check the books after every step; one list of choices a request, in order."""
    requests = list(requests)
    answers = {r.request_id: [Answer() for _ in range(r.params.n)] for r in requests}
    for output in engine.generate(requests):
        answers[output.request_id][output.choice].add(output)
        engine.check_integrity()
    assert not engine.scheduler.running and engine.scheduler.regions.allocated == 0
    return [answers[r.request_id] for r in requests]


def answer(engine: Engine, tokens: Sequence[int], **params: Any) -> Answer:
    """Decode one prompt alone."""
    return decode(engine, [Request(tuple(tokens), SamplingParams(**params))])[0][0]


def both(engine: Engine, tokens: Sequence[int], **params: Any) -> tuple[Answer, Answer]:
    """The answer plain and with drafts."""
    return answer(engine, tokens, drafts="off", **params), answer(engine, tokens, **params)
