"""Saying what takes long: on a start that finds everything made, nothing is said."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager

PATIENCE_S = 3.0


@contextmanager
def told_if_slow(logger: logging.Logger, doing: str, patience_s: float = PATIENCE_S) -> Iterator[None]:
    """Log ``doing``, at level INFO, if the block takes longer than ``patience_s``."""
    timer = threading.Timer(patience_s, logger.info, ("%s", doing))
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
