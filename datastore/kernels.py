"""The loops over tokens, compiled. All are in this file: numba's cache on disk notices an edit of this one only."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, cast

import numba
import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int32]
Hashes = NDArray[np.uint64]
Bytes = NDArray[np.uint8]

CONTEXT, WINDOW, CONTINUATION = range(3)

MAX_ENTRY = 64
"""Bytes of an entry. A hash with a longer value leaves Redis' compact encoding (hash-max-listpack-value)."""

MAX_COUNT = 63
FIELD_BYTES = 4
_HEAD = 2  # bytes in front of a record's tokens: count, length
_CANDIDATES = 16  # continuations of one context that are told apart within a batch

_MIX_1 = np.uint64(0xBF58476D1CE4E5B9)
_MIX_2 = np.uint64(0x94D049BB133111EB)
_STEP = np.uint64(0x9E3779B97F4A7C15)
_S27, _S30, _S31 = np.uint64(27), np.uint64(30), np.uint64(31)

Function = TypeVar("Function", bound=Callable[..., Any])


def _njit(function: Function) -> Function:
    try:
        return cast(Function, numba.njit(cache=True, nogil=True)(function))
    except RuntimeError:  # no folder for the cache can be written
        return cast(Function, numba.njit(nogil=True)(function))


@_njit
def _mixed(value: np.uint64) -> np.uint64:
    value = (value ^ (value >> _S30)) * _MIX_1
    value = (value ^ (value >> _S27)) * _MIX_2
    return value ^ (value >> _S31)


@_njit
def _context_hash(tokens: Ints, end: int, length: int, level: int) -> np.uint64:
    """Of the ``length`` tokens that end before ``end``; contexts of different levels never meet."""
    value = np.uint64(level + 1)
    for i in range(end - length, end):
        value = _mixed(value * _STEP + np.uint64(tokens[i]))
    return value


@_njit
def _anchor(tokens: Ints, first: int, last: int) -> int:
    """The position of ``first..last`` whose token hashes lowest, the latest of equals."""
    best, lowest = last, _mixed(np.uint64(tokens[last]) * _STEP)
    for i in range(last - 1, first - 1, -1):
        value = _mixed(np.uint64(tokens[i]) * _STEP)
        if value < lowest:
            best, lowest = i, value
    return best


@_njit
def tail_keys(tokens: Ints, ends: Ints, levels: Ints) -> tuple[Hashes, Ints]:
    """Hash of each text's context at each level, and how many tokens the text has decided since that context.

    ``tokens`` holds the texts one after another, ``ends`` int32 [texts] where each ends.
    uint64 [texts, levels] and int32 [texts, levels]; the latter is -1 where the text is too short.
    """
    hashes = np.zeros((len(ends), len(levels)), np.uint64)
    since = np.full((len(ends), len(levels)), -1, np.int32)
    start = 0
    for text in range(len(ends)):
        end = ends[text]
        for level in range(len(levels)):
            context = levels[level, CONTEXT]
            first = max(start + context - 1, end - levels[level, WINDOW])
            if first < end:
                position = _anchor(tokens, first, end - 1)
                hashes[text, level] = _context_hash(tokens, position + 1, context, level)
                since[text, level] = end - 1 - position
        start = end
    return hashes, since


@_njit
def occurrences(tokens: Ints, ends: Ints, levels: Ints) -> tuple[Hashes, Ints, Ints]:
    """All that the texts teach: hash of the context, where its continuation starts, and how long it is."""
    room = len(tokens) * len(levels)
    hashes, starts, lengths = np.empty(room, np.uint64), np.empty(room, np.int32), np.empty(room, np.int32)
    size, start = 0, 0
    for text in range(len(ends)):
        end = ends[text]
        for level in range(len(levels)):
            context, window = levels[level, CONTEXT], levels[level, WINDOW]
            before = -1
            for newest in range(start + context - 1, end - 1):
                position = _anchor(tokens, max(start + context - 1, newest - window + 1), newest)
                if position != before:  # anchors never move back
                    before = position
                    hashes[size] = _context_hash(tokens, position + 1, context, level)
                    starts[size] = position + 1
                    lengths[size] = min(levels[level, CONTINUATION], end - position - 1)
                    size += 1
        start = end
    return hashes[:size], starts[:size], lengths[:size]


