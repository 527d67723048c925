"""What a client may send, as OpenAI names it, with vLLM's additions and ours. What is not here is refused by name."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, StrictBool, StrictFloat, StrictInt, StrictStr, model_validator

from racer.config import Drafts
from racer.types import MAX_LOGPROBS

Number = StrictInt | StrictFloat

_INT64 = 2**63


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class StreamOptions(_Strict):
    """Options of a stream."""

    include_usage: StrictBool = Field(False, description="a last chunk without choices carries the usage")


class _Sampling(_Strict, ABC):
    """Fields that both endpoints share."""

    model: StrictStr = Field(description="a name that /v1/models lists")
    n: StrictInt = Field(1, ge=1, le=128, description="choices for each prompt")
    seed: StrictInt | None = Field(None, ge=-_INT64, lt=_INT64, description="the same seed gives the same tokens")
    stop: StrictStr | list[StrictStr] | None = Field(None, description="texts that end the answer, not delivered")
    stream: StrictBool = Field(False, description="server-sent events, one for each step that brings text")
    stream_options: StreamOptions | None = Field(None, description="only with stream")
    temperature: Number | None = Field(1.0, ge=0.0, le=100.0, description="0 is greedy")
    top_p: Number | None = Field(1.0, gt=0.0, le=1.0, description="nucleus mass")
    frequency_penalty: Number | None = Field(0.0, ge=-2.0, le=2.0, description="per occurrence in the output")
    presence_penalty: Number | None = Field(0.0, ge=-2.0, le=2.0, description="once for each token in the output")
    logit_bias: dict[StrictStr, Number] | None = Field(None, description="token id to a value from -100 to 100")
    user: StrictStr | None = Field(None, max_length=256, description="written to the request's log record")

    top_k: StrictInt = Field(0, ge=-1, description="most likely tokens kept; 0 or -1 keeps all")
    min_p: Number = Field(0.0, ge=0.0, le=1.0, description="least probability, relative to the most likely token's")
    repetition_penalty: Number = Field(1.0, gt=0.0, le=100.0, description="over prompt and output; 1 is off")
    min_tokens: StrictInt = Field(0, ge=0, description="no stop condition applies before this many tokens")
    ignore_eos: StrictBool = Field(False, description="decode past the end-of-sequence token")
    stop_token_ids: list[StrictInt] | None = Field(None, description="ids that end the answer, not delivered")

    drafts: Drafts | None = Field(None, description="sources of draft tokens; changes speed, never tokens")
    budget: StrictInt | None = Field(None, ge=1, le=1024, description="cap on the nodes of a draft tree")
    return_stats: StrictBool = Field(False, description="usage carries racer: steps, MAT, acceptance by source")

    @model_validator(mode="after")
    def _stream_options_need_stream(self) -> Self:
        if self.stream_options is not None and not self.stream:
            raise ValueError("stream_options is only allowed when stream is true; set stream or leave it out")
        return self

    @abstractmethod
    def length_cap(self) -> int | None:
        """Most tokens of an answer; None where nothing was asked for."""

    @abstractmethod
    def top_logprobs_wanted(self) -> int | None:
        """Alternatives to report for each token; None for no log-probabilities."""

    def sampling(self) -> dict[str, Any]:
        """Values for :class:`racer.types.SamplingParams`, which checks what crosses fields."""
        stop = [self.stop] if isinstance(self.stop, str) else self.stop or []
        values: dict[str, Any] = {
            "n": self.n,
            "min_tokens": self.min_tokens,
            "temperature": 1.0 if self.temperature is None else self.temperature,
            "top_p": 1.0 if self.top_p is None else self.top_p,
            "top_k": max(0, self.top_k),
            "min_p": self.min_p,
            "repetition_penalty": self.repetition_penalty,
            "frequency_penalty": self.frequency_penalty or 0.0,
            "presence_penalty": self.presence_penalty or 0.0,
            "logit_bias": self.logit_bias or {},
            "seed": None if self.seed is None else self.seed % 2**64,
            "stop": tuple(stop),
            "stop_token_ids": tuple(self.stop_token_ids or ()),
            "ignore_eos": self.ignore_eos,
            "logprobs": self.top_logprobs_wanted(),
            "drafts": self.drafts,
            "budget": self.budget,
        }
        cap = self.length_cap()
        return values if cap is None else values | {"max_tokens": cap}


class TextPart(_Strict):
    """A part of a message's content."""

    type: Literal["text"]
    text: StrictStr


