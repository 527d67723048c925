"""The prior table of a loaded model: computed with its own forward, kept on disk."""

from __future__ import annotations

import logging
import time

import numpy as np
from numpy.typing import NDArray

from racer.draft.prior import FreeRun, PriorTable
from racer.draft.prior_file import cached_prior
from racer.model.freerun import free_run, user_header
from racer.model.layout import Segment
from racer.model.loader import LoadedModel
from racer.model.runner import ModelRunner
from racer.model.topk import top_k
from racer.paths import cache_path

_CHUNK = 512
_FREE_RUN_SHARE = 0.4
"""Share of the whole computation that the free run takes, roughly: for the progress shown."""

_SETTLED_S = 20.0
"""Time after which the pace so far says how long the whole takes; first forwards are slow."""

_log = logging.getLogger(__name__)


class PriorTooSlow(Exception):
    """The table would take longer than the configuration allows."""


def model_prior(loaded: LoadedModel, runner: ModelRunner, k: int, limit_s: float) -> PriorTable | None:
    """The model's ``k`` next tokens after each vocabulary token alone, and where it runs free.

    Needs the runner's pool to be empty. Computed once per model, then read from the cache folder. None, with a
    warning, if computing it would take longer than ``limit_s`` seconds: drafts then go without.
    """
    report = _Reporter(limit_s)

    def forward(prefix: int, tokens: NDArray[np.int32]) -> tuple[NDArray[np.int32], NDArray[np.float32]]:
        # A forward verifies a tree: the newline is the root, the vocabulary tokens are its children.
        parents = np.zeros(len(tokens) + 1, np.int32)
        parents[0] = -1
        rows = np.concatenate([np.array([prefix], np.int32), tokens])
        return top_k(runner.run([Segment(rows, parents, 0, 0, scored_from=1)]), k)

    def run() -> FreeRun:
        prefix = user_header(loaded.tokenizer)
        return free_run(
            runner, prefix, k, progress=lambda done, total: report(1 - _FREE_RUN_SHARE * (1 - done / total))
        )

    try:
        return cached_prior(
            cache_path(),
            loaded.fingerprint,
            forward,
            runner.vocab_size,
            k,
            _newline(loaded),
            chunk=min(_CHUNK, runner.pool.places - 1),
            progress=lambda done, total: report((1 - _FREE_RUN_SHARE) * done / total),
            free_run=run,
        )
    except PriorTooSlow as reason:
        _log.warning("drafting without the prior table: %s", reason)
        return None


class _Reporter:
    """Logs how far the computation is, and ends it once it is clear that it takes too long."""

    def __init__(self, limit_s: float) -> None:
        self._limit_s = limit_s
        self._started_s = time.monotonic()
        self._logged_s = self._started_s

    def __call__(self, share: float) -> None:
        now = time.monotonic()
        expected_s = (now - self._started_s) / share
        if now - self._started_s > _SETTLED_S and expected_s > self._limit_s:
            raise PriorTooSlow(
                f"computing it would take {expected_s:.0f} s here and now, more than --prior-limit-s {self._limit_s:g} "
                f"allows; fewer drafts will be accepted, and the next start tries again"
            )
        if now - self._logged_s > 1 or share == 1:
            self._logged_s = now
            _log.info("prior table, once per model: %d%%, %d s left", round(share * 100), expected_s * (1 - share))


def _newline(loaded: LoadedModel) -> int:
    ids = loaded.tokenizer("\n", add_special_tokens=False).input_ids
    return int(ids[-1]) if ids else 0
