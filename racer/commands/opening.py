"""Opening an engine for a command, saying on stderr what takes long."""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING, Any, TextIO

from racer.commands.wording import plural
from racer.config import Drafts, EngineConfig

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from racer.draft.sources import NgramSource
    from racer.engine import Engine

_REPEAT_S = 15.0
_CLEAR = "\r\x1b[K"


class Notices(logging.Handler):
    """What the engine reports while it opens, one line each.

    On a terminal a line replaces the one before, unless that was a warning. Elsewhere a report that only counts on (the
    same text but for its digits) comes every few seconds at most.
    """

    def __init__(self, stream: TextIO) -> None:
        super().__init__(logging.INFO)
        self._stream = stream
        self._terminal = stream.isatty()
        self._latest = ""
        self._told_s = 0.0

    def emit(self, record: logging.LogRecord) -> None:
        """Show one report."""
        text = record.getMessage()
        if record.levelno >= logging.WARNING:  # stays
            self._stream.write(f"{_CLEAR if self._terminal else ''}{text}\n")
        elif self._terminal:
            self._stream.write(f"{_CLEAR}{text}")
        else:
            kind = "".join(character for character in text if not character.isdigit())
            now = time.monotonic()
            if kind == self._latest and now - self._told_s < _REPEAT_S:
                return
            self._latest, self._told_s = kind, now
            self._stream.write(f"{text}\n")
        self._stream.flush()

    def close(self) -> None:
        """Clear the terminal's line."""
        if self._terminal:
            self._stream.write(_CLEAR)
            self._stream.flush()
        super().close()


@contextmanager
def reports_to(handler: logging.Handler) -> Iterator[None]:
    """What the package reports goes to ``handler`` too inside the block, which closes it."""
    logger = logging.getLogger("racer")
    level = logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    try:
        yield
    finally:
        logger.removeHandler(handler)
        logger.setLevel(level)
        handler.close()


def notices() -> AbstractContextManager[None]:
    """Show the package's reports on stderr inside the block."""
    return reports_to(Notices(sys.stderr))


def open_engine(
    config: EngineConfig, attach: Callable[[PreTrainedTokenizerBase], NgramSource | None] | None = None
) -> Engine:
    """An engine whose draft kernels are compiled, with one line on stderr about what it resolved to.

    ``attach`` gives the store to draft from, if any, for the model's tokenizer.

    Raises what :class:`racer.engine.Engine` and ``attach`` raise.
    """
    from racer.engine import Engine  # takes seconds
    from racer.model.attention import ATTENTION
    from racer.model.loader import load

    # its warnings, as over a long prompt, are refusals of ours with a reason
    logging.getLogger("transformers").setLevel(logging.ERROR)
    with notices():
        loaded = load(config, ATTENTION)
        engine = Engine(config, loaded=loaded, source=attach(loaded.tokenizer) if attach is not None else None)
        if config.drafts is not Drafts.OFF:
            engine.drafter.warm_up()
    print(describe(engine), file=sys.stderr, flush=True)
    return engine


def describe(engine: Engine) -> str:
    """The settings that decide what a run does and how fast, in one line."""
    config, found = engine.config, resolved(engine)
    drafts = f"drafts {config.drafts}"
    if config.drafts is not Drafts.OFF:
        prior = "" if len(engine.drafter.prior.tokens) else ", no prior table"
        drafts += f" ({config.tree} tree, budget {config.budget}{prior})"
    return (
        f"{found['model']}: {found['dtype']} on {found['device']}, {plural(found['threads'], 'thread')}, "
        f"context {engine.context_length}, {drafts}"
    )


def resolved(engine: Engine) -> dict[str, Any]:
    """What the settings came to on this machine: model, dtype, device and threads."""
    import torch

    loaded = engine.loaded
    return {
        "model": loaded.name,
        "dtype": dtype_name(engine),
        "device": str(loaded.device),
        "threads": torch.get_num_threads(),
    }


def dtype_name(engine: Engine) -> str:
    """The weights' dtype as the command line spells it."""
    return str(engine.loaded.dtype).removeprefix("torch.")
