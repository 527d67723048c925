"""From what the engine decides to what OpenAI's clients read: chunks of a stream, or one whole body."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from importlib import import_module
from typing import TYPE_CHECKING, Any

from deployments.schema import ApiRequest, ChatRequest
from racer.types import DRAFT_SOURCES, RequestStats, StepOutput, TokenLogprob

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

Json = dict[str, Any]

DONE = b"data: [DONE]\n\n"


def encode(body: Json) -> bytes:
    """One JSON object, as small as it goes."""
    return json.dumps(body, ensure_ascii=False, separators=(",", ":")).encode()


def event(body: Json) -> bytes:
    """One server-sent event."""
    return b"data: " + encode(body) + b"\n\n"


class TokenTexts:
    """What single tokens look like, for log-probabilities."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase) -> None:
        self._tokenizer = tokenizer
        self.text = lru_cache(maxsize=65536)(self._text)

    def _text(self, token_id: int) -> str:
        return str(self._tokenizer.decode([token_id], clean_up_tokenization_spaces=False))

    def name(self, token_id: int) -> str:
        """The token's text, or its bytes where they are only part of a character: no two tokens are called the same."""
        text = self.text(token_id)
        if "\N{REPLACEMENT CHARACTER}" in text:
            return "bytes:" + "".join(f"\\x{byte:02x}" for byte in self.bytes_of(token_id))
        return text

    def bytes_of(self, token_id: int) -> list[int]:
        """The token's bytes, also where they are only part of a character."""
        text = self.text(token_id)
        if "\N{REPLACEMENT CHARACTER}" in text:
            piece = str(self._tokenizer.convert_ids_to_tokens(token_id))
            if len(piece) == 6 and piece.startswith("<0x"):  # byte fallback of sentencepiece
                return [int(piece[3:5], 16)]
            table = _byte_of_character()
            if all(character in table for character in piece):
                return [table[character] for character in piece]
        return list(text.encode())


@lru_cache(maxsize=1)
def _byte_of_character() -> dict[str, int]:
    """The characters by which byte-level tokenizers write bytes."""
    table: Any = import_module("transformers.convert_slow_tokenizer")  # untyped
    return {character: byte for byte, character in table.bytes_to_unicode().items()}


@dataclass
class Tally:
    """Usage over the choices of a request."""

    prompt_tokens: int = 0
    choices: list[RequestStats] = field(default_factory=list)

    def add(self, stats: RequestStats | None, first_choice: bool) -> None:
        """A choice has ended; its prompt counts once, however many choices it has."""
        if stats is not None:
            self.choices.append(stats)
            self.prompt_tokens += stats.prompt_tokens if first_choice else 0

    def usage(self, with_stats: bool) -> Json:
        """OpenAI's object. Drafted tokens are its predictions: those accepted are part of the answer."""
        completion = sum(stats.completion_tokens for stats in self.choices)
        drafted = {s.label: sum(stats.drafted[s] for stats in self.choices) for s in DRAFT_SOURCES}
        accepted = {s.label: sum(stats.accepted[s] for stats in self.choices) for s in DRAFT_SOURCES}
        usage: Json = {
            "prompt_tokens": self.prompt_tokens,
            "completion_tokens": completion,
            "total_tokens": self.prompt_tokens + completion,
            "completion_tokens_details": {
                "accepted_prediction_tokens": sum(accepted.values()),
                "rejected_prediction_tokens": sum(drafted.values()) - sum(accepted.values()),
            },
        }
        if with_stats:
            steps = sum(stats.steps for stats in self.choices)
            after_prefill = sum(stats.decided - 1 for stats in self.choices)
            usage["racer"] = {
                "steps": steps,
                "mat": round(after_prefill / steps, 4) if steps else None,
                "drafted": drafted,
                "accepted": accepted,
            }
        return usage