class Message(_Strict):
    """One message of a conversation."""

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: StrictStr | Annotated[list[TextPart], Field(min_length=1)]

    def to_template(self) -> dict[str, str]:
        """As chat templates know it: ``developer`` is the newer name of ``system``, parts are one text."""
        text = self.content if isinstance(self.content, str) else "".join(part.text for part in self.content)
        return {"role": "system" if self.role == "developer" else self.role, "content": text}


class TextFormat(_Strict):
    """The only format of answers that is served: plain text."""

    type: Literal["text"]


class ChatRequest(_Sampling):
    """Body of ``POST /v1/chat/completions``."""

    messages: list[Message] = Field(min_length=1, description="the conversation so far")
    max_tokens: StrictInt | None = Field(None, ge=1, description="length cap; older name of max_completion_tokens")
    max_completion_tokens: StrictInt | None = Field(None, ge=1, description="length cap")
    logprobs: StrictBool = Field(False, description="report each token's log-probability")
    top_logprobs: StrictInt | None = Field(None, ge=0, le=MAX_LOGPROBS, description="alternatives; needs logprobs")
    response_format: TextFormat | None = Field(None, description="only {'type': 'text'}")

    @model_validator(mode="after")
    def _fields_agree(self) -> Self:
        one, other = self.max_tokens, self.max_completion_tokens
        if one is not None and other is not None and one != other:
            raise ValueError(
                f"max_tokens={one} and max_completion_tokens={other} contradict each other; give max_completion_tokens "
                "alone"
            )
        if self.top_logprobs is not None and not self.logprobs:
            raise ValueError("top_logprobs needs logprobs; set logprobs to true or leave top_logprobs out")
        return self

    def length_cap(self) -> int | None:
        """See :meth:`_Sampling.length_cap`."""
        return self.max_completion_tokens if self.max_completion_tokens is not None else self.max_tokens

    def top_logprobs_wanted(self) -> int | None:
        """See :meth:`_Sampling.top_logprobs_wanted`."""
        return (self.top_logprobs or 0) if self.logprobs else None

    def conversation(self) -> str:
        """What stays the same through the turns of a conversation: its beginning, up to the first user message."""
        texts: list[str] = []
        for message in self.messages:
            texts.append(message.to_template()["content"])
            if message.role == "user":
                break
        return "\n".join(texts)


TokenIds = Annotated[list[StrictInt], Field(min_length=1)]
Prompt = (
    StrictStr
    | TokenIds
    | Annotated[list[StrictStr], Field(min_length=1)]
    | Annotated[list[TokenIds], Field(min_length=1)]
)


class CompletionRequest(_Sampling):
    """Body of ``POST /v1/completions``."""

    prompt: Prompt = Field(description="a text, its token ids, or a list of either")
    max_tokens: StrictInt | None = Field(16, ge=1, description="length cap; null: the room left in the context")
    logprobs: StrictInt | None = Field(None, ge=0, le=MAX_LOGPROBS, description="alternatives for each token")
    echo: StrictBool = Field(False, description="the prompt comes before the answer, scored where logprobs is given")

    def length_cap(self) -> int | None:
        """See :meth:`_Sampling.length_cap`."""
        return self.max_tokens

    def top_logprobs_wanted(self) -> int | None:
        """See :meth:`_Sampling.top_logprobs_wanted`."""
        return self.logprobs

    def prompts(self) -> list[str | list[int]]:
        """Each prompt, as text or as token ids."""
        prompt: Any = self.prompt
        return [prompt] if isinstance(prompt, str) or isinstance(prompt[0], int) else list(prompt)

    def conversation(self) -> str:
        """What a continued prompt begins with."""
        first = self.prompts()[0]
        return first[:256] if isinstance(first, str) else ",".join(map(str, first[:64]))


ApiRequest = ChatRequest | CompletionRequest
