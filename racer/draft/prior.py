"""The prior table: the model's next tokens after each vocabulary token alone, behind a newline.

It answers where a request has no history yet. Computed once per model (one pass over the vocabulary), then read from
disk. Losing or damaging the file costs that pass again, nothing else.
"""

from __future__ import annotations

import hashlib
import logging
import os
import tempfile
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

Forward = Callable[[int, NDArray[np.int32]], tuple[NDArray[np.int32], NDArray[np.float32]]]
Progress = Callable[[int, int], None]

_FORMAT = 1
_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class PriorTable:
    """Next tokens int32 [vocab, k], most likely first, and their probabilities float32 [vocab, k]."""

    tokens: NDArray[np.int32]
    probs: NDArray[np.float32]

    @property
    def vocab_size(self) -> int:
        """Rows: one for each vocabulary token."""
        return len(self.tokens)

    @property
    def top_k(self) -> int:
        """Next tokens kept for each."""
        return int(self.tokens.shape[1])


def compute_prior(
    forward: Forward,
    vocab_size: int,
    top_k: int,
    prefix_token: int,
    *,
    chunk: int = 1024,
    progress: Progress | None = None,
) -> PriorTable:
    """Ask the model for every vocabulary token.

    ``forward(prefix_token, tokens int32 [m])`` returns the most likely next tokens int32 [m, >= top_k] and their
    probabilities float32 [m, >= top_k] after the two-token text (prefix, token), for each token on its own.
    ``progress(done, total)`` is called after each chunk. What ``forward`` raises is passed on.
    """
    tokens = np.empty((vocab_size, top_k), np.int32)
    probs = np.empty((vocab_size, top_k), np.float32)
    for start in range(0, vocab_size, chunk):
        ids = np.arange(start, min(start + chunk, vocab_size), dtype=np.int32)
        top, top_probs = forward(prefix_token, ids)
        tokens[ids], probs[ids] = top[:, :top_k], top_probs[:, :top_k]
        if progress is not None:
            progress(int(ids[-1]) + 1, vocab_size)
    return PriorTable(tokens, probs)


def prior_path(directory: Path, fingerprint: str, top_k: int) -> Path:
    """Where the table of this model and k is kept. The fingerprint is hashed: any text makes a safe file name."""
    name = hashlib.sha256(fingerprint.encode()).hexdigest()[:16]
    return directory / f"prior-v{_FORMAT}-{name}-k{top_k}.npz"


def load_prior(path: Path, vocab_size: int, top_k: int) -> PriorTable | None:
    """The table on disk, or None where there is none that fits: missing, damaged, or of another shape."""
    try:
        with np.load(path, allow_pickle=False) as data:
            tokens, probs = data["tokens"], data["probs"]
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile) as error:
        _log.warning("prior table %s cannot be read (%s); it is computed again", path, error)
        return None
    shape = (vocab_size, top_k)
    fits = tokens.shape == probs.shape == shape and tokens.dtype == np.int32 and probs.dtype == np.float16
    if not fits or tokens.min(initial=0) < -1 or tokens.max(initial=0) >= vocab_size:
        _log.warning("prior table %s does not fit this model; it is computed again", path)
        return None
    return PriorTable(tokens, probs.astype(np.float32))


def save_prior(path: Path, table: PriorTable) -> None:
    """Write beside the target and rename, so that a reader never sees half a file. Probabilities go as float16."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(dir=path.parent, suffix=".npz.tmp")
    try:
        with os.fdopen(handle, "wb") as file:
            np.savez(file, tokens=table.tokens, probs=table.probs.astype(np.float16))
        os.replace(temporary, path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


def cached_prior(
    directory: Path,
    fingerprint: str,
    forward: Forward,
    vocab_size: int,
    top_k: int,
    prefix_token: int,
    *,
    chunk: int = 1024,
    progress: Progress | None = None,
) -> PriorTable:
    """The table from disk, or computed and then kept there. A folder that cannot be written only costs the cache."""
    path = prior_path(directory, fingerprint, top_k)
    table = load_prior(path, vocab_size, top_k)
    if table is None:
        table = compute_prior(forward, vocab_size, top_k, prefix_token, chunk=chunk, progress=progress)
        try:
            save_prior(path, table)
        except OSError as error:
            _log.warning("prior table cannot be kept at %s (%s)", path, error)
        table = PriorTable(table.tokens, table.probs.astype(np.float16).astype(np.float32))
    return table