@_njit
def _shared(tokens: Ints, first: int, second: int, length: int) -> bool:
    i = 0
    while i < length and tokens[first + i] == tokens[second + i]:
        i += 1
    return i == length


@_njit
def _tally(tokens: Ints, starts: Ints, lengths: Ints, order: NDArray[np.int64], weight: int, found: Ints) -> int:
    """Count the continuations of one context into ``found`` int32 [candidates, 3]: start, length, count.

    In order of the text. One that another begins with counts as that one; the rarest, oldest makes room for a new one.
    """
    size = 0
    for i in order:
        start, length = starts[i], lengths[i]
        place = -1
        for j in range(size):
            if _shared(tokens, start, found[j, 0], min(length, found[j, 1])):
                place = j
                break
        count = weight
        if place >= 0:
            count = min(found[place, 2] + weight, MAX_COUNT)
            if found[place, 1] > length:
                start, length = found[place, 0], found[place, 1]
        elif size < len(found):
            place = size
            size += 1
        else:
            place = 0
            for j in range(1, size):
                if found[j, 2] < found[place, 2]:
                    place = j
        for j in range(place, size - 1):  # the newest is last
            found[j] = found[j + 1]
        found[size - 1, 0], found[size - 1, 1], found[size - 1, 2] = start, length, count
    return size


@_njit
def _token_bytes(token: int) -> int:
    size = 1
    while token >= 128:
        token >>= 7
        size += 1
    return size


@_njit
def _fitting(tokens: Ints, start: int, length: int, room: int) -> tuple[int, int]:
    """How many of the tokens fit into ``room`` bytes, and the bytes they take."""
    size = 0
    for i in range(length):
        more = _token_bytes(tokens[start + i])
        if size + more > room:
            return i, size
        size += more
    return length, size


@_njit
def _put_record(out: Bytes, at: int, tokens: Ints, start: int, length: int, count: int) -> int:
    """Write one record; returns where the next goes."""
    place = at + _HEAD
    for i in range(start, start + length):
        token = tokens[i]
        while token >= 128:
            out[place] = token & 127 | 128
            token >>= 7
            place += 1
        out[place] = token
        place += 1
    out[at], out[at + 1] = count, place - at - _HEAD
    return place


@_njit
def _put_entry(out: Bytes, first: int, tokens: Ints, found: Ints, size: int) -> int:
    """Write the records that fit, the most frequent first, the newest of equals first. Uses up ``found``.

    Of the very first as many tokens as fit. Returns where the entry ends.
    """
    at = first
    for _ in range(size):
        best = size - 1
        for j in range(size - 2, -1, -1):
            if found[j, 2] > found[best, 2]:
                best = j
        length, needs = _fitting(tokens, found[best, 0], found[best, 1], MAX_ENTRY - _HEAD)
        if at + _HEAD + needs <= first + MAX_ENTRY:
            at = _put_record(out, at, tokens, found[best, 0], length, found[best, 2])
        found[best, 2] = 0
    return at


