"""Decoding items of an input file, several at once, each conversation turn by turn."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from racer.commands.inputs import Item, Message
from racer.errors import UserError
from racer.text import render_chat
from racer.types import Request, RequestStats, SamplingParams, StepOutput

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from racer.engine import Engine

DEFAULT_MAX_TOKENS = 512
"""Length cap of an answer when none is asked for; less where the context has less room."""

Watch = Callable[[list[StepOutput]], None]


@dataclass
class Answer:
    """One decoded turn. ``elapsed_s`` runs from when it was handed to the engine until its last token."""

    started_s: float
    text: str = ""
    token_ids: list[int] = field(default_factory=list)
    finish_reason: str | None = None
    stats: RequestStats = field(default_factory=RequestStats)
    elapsed_s: float = 0.0

    def take(self, output: StepOutput) -> None:
        """Append what a step delivered."""
        self.text += output.text
        self.token_ids += output.token_ids
        if output.finished:
            self.finish_reason = output.finish_reason
            self.stats = output.stats or self.stats
            self.elapsed_s = time.perf_counter() - self.started_s

    @property
    def usage(self) -> dict[str, int]:
        """Token counts as the OpenAI API names them."""
        prompt, completion = self.stats.prompt_tokens, self.stats.completion_tokens
        return {"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": prompt + completion}


class Conversation:
    """An item being decoded. ``error`` says in one sentence why it ended early."""

    def __init__(self, index: int, item: Item) -> None:
        self.index = index
        self.item = item
        self.answers: list[Answer] = []
        self.error: str | None = None
        self._messages: list[Message] = list(item.messages)

    @property
    def over(self) -> bool:
        """Nothing more is to be decoded."""
        turns = max(1, len(self.item.turns))
        return self.error is not None or (len(self.answers) == turns and self.answers[-1].finish_reason is not None)

    def next_prompt(self, tokenizer: PreTrainedTokenizerBase) -> list[int]:
        """Token ids of the next turn's prompt: the answers so far are part of the conversation."""
        if self.item.prompt is not None:
            return encode(tokenizer, self.item.prompt)
        if self.item.turns:
            if self.answers:
                self._messages.append({"role": "assistant", "content": self.answers[-1].text})
            self._messages.append({"role": "user", "content": self.item.turns[len(self.answers)]})
        return render_chat(tokenizer, self._messages)

    def record(self) -> dict[str, Any]:
        """The output line: single values, or lists with one value a turn for an item with turns."""
        done = [answer for answer in self.answers if answer.finish_reason is not None]
        record: dict[str, Any] = {"id": item_id(self.item), **self.item.metadata}
        columns: dict[str, list[Any]] = {
            "text": [answer.text for answer in done],
            "token_ids": [answer.token_ids for answer in done],
            "finish_reason": [answer.finish_reason for answer in done],
            "usage": [answer.usage for answer in done],
            "steps": [answer.stats.steps for answer in done],
            "mat": [None if (mat := answer.stats.mat) is None else round(mat, 4) for answer in done],
            "elapsed_s": [round(answer.elapsed_s, 4) for answer in done],
        }
        if self.item.turns:
            record |= columns
        elif done:
            record |= {name: values[0] for name, values in columns.items()}
        return record if self.error is None else record | {"error": self.error}


def item_id(item: Item) -> Any:
    """The item's own id, or the number of its line."""
    return item.line if item.id is None else item.id


def encode(tokenizer: PreTrainedTokenizerBase, text: str) -> list[int]:
    """Token ids of plain text, as the tokenizer begins a text."""
    return list(tokenizer(text).input_ids)


def sampling_params(engine: Engine, prompt: list[int], values: dict[str, Any]) -> SamplingParams:
    """``values`` as parameters; a length cap that nobody asked for never exceeds the room in the context."""
    room = max(1, engine.context_length - len(prompt))
    return SamplingParams(**({"max_tokens": min(DEFAULT_MAX_TOKENS, room)} | values))


def converse(
    engine: Engine, conversations: Iterable[Conversation], values: dict[str, Any], watch: Watch | None = None
) -> Iterator[Conversation]:
    """Decode conversations and yield each when it is over, whether answered or failed.

    As many as the engine runs at once are open; a conversation's next turn goes on in its place. ``values``: sampling
    parameters, which an item's own override. ``watch`` sees every step's outputs.
    """
    waiting = iter(conversations)
    speaking: dict[str, Conversation] = {}
    while True:
        while len(speaking) < engine.config.max_running and (conversation := next(waiting, None)) is not None:
            _speak(engine, conversation, values, speaking)
            if conversation.over:
                yield conversation
        if not speaking:
            return
        outputs = engine.step()
        if watch is not None:
            watch(outputs)
        for output in outputs:
            conversation = speaking[output.request_id]
            conversation.answers[-1].take(output)
            if output.finished:
                del speaking[output.request_id]
                if output.error is not None:
                    conversation.error = str(output.error)
                if not conversation.over:
                    _speak(engine, conversation, values, speaking)
                if conversation.over:
                    yield conversation


def _speak(
    engine: Engine, conversation: Conversation, values: dict[str, Any], speaking: dict[str, Conversation]
) -> None:
    """Hand the conversation's next turn to the engine, or note why that cannot be."""
    try:
        prompt = conversation.next_prompt(engine.tokenizer)
        params = sampling_params(engine, prompt, values | conversation.item.params)
        request = Request(tuple(prompt), params)
        engine.add(request)
    except UserError as error:
        conversation.error = str(error)
    else:
        conversation.answers.append(Answer(time.perf_counter()))
        speaking[request.request_id] = conversation
