"""What is known of one request after it has ended."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any


@dataclass(eq=False)
class Sample:
    """Times are in seconds since the load began (``start_s``) or since the request's start (all others).

    start_s            when it was due; in a closed loop, when it was sent
    late_s             how much later than due it was sent: the load generator's own delay
    first_s            first content that was not empty; None if there was none
    end_s              its last byte, or its failure
    chunks             arrival of each piece of content, and its characters
    prompt_tokens, completion_tokens   from ``usage``
    steps, mat, drafted, accepted      from ``usage.racer``, where the server tells
    error              why it failed, in one sentence; None if it did not
    """

    conversation: str
    turn: int
    start_s: float
    late_s: float = 0.0
    first_s: float | None = None
    end_s: float = 0.0
    chunks: list[tuple[float, int]] = field(default_factory=list)
    prompt_tokens: int = 0
    completion_tokens: int = 0
    steps: int | None = None
    mat: float | None = None
    drafted: dict[str, int] = field(default_factory=dict)
    accepted: dict[str, int] = field(default_factory=dict)
    finish_reason: str | None = None
    error: str | None = None

    @property
    def ttft_ms(self) -> float | None:
        """Time to first token."""
        return None if self.first_s is None else self.first_s * 1e3

    @property
    def time_per_token_ms(self) -> float | None:
        """Mean time of the tokens after the first, from the first content to the last; None for a single token."""
        if self.first_s is None or self.completion_tokens < 2 or len(self.chunks) < 2:
            return None
        return (self.chunks[-1][0] - self.first_s) * 1e3 / (self.completion_tokens - 1)

    @property
    def latency_per_token_ms(self) -> float | None:
        """The whole answer's time divided by its tokens: waiting and prompt are in it."""
        return self.end_s * 1e3 / self.completion_tokens if self.completion_tokens else None

    @property
    def gaps_ms(self) -> list[float]:
        """What a reader waits for each further piece of the answer. A piece holds all tokens that one step decided."""
        times = [time for time, _ in self.chunks]
        return [(after - before) * 1e3 for before, after in itertools.pairwise(times)]

    def tokens_between(self, begin_s: float, end_s: float) -> float:
        """Tokens delivered between two times since the load began.

        Chunks do not tell how many tokens they hold: tokens are divided among them by characters.
        """
        characters = sum(count for _, count in self.chunks)
        inside = sum(count for time, count in self.chunks if begin_s <= self.start_s + time < end_s)
        return self.completion_tokens * inside / characters if characters else 0.0

    def to_json(self) -> dict[str, Any]:
        """As one object, times to the tenth of a millisecond."""
        found = asdict(self)
        for name in ("start_s", "late_s", "first_s", "end_s"):
            found[name] = None if found[name] is None else round(found[name], 4)
        found["chunks"] = [[round(time, 4), count] for time, count in self.chunks]
        return found

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> Sample:
        """What :meth:`to_json` made."""
        return cls(**{**values, "chunks": [(time, count) for time, count in values["chunks"]]})


def write_samples(path: Path, samples: Iterable[Sample]) -> None:
    """One JSON line a sample."""
    with path.open("w", encoding="utf-8") as file:
        for sample in samples:
            file.write(json.dumps(sample.to_json(), ensure_ascii=False) + "\n")
