"""What a workload is made of: conversations, each a function of the workload's seed and its own number."""

from __future__ import annotations

import random
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

Message = dict[str, str]


@dataclass(frozen=True)
class Turn:
    """One request of a conversation.

    messages     what is added to the conversation before it is asked
    max_tokens   cap of the answer; None: the server's own
    """

    messages: tuple[Message, ...]
    max_tokens: int | None = None


@dataclass(frozen=True)
class Conversation:
    """Requests that follow each other; each answer goes into the conversation before the next turn.

    name     unique within the workload
    turns    at least one
    fields   further fields of every request's body (temperature, seed, stop, …)
    prompt   set for a plain completion: then the only turn has no messages
    at_s     seconds since the beginning of a replayed log
    """

    name: str
    turns: tuple[Turn, ...]
    fields: Mapping[str, Any] = field(default_factory=dict)
    prompt: str | None = None
    at_s: float | None = None


class Workload(Protocol):
    """An endless (or, from a file, finite) supply of conversations."""

    name: str
    length: int | None
    """Number of conversations; None: there is always another one."""
    most_turns: int
    """Turns that a conversation has at most."""

    def conversation(self, number: int) -> Conversation:
        """The conversation ``number``, the same one each time it is asked for."""
        ...


class Generated(ABC):
    """A workload whose conversations are written by a function of a random generator."""

    name = ""
    length: int | None = None
    most_turns = 1
    fields: Mapping[str, Any] = {"temperature": 0}

    def __init__(self, seed: int) -> None:
        self.seed = seed

    def conversation(self, number: int) -> Conversation:
        """See :class:`Workload`."""
        rng = random.Random(f"{self.name}/{self.seed}/{number}")
        fields = dict(self.fields)
        if fields.get("temperature"):
            fields["seed"] = rng.getrandbits(31)
        return Conversation(f"{self.name}-{number}", self.turns(rng), fields)

    @abstractmethod
    def turns(self, rng: random.Random) -> tuple[Turn, ...]:
        """The requests of one conversation, drawn from ``rng`` alone."""


def lognormal(rng: random.Random, median: float, sigma: float, low: int, high: int) -> int:
    """A length: log-normal around ``median``, as lengths of answers are, cut off at both ends."""
    return min(high, max(low, round(rng.lognormvariate(0.0, sigma) * median)))


def user(text: str) -> Message:
    """A message of the user."""
    return {"role": "user", "content": text}


def system(text: str) -> Message:
    """A message that sets the rules."""
    return {"role": "system", "content": text}
