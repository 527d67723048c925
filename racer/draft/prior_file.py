"""The prior table on disk: computed once per model, then read. Losing or damaging the file costs the computation."""

from __future__ import annotations

import hashlib
import logging
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from racer.draft.logits import ANY, KEY_TOKENS, LogitsTable
from racer.draft.prior import FREE_ROWS, Forward, FreeRun, PriorTable, Progress, compute_prior
from racer.paths import one_at_a_time, write_whole

_FORMAT = 2
_ARRAYS = ("tokens", "probs", "free_keys", "free_tokens", "free_probs")
_log = logging.getLogger(__name__)


def prior_path(directory: Path, fingerprint: str, top_k: int) -> Path:
    """Where the table of this model and k is kept. The fingerprint is hashed: any text makes a safe file name."""
    name = hashlib.sha256(fingerprint.encode()).hexdigest()[:16]
    return directory / f"prior-v{_FORMAT}-{name}-k{top_k}.npz"


def load_prior(path: Path, vocab_size: int, top_k: int) -> PriorTable | None:
    """The table on disk, or None where there is none that fits: missing, damaged, or of another shape."""
    try:
        with np.load(path, allow_pickle=False) as data:
            arrays = {name: data[name] for name in _ARRAYS}
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile, zlib.error) as error:
        _log.warning("prior table %s cannot be read (%s); it is computed again", path, error)
        return None
    if not _fits(arrays, vocab_size, top_k):
        _log.warning("prior table %s does not fit this model; it is computed again", path)
        return None
    table = PriorTable(arrays["tokens"], arrays["probs"].astype(np.float32))
    if not len(arrays["free_keys"]):
        return table
    free = LogitsTable(top_k, FREE_ROWS)
    free.update(arrays["free_keys"], arrays["free_tokens"], arrays["free_probs"].astype(np.float32))
    return PriorTable(table.tokens, table.probs, free)


def _fits(arrays: dict[str, NDArray[Any]], vocab_size: int, top_k: int) -> bool:
    rows = len(arrays["free_keys"])
    shapes = {
        **{"tokens": (vocab_size, top_k), "probs": (vocab_size, top_k)},
        **{"free_keys": (rows, KEY_TOKENS), "free_tokens": (rows, top_k), "free_probs": (rows, top_k)},
    }
    return all(
        array.shape == shapes[name]
        and array.dtype == (np.float16 if name.endswith("probs") else np.int32)
        and (name.endswith("probs") or (array.min(initial=0) >= ANY and array.max(initial=0) < vocab_size))
        for name, array in arrays.items()
    )


def _packed(table: PriorTable) -> dict[str, NDArray[Any]]:
    """The arrays of a file; probabilities as float16."""
    free = table.free or LogitsTable(table.top_k, 1)
    used = len(free)
    return {
        "tokens": table.tokens,
        "probs": table.probs.astype(np.float16),
        "free_keys": free.keys[:used],
        "free_tokens": free.tokens[:used],
        "free_probs": free.probs[:used].astype(np.float16),
    }


def save_prior(path: Path, table: PriorTable) -> None:
    """Keep the table on disk, whole or not at all. Probabilities go as float16."""
    write_whole(path, lambda file: np.savez(file, allow_pickle=False, **_packed(table)))


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
    free_run: Callable[[], FreeRun] | None = None,
) -> PriorTable:
    """The table from disk, or computed and then kept there. A folder that cannot be written only costs the cache.

    Let ``fingerprint`` differ where ``free_run`` does: the file holds what was averaged in.
    """
    path = prior_path(directory, fingerprint, top_k)
    with one_at_a_time(path):
        table = load_prior(path, vocab_size, top_k)
        if table is not None:
            return table
        table = compute_prior(
            forward, vocab_size, top_k, prefix_token, chunk=chunk, progress=progress, free_run=free_run
        )
        try:
            save_prior(path, table)
        except OSError as error:
            _log.warning("prior table cannot be kept at %s (%s)", path, error)
            return table
    return load_prior(path, vocab_size, top_k) or table  # rounded as the next start will find it
