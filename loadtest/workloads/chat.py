"""Conversations of several turns about everyday topics, and free writing in which nothing repeats."""

from __future__ import annotations

import random

from loadtest.workloads.base import Generated, Turn, lognormal, system, user
from loadtest.workloads.words import CHARACTERS, PLACES, TOPICS

_OPENINGS = (
    "Explain {topic} to me in simple words.",
    "I have to give a short talk. Tell me about {topic}.",
    "What are the most important things to know about this: {topic}?",
    "My daughter asked me about this and I had no answer: {topic}. What should I say?",
)
_FOLLOW_UPS = (
    "Give me one example from daily life.",
    "Now say the same in three short points.",
    "Which part of that do people usually get wrong?",
    "Rewrite your answer for a ten-year-old.",
    "What should I read or try next?",
    "Turn that into a question with four answers to choose from, and tell me which one is right.",
)


class Chat(Generated):
    """Two to four turns: a question, then requests that refer to the answer."""

    name = "chat"
    most_turns = 4

    def turns(self, rng: random.Random) -> tuple[Turn, ...]:
        """See :class:`Generated`."""
        opening = rng.choice(_OPENINGS).format(topic=rng.choice(TOPICS))
        first = Turn(
            (system("You are a helpful assistant. Answer briefly."), user(opening)), lognormal(rng, 90, 0.4, 32, 220)
        )
        follow_ups = rng.sample(_FOLLOW_UPS, rng.randint(1, 3))
        return (first, *(Turn((user(text),), lognormal(rng, 70, 0.4, 24, 180)) for text in follow_ups))


class Prose(Generated):
    """Stories, sampled at temperature 1: text in which drafts find little to repeat."""

    name = "prose"
    fields = {"temperature": 1.0}  # noqa: RUF012 - read only

    def turns(self, rng: random.Random) -> tuple[Turn, ...]:
        """See :class:`Generated`."""
        text = (
            f"Write the beginning of a story about {rng.choice(CHARACTERS)} and {rng.choice(PLACES)}. "
            f"It must have something to do with {rng.choice(TOPICS)}. Surprise me, and never repeat yourself."
        )
        return (Turn((user(text),), lognormal(rng, 140, 0.3, 64, 256)),)
