"""From token ids to places in a store, and back."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from datastore import codec, kernels
from datastore.levels import LEVELS, as_array
from datastore.store import Continuation, Ints

_LEVELS = as_array()
_BATCH_TOKENS = 1 << 17


class Places(NamedTuple):
    """Where a batch of contexts is looked up, context by context, the levels of each in the order of ``LEVELS``.

    buckets  int64 [contexts * levels]
    fields   the field in that bucket
    since    int32 [contexts, levels]: tokens decided since the stored context; -1: too short for this level
    """

    buckets: NDArray[np.int64]
    fields: list[bytes]
    since: Ints


class Part(NamedTuple):
    """What one bucket is to merge: ``data`` as merge.lua wants it, of so many entries."""

    bucket: int
    data: bytes
    entries: int


def places(contexts: Sequence[Ints], bucket_bits: int) -> Places:
    """Where the ``contexts`` (each int32 [m]) are looked up."""
    tokens, ends = _joined(contexts)
    hashes, since = kernels.tail_keys(tokens, ends, _LEVELS)
    flat = hashes.reshape(-1)
    fields = flat.astype("<u4").tobytes()
    size = kernels.FIELD_BYTES
    return Places(
        (flat >> np.uint64(64 - bucket_bits)).astype(np.int64),
        [fields[i : i + size] for i in range(0, len(fields), size)],
        since,
    )


def longest(contexts: Sequence[Ints], since: Ints, entries: Sequence[bytes | None]) -> list[list[Continuation]]:
    """What the ``entries`` found at the :func:`places` of ``contexts`` say of the longest known suffix of each."""
    found: list[list[Continuation]] = []
    width = len(LEVELS)
    for i, context in enumerate(contexts):
        best: list[Continuation] = []
        reached = 0
        for j, level in enumerate(LEVELS):
            entry, decided = entries[i * width + j], int(since[i, j])
            if entry and decided >= 0 and level.context + decided > reached:
                found_here = _continuations(entry, context[len(context) - decided :], level.context + decided)
                if found_here:
                    best, reached = found_here, level.context + decided
        found.append(best)
    return found


def _continuations(entry: bytes, decided: Ints, matched: int) -> list[Continuation]:
    """Of an entry, what begins with the ``decided`` tokens, without them."""
    start = codec.encode(decided.tolist())
    return [
        Continuation(tokens, record.seen, matched)
        for record in codec.unpack(entry)
        if record.tokens.startswith(start) and (tokens := codec.decode(record.tokens[len(start) :]))
    ]


def parts(runs: Sequence[Ints], weight: int, bucket_bits: int) -> Iterator[list[Part]]:
    """What ``runs`` teach, in batches, each sorted by bucket."""
    weight = max(1, min(weight, kernels.MAX_COUNT))
    for batch in _batches(runs):
        tokens, ends = _joined(batch)
        hashes, starts, lengths = kernels.occurrences(tokens, ends, _LEVELS)
        if len(hashes):
            order = np.argsort(hashes, kind="stable")
            data, *columns = kernels.pack(tokens, hashes, starts, lengths, order, weight, bucket_bits)
            yield _cut(data.tobytes(), *(column.tolist() for column in columns))


def _cut(data: bytes, buckets: list[int], ends: list[int], entries: list[int]) -> list[Part]:
    starts = [0, *ends[:-1]]
    return [
        Part(bucket, data[start:end], count)
        for bucket, start, end, count in zip(buckets, starts, ends, entries, strict=True)
    ]


def _joined(runs: Sequence[Ints]) -> tuple[Ints, Ints]:
    ends = np.cumsum([len(run) for run in runs], dtype=np.int32)
    tokens = np.concatenate(runs).astype(np.int32, copy=False) if runs else np.empty(0, np.int32)
    return tokens, ends


def _batches(runs: Sequence[Ints]) -> Iterator[list[Ints]]:
    """Runs together, as many as a batch holds; a longer one is cut, and what spans a cut is not learned."""
    batch: list[Ints] = []
    room = _BATCH_TOKENS
    for run in runs:
        for piece in _pieces(run):
            if len(piece) > room:
                yield batch
                batch, room = [], _BATCH_TOKENS
            batch.append(piece)
            room -= len(piece)
    if batch:
        yield batch


def _pieces(run: Ints) -> Iterator[Ints]:
    for start in range(0, max(len(run), 1), _BATCH_TOKENS):
        yield run[start : start + _BATCH_TOKENS]
