"""One choice of one request while it is being decoded."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from racer.errors import LogitsError
from racer.pause import DraftPause
from racer.types import Request, RequestStats, SamplingParams, Source, StepOutput, TokenLogprob
from racer.verify.sampling import LogitsShaper, sample, token_logprob, uniform

if TYPE_CHECKING:
    from racer.draft.drafter import RequestDrafts
    from racer.text import OutputText


class Sequence:
    """Tokens, limits, statistics and draft tables of one choice.

    ``text_learned``: the drafts have taken in the prompt; true from the first step on, preempted or not. ``pause``:
    whether they earn their time.

    ``tokens`` are prompt and output; the first ``cached`` of them have keys and values in the cache. While decoding,
    exactly the last token (the root) is not cached; more than one means that it is being prefilled.
    """

    def __init__(
        self,
        request: Request,
        choice: int,
        seed: int,
        max_new_tokens: int,
        eos_ids: frozenset[int],
        vocab_size: int,
        drafts: RequestDrafts | None,
        text: OutputText,
    ) -> None:
        self.request = request
        self.choice = choice
        self.tokens = list(request.prompt_token_ids)
        self.prompt_length = len(self.tokens)
        self.max_length = self.prompt_length + max_new_tokens
        self.cached = 0
        self.drafts = drafts
        self.text_learned = False
        self.pause = DraftPause()
        self.stats = RequestStats(prompt_tokens=self.prompt_length)
        self.arrived_s = time.monotonic()
        self.finish_reason: str | None = None
        self.error: Exception | None = None
        self.stop_reason: str | int | None = None
        self._seed = seed
        self._eos_ids = frozenset() if self.params.ignore_eos else eos_ids
        self._stop_ids = self._eos_ids | frozenset(self.params.stop_token_ids)
        self._text = text
        self._shaper: LogitsShaper | None = None
        if self.params.shapes_logits or self.params.min_tokens:
            self._shaper = LogitsShaper(self.params, request.prompt_token_ids, self._stop_ids, vocab_size)
        self.prompt_logprobs: list[TokenLogprob | None] | None = None if self.params.prompt_logprobs is None else [None]
        self._begin_output()

    def _begin_output(self) -> None:
        self._new_tokens: list[int] = []
        self._new_sources: list[Source] = []
        self._new_logprobs: list[TokenLogprob] = []
        self._new_text: list[str] = []

    @property
    def params(self) -> SamplingParams:
        """The request's sampling parameters."""
        return self.request.params

    @property
    def decided(self) -> int:
        """Output tokens so far."""
        return len(self.tokens) - self.prompt_length

    @property
    def pending(self) -> int:
        """Tokens not cached yet: 1 while decoding (the root)."""
        return len(self.tokens) - self.cached

    @property
    def decoding(self) -> bool:
        """Only the root is not cached, and the first output token is out."""
        return self.pending == 1 and self.decided > 0

    @property
    def finished(self) -> bool:
        """Nothing more will be decided."""
        return self.finish_reason is not None

    @property
    def remaining(self) -> int:
        """Tokens that may still be decided."""
        return self.max_length - len(self.tokens)

    @property
    def takes_argmax(self) -> bool:
        """The most likely token of the raw logits is the next one, and nobody asked for probabilities."""
        return self.params.plain_argmax and self._shaper is None and self.params.logprobs is None

    def chain(self, length: int) -> NDArray[np.int32]:
        """The next ``length`` pending tokens."""
        return np.array(self.tokens[self.cached : self.cached + length], np.int32)

    def choose(self, row: Tensor) -> int:
        """The token that follows, drawn from the raw logits ``row`` ``[vocab]`` of the node reached."""
        shaped = self._shaper(row, self.decided) if self._shaper else row.float().cpu()
        if not torch.isfinite(shaped.max()):
            raise LogitsError("no token can follow: the logits are not finite, or every token is forbidden")
        if self.params.greedy:
            return int(shaped.argmax())
        return sample(shaped, self.params, uniform(self._seed, self.choice, self.decided))

    def decide(self, token: int, source: Source, row: Tensor | None = None) -> bool:
        """Take ``token`` as the next output token, unless it is a stop token; True if the answer ends here.

        ``row``: its raw logits, needed where log-probabilities were asked for.
        """
        self.stats.decided += 1
        if token in self._stop_ids and self.decided >= self.params.min_tokens:
            self.finish_reason = "stop"
            self.stop_reason = None if token in self._eos_ids else token
            return True
        if self.params.logprobs is not None and row is not None:
            self._new_logprobs.append(token_logprob(row, token, self.params.logprobs))
        self.tokens.append(token)
        self._new_tokens.append(token)
        self._new_sources.append(source)
        if source is not Source.ROOT:
            self.stats.accepted[source] += 1
        if self._shaper:
            self._shaper.count(token)
        if self._text.stop and self._push_text(token):
            self.finish_reason = "stop"
        elif self.remaining == 0:
            self.finish_reason = "length"
        return self.finished

    def fail(self, error: Exception) -> None:
        """End the answer with ``error``; what was decided before it stands."""
        self.finish_reason, self.error = "error", error

    def _push_text(self, token: int) -> bool:
        delta = self._text.push((token,), unarmed=int(self.decided < self.params.min_tokens))
        self._new_text.append(delta.text)
        self.stop_reason = delta.stop
        return delta.stop is not None

    def take_output(self) -> StepOutput:
        """What was decided since the last call."""
        if not self._text.stop:  # nothing depends on the text: all tokens at once take half the time
            self._new_text.append(self._text.push(self._new_tokens).text)
        if self.finished:
            self._new_text.append(self._text.flush())
        self.stats.completion_tokens = self.decided
        with_logprobs = self.params.logprobs is not None
        scored = self.prompt_logprobs is not None and len(self.prompt_logprobs) == self.prompt_length
        prompt_logprobs = self.prompt_logprobs if scored else None
        output = StepOutput(
            request_id=self.request.request_id,
            choice=self.choice,
            token_ids=tuple(self._new_tokens),
            sources=tuple(self._new_sources),
            text="".join(self._new_text),
            logprobs=tuple(self._new_logprobs) if with_logprobs else None,
            prompt_logprobs=tuple(prompt_logprobs) if prompt_logprobs is not None else None,
            finish_reason=self.finish_reason,
            stop_reason=self.stop_reason,
            error=self.error,
            stats=self.stats if self.finished else None,
        )
        if prompt_logprobs is not None:
            self.prompt_logprobs = None
        self._begin_output()
        return output
