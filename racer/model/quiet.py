"""Keeps transformers' bars and warnings off the terminal while a model loads."""

from __future__ import annotations

import io
import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, redirect_stderr
from typing import Any

import transformers

from racer.patience import told_if_slow

logger = logging.getLogger(__name__)
hf_logging: Any = transformers.utils.logging  # its functions bring no types

PATIENCE_S = 10.0


@contextmanager
def quiet_libraries(doing: str = "") -> Iterator[None]:
    """Only errors of transformers are logged inside, and no bar is drawn; the former settings return afterwards.

    Bars that transformers' switch does not reach (reading a GGUF file) are written straight to ``sys.stderr``, so that
    is set aside too; log handlers made before keep their own stream.

    Args:
        doing: logged once, at level INFO, if the block takes longer than ``PATIENCE_S``.
    """
    verbosity, bars = hf_logging.get_verbosity(), hf_logging.is_progress_bar_enabled()
    hf_logging.set_verbosity_error()
    hf_logging.disable_progress_bar()
    try:
        slow = told_if_slow(logger, f"still {doing}", PATIENCE_S) if doing else nullcontext()
        with slow, warnings.catch_warnings(), redirect_stderr(io.StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        hf_logging.set_verbosity(verbosity)
        if bars:
            hf_logging.enable_progress_bar()
