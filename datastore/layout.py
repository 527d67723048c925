"""From token ids to places in a store, and back."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from datastore import kernels
from datastore.levels import as_array
from datastore.store import Continuation, Ints

_LEVELS = as_array()
_BATCH_TOKENS = 1 << 19


class Places(NamedTuple):
    """Where a batch of contexts is looked up, context by context, the levels of each in the order of ``LEVELS``.

    buckets  int64 [contexts * levels]
    fields   uint8 [contexts * levels, FIELD_BYTES]: the field in that bucket
    since    int32 [contexts, levels]: tokens decided since the stored context; -1: too short for this level
    tokens, ends  the contexts one after another, and where each ends
    """

    buckets: NDArray[np.int64]
    fields: NDArray[np.uint8]
    since: Ints
    tokens: Ints
    ends: Ints


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
    return Places(
        (flat >> np.uint64(64 - bucket_bits)).astype(np.int64),
        flat.astype("<u8").view(np.uint8).reshape(-1, 8)[:, : kernels.FIELD_BYTES],
        since,
        tokens,
        ends,
    )


def longest(places: Places, entries: Sequence[bytes | None]) -> list[list[Continuation]]:
    """What the ``entries`` found at ``places`` say of the longest known suffix of each context."""
    data = np.frombuffer(b"".join([entry or b"" for entry in entries]), np.uint8)
    entry_ends = np.cumsum([len(entry or b"") for entry in entries], dtype=np.int32)
    columns = kernels.longest(data, entry_ends, places.tokens, places.ends, places.since, _LEVELS)
    tokens, lengths, counts, found, matched = (column.tolist() for column in columns)
    answers: list[list[Continuation]] = []
    at = i = 0
    for size, reach in zip(found, matched, strict=True):
        answer = []
        for length, count in zip(lengths[i : i + size], counts[i : i + size], strict=True):
            answer.append(Continuation(tuple(tokens[at : at + length]), count, reach))
            at += length
        i += size
        answers.append(answer)
    return answers


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