@_njit
def pack(
    tokens: Ints,
    hashes: Hashes,
    starts: Ints,
    lengths: Ints,
    order: NDArray[np.int64],
    weight: int,
    bucket_bits: int,
) -> tuple[Bytes, Ints, Ints, Ints]:
    """Entries of all contexts, by bucket: bytes, and for each bucket its number, where its part ends, and its entries.

    ``order`` sorts ``hashes`` and keeps equals in the order of the text. A part is, for each entry, the field's four
    bytes, the entry's length in one byte, and the entry.
    """
    shift = np.uint64(64 - bucket_bits)
    out = np.empty(len(order) * 24 + MAX_ENTRY + 8, np.uint8)
    buckets, ends, entries = (
        np.empty(len(order), np.int32),
        np.empty(len(order), np.int32),
        np.zeros(len(order), np.int32),
    )
    found = np.empty((_CANDIDATES, 3), np.int32)
    used, at, i = 0, 0, 0
    while i < len(order):
        value = hashes[order[i]]
        j = i + 1
        while j < len(order) and hashes[order[j]] == value:
            j += 1
        bucket = np.int32(value >> shift)
        if used == 0 or buckets[used - 1] != bucket:
            buckets[used] = bucket
            used += 1
        if at + MAX_ENTRY + 8 > len(out):
            grown = np.empty(2 * len(out), np.uint8)
            grown[:at] = out[:at]
            out = grown
        for k in range(FIELD_BYTES):
            out[at + k] = np.uint8((value >> np.uint64(8 * k)) & np.uint64(255))
        size = _tally(tokens, starts, lengths, order[i:j], weight, found)
        end = _put_entry(out, at + FIELD_BYTES + 1, tokens, found, size)
        out[at + FIELD_BYTES] = end - at - FIELD_BYTES - 1
        at = end
        ends[used - 1] = at
        entries[used - 1] += 1
        i = j
    return out[:at], buckets[:used], ends[:used], entries[:used]


@_njit
def _put_continuations(
    entry: Bytes, decided: Ints, out: Ints, at: int, lengths: Ints, counts: Ints, size: int
) -> tuple[int, int]:
    """Decode those records of an entry that begin with ``decided``, without these tokens.

    ``out`` from ``at`` takes the tokens, ``lengths`` and ``counts`` from ``size`` on one number a record. Returns both,
    moved on; unmoved if the entry is not sound, or nothing begins so.
    """
    first_at, first_size, i = at, size, 0
    if len(entry) > MAX_ENTRY:
        return at, size
    while i + _HEAD < len(entry):
        count, end = entry[i], i + _HEAD + entry[i + 1]
        if count == 0 or end > len(entry):
            break
        i += _HEAD
        start, seen, value, shift = at, 0, 0, 0
        while i < end and value >> 31 == 0:
            value |= (entry[i] & 127) << shift
            shift += 7
            if entry[i] < 128:
                if seen < len(decided):
                    if value != decided[seen]:
                        break
                else:
                    out[at] = value
                    at += 1
                seen, value, shift = seen + 1, 0, 0
            i += 1
        if i == end and at > start:
            lengths[size], counts[size] = at - start, count
            size += 1
        else:
            at = start
        i = end
    if i != len(entry):
        return first_at, first_size
    return at, size


@_njit
def longest(
    data: Bytes, entry_ends: Ints, tokens: Ints, ends: Ints, since: Ints, levels: Ints
) -> tuple[Ints, Ints, Ints, Ints, Ints]:
    """Continuations of the longest known suffix of each text.

    ``data`` holds the entries found, text by text, level by level, each up to its ``entry_ends``; the rest is as in
    :func:`tail_keys`. Returns for all continuations their tokens, lengths and counts, and for each text how many it has
    and how many tokens these matched.
    """
    out = np.empty(len(ends) * MAX_ENTRY, np.int32)
    lengths, counts = np.empty(len(ends) * MAX_ENTRY, np.int32), np.empty(len(ends) * MAX_ENTRY, np.int32)
    found, matched = np.zeros(len(ends), np.int32), np.zeros(len(ends), np.int32)
    at, size = 0, 0
    for text in range(len(ends)):
        before = size
        limit = 1 << 30
        while size == before:
            best, reach = -1, 0
            for level in range(len(levels)):
                reached = levels[level, CONTEXT] + since[text, level]
                if since[text, level] >= 0 and reach < reached < limit:
                    best, reach = level, reached
            if best < 0:
                break
            limit = reach
            place = text * len(levels) + best
            entry = data[entry_ends[place - 1] if place > 0 else 0 : entry_ends[place]]
            decided = tokens[ends[text] - since[text, best] : ends[text]]
            at, size = _put_continuations(entry, decided, out, at, lengths, counts, size)
        found[text], matched[text] = size - before, limit
    return out[:at], lengths[:size], counts[:size], found, matched
