"""The layout one would write first, for comparison: a sorted set for each context, a member for each continuation."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from datastore import codec
from datastore.keys import KeyNames
from datastore.store import Ints

LENGTHS = (2, 3, 4)
_CONTINUATION = 8
_TOP = 8
_PIPELINE = 1000


class PlainLayout:
    """Keys ``plain:<fingerprint>:<namespace>:<context>``; the score of a member is its count. Never trimmed."""

    def __init__(self, client: Any, names: KeyNames) -> None:
        self._client = client
        self._prefix = f"plain:{names.fingerprint}:{names.namespace}:".encode()

    def _key(self, context: Ints) -> bytes:
        return self._prefix + codec.encode(context.tolist())

    def learn(self, text: Ints) -> None:
        """Count every continuation behind every context of ``text`` (int32 [m])."""
        pipeline = self._client.pipeline(transaction=False)
        for start in range(1, len(text)):
            member = codec.encode(text[start : start + _CONTINUATION].tolist())
            for length in LENGTHS:
                if length <= start:
                    pipeline.zincrby(self._key(text[start - length : start]), 1, member)
            if len(pipeline) >= _PIPELINE:
                pipeline.execute()
        pipeline.execute()

    def lookup(self, contexts: Sequence[Ints]) -> list[Any]:
        """The most frequent continuations behind each context, at each length, in one pipeline."""
        pipeline = self._client.pipeline(transaction=False)
        for context in contexts:
            for length in LENGTHS:
                pipeline.zrange(self._key(context[-length:]), 0, _TOP - 1, desc=True, withscores=True)
        found: list[Any] = pipeline.execute()
        return found

    def purge(self) -> None:
        """Remove all of its keys."""
        batch: list[bytes] = []
        for key in self._client.scan_iter(match=self._prefix + b"*", count=1000):
            batch.append(key)
            if len(batch) == _PIPELINE:
                self._client.unlink(*batch)
                batch = []
        if batch:
            self._client.unlink(*batch)
