"""The prior table of a loaded model: computed with its own forward, kept on disk."""

from __future__ import annotations

import logging

import numpy as np
from numpy.typing import NDArray

from racer.draft.prior import PriorTable, cached_prior
from racer.model.layout import Segment
from racer.model.loader import LoadedModel
from racer.model.runner import ModelRunner
from racer.model.topk import top_k
from racer.paths import cache_dir

_CHUNK = 512
_log = logging.getLogger(__name__)


def model_prior(loaded: LoadedModel, runner: ModelRunner, k: int) -> PriorTable:
    """The model's ``k`` next tokens after each vocabulary token, alone behind a newline.

    Needs the runner's pool to be empty. A forward verifies a tree: the newline is the root, the vocabulary tokens are
    its children, each on its own branch.
    """

    def forward(prefix: int, tokens: NDArray[np.int32]) -> tuple[NDArray[np.int32], NDArray[np.float32]]:
        parents = np.zeros(len(tokens) + 1, np.int32)
        parents[0] = -1
        rows = np.concatenate([np.array([prefix], np.int32), tokens])
        return top_k(runner.run([Segment(rows, parents, 0, 0, scored_from=1)]), k)

    def progress(done: int, total: int) -> None:
        _log.info("prior table: %d of %d tokens", done, total)

    return cached_prior(
        cache_dir(),
        loaded.fingerprint,
        forward,
        runner.vocab_size,
        k,
        _newline(loaded),
        chunk=min(_CHUNK, runner.pool.places - 1),
        progress=progress,
    )


def _newline(loaded: LoadedModel) -> int:
    ids = loaded.tokenizer("\n", add_special_tokens=False).input_ids
    return int(ids[-1]) if ids else 0
