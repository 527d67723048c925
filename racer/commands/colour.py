"""An answer in the terminal, each piece in the colour of the draft source that foresaw it."""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import TYPE_CHECKING, TextIO

from racer.text import IncrementalDetokenizer
from racer.types import Source

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

COLOURS = {Source.RETRIEVAL: "32", Source.LOGITS: "36", Source.STORE: "35"}
"""ANSI colours: green, cyan, magenta. The model's own tokens keep the terminal's."""


def wants_colour(stream: TextIO) -> bool:
    """``stream`` is a terminal that shows colours, and the user has not declined them (https://no-color.org)."""
    return stream.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def paint(text: str, source: Source) -> str:
    """``text`` in the source's colour."""
    return f"\x1b[{COLOURS[source]}m{text}\x1b[0m" if text and source in COLOURS else text


def legend(sources: Iterable[Source]) -> str:
    """What the colours of ``sources`` mean, in these colours."""
    names = ", ".join(paint(source.label, source) for source in sources)
    return f"accepted drafts: {names}; uncoloured: the model's own"


class ColouredText:
    """Turns tokens and their sources into text for a terminal.

    Text is released as it becomes final; a character split over tokens has the colour of the token that completes it.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase, coloured: bool) -> None:
        self._detokenizer = IncrementalDetokenizer(tokenizer)
        self._coloured = coloured
        self._latest = Source.ROOT

    def push(self, token_ids: Iterable[int], sources: Iterable[Source]) -> str:
        """Take a step's tokens."""
        pieces = []
        for token_id, source in zip(token_ids, sources, strict=True):
            self._latest = source
            pieces.append(self._show(self._detokenizer.push((token_id,))))
        return "".join(pieces)

    def flush(self) -> str:
        """What is still held, at the end of the answer."""
        return self._show(self._detokenizer.flush())

    def _show(self, text: str) -> str:
        if not self._coloured:
            return text
        # a model's text must not steer the terminal
        safe = "".join(c if c in "\n\t" or c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in text)
        return paint(safe, self._latest)