class Writer:
    """Writes the answer to one request, in chunks or whole.

    ``prompts``: the token ids of each; ``echoes``: the texts that come before the answers, if any do.
    """

    def __init__(
        self,
        request: ApiRequest,
        request_id: str,
        tokens: TokenTexts,
        prompts: Sequence[Sequence[int]],
        echoes: Sequence[str] = (),
    ) -> None:
        self._request = request
        self._chat = isinstance(request, ChatRequest)
        self._tokens = tokens
        self._prompts = prompts
        self._echoes = echoes
        self._head: Json = {
            "id": f"{'chatcmpl' if self._chat else 'cmpl'}-{request_id}",
            "object": "chat.completion" if self._chat else "text_completion",
            "created": int(time.time()),
            "model": request.model,
        }
        self._chunk_head = self._head | ({"object": "chat.completion.chunk"} if self._chat else {})
        self._with_usage = request.stream_options is not None and request.stream_options.include_usage
        self._begun: set[int] = set()
        self._offsets: dict[int, int] = {}
        self._choices: dict[int, Json] = {}
        self.tally = Tally()

    # --- a stream

    def chunk(self, prompt: int, output: StepOutput) -> bytes:
        """What one output adds to the stream; empty if nothing."""
        index = prompt * self._request.n + output.choice
        first = index not in self._begun
        self._begun.add(index)
        if output.finished:
            self.tally.add(output.stats, output.choice == 0)
        logprobs = self._logprobs(prompt, index, output)
        echo = self._echo(prompt) if first else ""
        if not (first or output.text or output.finished or logprobs):
            return b""
        choice: Json = {"index": index}
        if self._chat:
            choice["delta"] = ({"role": "assistant"} if first else {}) | {"content": output.text}
        else:
            choice["text"] = echo + output.text
        choice["logprobs"] = logprobs
        choice["finish_reason"] = output.finish_reason
        if output.stop_reason is not None:
            choice["stop_reason"] = output.stop_reason
        return event(self._chunk_head | {"choices": [choice]} | ({"usage": None} if self._with_usage else {}))

    def end(self) -> bytes:
        """The end of the stream."""
        if not self._with_usage:
            return DONE
        return event(self._chunk_head | {"choices": [], "usage": self._usage()}) + DONE

    # --- whole

    def take(self, prompt: int, output: StepOutput) -> None:
        """Add one output to the body."""
        index = prompt * self._request.n + output.choice
        choice = self._choices.get(index)
        logprobs = self._logprobs(prompt, index, output)
        if choice is None:
            text = self._echo(prompt)
            choice = self._choices[index] = {"index": index, "text": text, "logprobs": None, "finish_reason": None}
        choice["text"] += output.text
        if logprobs is not None:
            choice["logprobs"] = logprobs if choice["logprobs"] is None else _joined(choice["logprobs"], logprobs)
        if output.finished:
            choice["finish_reason"] = output.finish_reason
            if output.stop_reason is not None:
                choice["stop_reason"] = output.stop_reason
            self.tally.add(output.stats, output.choice == 0)

    def body(self) -> Json:
        """The whole answer."""
        choices = [self._choices[index] for index in sorted(self._choices)]
        if self._chat:
            for choice in choices:
                choice["message"] = {"role": "assistant", "content": choice.pop("text"), "refusal": None}
        return self._head | {"choices": choices, "usage": self._usage()}

    # --- parts

    def _usage(self) -> Json:
        return self.tally.usage(self._request.return_stats)

    def _echo(self, prompt: int) -> str:
        return self._echoes[prompt] if self._echoes else ""

    def _logprobs(self, prompt: int, index: int, output: StepOutput) -> Json | None:
        """The log-probabilities that an output brings, in the endpoint's form."""
        scored: list[TokenLogprob | None] = [*(output.prompt_logprobs or ()), *(output.logprobs or ())]
        if output.logprobs is None or not scored:
            return None
        if self._chat:
            return {"content": [self._chat_logprob(entry) for entry in scored if entry is not None], "refusal": None}
        return self._completion_logprobs(index, scored, self._prompts[prompt][0])

    def _chat_logprob(self, entry: TokenLogprob) -> Json:
        top = [self._named(token, logprob) for token, logprob in entry.top]
        return self._named(entry.token_id, entry.logprob) | {"top_logprobs": top}

    def _named(self, token_id: int, logprob: float) -> Json:
        return {
            "token": self._tokens.text(token_id),
            "logprob": logprob,
            "bytes": self._tokens.bytes_of(token_id),
        }

    def _completion_logprobs(self, index: int, scored: Iterable[TokenLogprob | None], first_token: int) -> Json:
        found: Json = {"tokens": [], "token_logprobs": [], "top_logprobs": [], "text_offset": []}
        for entry in scored:
            token_id = first_token if entry is None else entry.token_id  # nothing foretells a prompt's first token
            top = None if entry is None else {self._tokens.name(token): logprob for token, logprob in entry.top}
            offset = self._offsets.get(index, 0)
            found["tokens"].append(self._tokens.name(token_id))
            found["token_logprobs"].append(None if entry is None else entry.logprob)
            found["top_logprobs"].append(top)
            found["text_offset"].append(offset)
            self._offsets[index] = offset + len(self._tokens.text(token_id))
        return found


def _joined(before: Json, after: Json) -> Json:
    return {name: before[name] + after[name] if isinstance(before[name], list) else before[name] for name in before}
