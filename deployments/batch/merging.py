"""The records of many parts as one stream, without holding them all."""

from __future__ import annotations

import heapq
from collections.abc import Iterator

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from deployments.batch.locations import Location

_ROWS = 1024


Row = tuple[int, bool, bytes]
"""Index of a request, whether it failed, and its record's line."""


def in_turn(parts: list[Location]) -> Iterator[Row]:
    """Records part by part."""
    for part in readable(parts):
        yield from _rows(part)


def in_order(parts: list[Location]) -> Iterator[Row]:
    """Records by their requests' index. A part is opened when its first one is due: parts are short stretches."""
    waiting = sorted(((first_of(part), part.path, part) for part in readable(parts)), reverse=True)
    heap: list[tuple[int, str, Row, Iterator[Row]]] = []
    while waiting or heap:
        while waiting and (not heap or waiting[-1][0] <= heap[0][0]):
            _, path, part = waiting.pop()
            rows = _rows(part)
            row = next(rows)
            heapq.heappush(heap, (row[0], path, row, rows))
        _, path, row, rows = heap[0]
        yield row
        following = next(rows, None)
        if following is None:
            heapq.heappop(heap)
        else:
            heapq.heapreplace(heap, (following[0], path, following, rows))


def readable(parts: list[Location]) -> Iterator[Location]:
    """Those that are whole: power may have failed while one was written."""
    for part in parts:
        try:
            with part.filesystem.open_input_file(part.path) as stream:
                pq.ParquetFile(stream)
        except (OSError, pa.ArrowException):
            continue
        yield part


def first_of(part: Location) -> int:
    """Index of a part's first request."""
    with part.filesystem.open_input_file(part.path) as stream:
        return int(pq.read_schema(stream).metadata[b"first"])


def _rows(part: Location) -> Iterator[Row]:
    with part.filesystem.open_input_file(part.path) as stream:
        for batch in pq.ParquetFile(stream).iter_batches(_ROWS, columns=["request", "failed", "record"]):
            requests: np.ndarray = batch.column(0).to_numpy()
            yield from zip(requests.tolist(), batch.column(1).to_pylist(), batch.column(2).to_pylist(), strict=True)
