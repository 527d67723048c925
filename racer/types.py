"""The shared nouns: what goes into the engine and what comes out of a step."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field
from enum import IntEnum
from typing import TYPE_CHECKING, Self

from pydantic import Field, field_validator, model_validator

from racer.config import Drafts, TreeShape, Validated
from racer.errors import InvalidRequestError, UserError

if TYPE_CHECKING:
    from racer.draft.sources import NgramSource

MAX_LOGPROBS = 20


class Source(IntEnum):
    """Where a token of a draft tree came from."""

    ROOT = 0
    RETRIEVAL = 1
    LOGITS = 2
    STORE = 3

    @property
    def label(self) -> str:
        """Name used in reports and metrics."""
        return self.name.lower()


OWN_SOURCES = (Source.RETRIEVAL, Source.LOGITS)
"""What every engine drafts from."""

DRAFT_SOURCES = (*OWN_SOURCES, Source.STORE)
"""The same, and the store of n-grams that an engine may share with others."""


class SamplingParams(Validated):
    """How one request is decoded. Greedy by default (``temperature`` 0)."""

    n: int = Field(1, ge=1, le=128, description="independent choices")
    max_tokens: int | None = Field(None, ge=1, description="length cap; None: the room left in the context")
    min_tokens: int = Field(0, ge=0, description="no stop condition applies before this many tokens")
    temperature: float = Field(0.0, ge=0.0, le=100.0, description="0 is greedy")
    top_p: float = Field(1.0, gt=0.0, le=1.0, description="nucleus mass")
    top_k: int = Field(0, ge=0, description="most likely tokens kept; 0 keeps all")
    min_p: float = Field(0.0, ge=0.0, le=1.0, description="least probability, relative to the most likely token's")
    repetition_penalty: float = Field(1.0, gt=0.0, le=100.0, description="over prompt and output; 1 is off")
    frequency_penalty: float = Field(0.0, ge=-2.0, le=2.0, description="per occurrence in the output")
    presence_penalty: float = Field(0.0, ge=-2.0, le=2.0, description="once for each token in the output")
    logit_bias: dict[int, float] = Field(default_factory=dict, description="token id to a value in [-100, 100]")
    seed: int | None = Field(None, ge=0, lt=2**64, description="None: the engine's seed, or fresh entropy")
    stop: tuple[str, ...] = Field((), max_length=16, description="texts that end the answer, not delivered")
    stop_token_ids: tuple[int, ...] = Field((), description="ids that end the answer, not delivered")
    ignore_eos: bool = Field(False, description="decode past the end-of-sequence token")
    logprobs: int | None = Field(None, ge=0, le=MAX_LOGPROBS, description="alternatives reported for each token")
    prompt_logprobs: int | None = Field(None, ge=0, le=MAX_LOGPROBS, description="the same for prompt tokens")
    drafts: Drafts | None = Field(None, description="None: the engine's")
    tree: TreeShape | None = Field(
        None, description="None: the engine's; best uses the engine's prior table if it has one"
    )
    budget: int | None = Field(None, ge=1, le=1024, description="cap on this request's draft budget")

    @field_validator("logit_bias")
    @classmethod
    def _bias_in_range(cls, bias: dict[int, float]) -> dict[int, float]:
        for token, value in bias.items():
            if not -100.0 <= value <= 100.0:
                raise ValueError(f"the bias of token {token} must lie in [-100, 100]")
        return bias

    @field_validator("stop")
    @classmethod
    def _stop_not_empty(cls, stop: tuple[str, ...]) -> tuple[str, ...]:
        if "" in stop:
            raise ValueError("a stop string must not be empty")
        return stop

    @model_validator(mode="after")
    def _lengths_agree(self) -> Self:
        if self.max_tokens is not None and self.min_tokens > self.max_tokens:
            raise InvalidRequestError(
                f"min_tokens={self.min_tokens} exceeds max_tokens={self.max_tokens}; lower the one or raise the other",
                param="min_tokens",
            )
        return self

    @classmethod
    def _error(cls, sentence: str, field: str) -> UserError:
        return InvalidRequestError(sentence, param=field.split(".")[0])

    @property
    def greedy(self) -> bool:
        """The most likely token is taken at each position."""
        return self.temperature == 0.0

    @property
    def plain_argmax(self) -> bool:
        """The raw logits' argmax decides: greedy, and nothing changes the order of the logits."""
        return self.greedy and not self.shapes_logits

    @property
    def shapes_logits(self) -> bool:
        """Penalties or biases change the logits before a token is chosen."""
        return bool(
            self.logit_bias or self.frequency_penalty or self.presence_penalty or self.repetition_penalty != 1.0
        )


_request_ids = itertools.count()


@dataclass(frozen=True)
class Request:
    """One prompt to decode. ``request_id`` must be unique among the engine's open requests.

    ``source``: the n-gram store that this request drafts from and teaches; None: the engine's, if it has one.
    """

    prompt_token_ids: tuple[int, ...]
    params: SamplingParams = field(default_factory=SamplingParams)
    request_id: str = field(default_factory=lambda: f"req-{next(_request_ids)}")
    source: NgramSource | None = field(default=None, compare=False)


@dataclass(frozen=True)
class TokenLogprob:
    """Log-probability of one token under the model (before temperature and penalties), with alternatives."""

    token_id: int
    logprob: float
    top: tuple[tuple[int, float], ...] = ()


@dataclass
class RequestStats:
    """What drafting did for one choice.

    prompt_tokens, completion_tokens  tokens given and delivered
    decided   tokens decided: those delivered, and the stop token that is not
    steps     forwards that verified, the prefill left out
    drafted, accepted  draft nodes by source; only accepted nodes that were delivered count
    """

    prompt_tokens: int = 0
    completion_tokens: int = 0
    decided: int = 0
    steps: int = 0
    drafted: dict[Source, int] = field(default_factory=lambda: dict.fromkeys(DRAFT_SOURCES, 0))
    accepted: dict[Source, int] = field(default_factory=lambda: dict.fromkeys(DRAFT_SOURCES, 0))

    @property
    def mat(self) -> float | None:
        """Mean accepted tokens: tokens decided per step, the prefill's first token left out; plain decoding is 1.0.

        None where no step was taken: the answer ended in its prefill.
        """
        return (self.decided - 1) / self.steps if self.steps else None


@dataclass(frozen=True)
class StepOutput:
    """What one step decided for one choice of one request.

    ``token_ids`` are delivered tokens in order, ``sources`` says which draft source foresaw each (``ROOT``: none, the
    model's own). ``text`` is their text as far as it is safe to show: held back while a character is incomplete or
    may still become part of a stop string. The last output of a choice carries ``finish_reason`` (stop, length, abort
    or error) and ``stats``; with reason error, ``error`` says why.
    """

    request_id: str
    choice: int
    token_ids: tuple[int, ...] = ()
    sources: tuple[Source, ...] = ()
    text: str = ""
    logprobs: tuple[TokenLogprob, ...] | None = None
    prompt_logprobs: tuple[TokenLogprob | None, ...] | None = None
    finish_reason: str | None = None
    stop_reason: str | int | None = None
    error: Exception | None = None
    stats: RequestStats | None = None

    @property
    def finished(self) -> bool:
        """No further output of this choice follows."""
        return self.finish_reason is not None
