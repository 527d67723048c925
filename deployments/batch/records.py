"""The records of a batch of the endpoint: appended as its requests finish, made into files at its end."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

import orjson

from deployments.batch.answers import Result, one_line


class RecordFile:
    """One line a finished request. What a killed process left half written is cut off when it is opened again."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.done: set[int] = set()
        self.failed = self.prompt_tokens = self.completion_tokens = 0
        whole = 0
        for line, end in _lines(path):
            self._count(line["request"], line["failed"], line["tokens"])
            whole = end
        self._file = path.open("ab")
        self._file.truncate(whole)
        self._lock = threading.Lock()

    def add(self, request: int, result: Result) -> None:
        """Append a request's record. From any thread. Raises OSError."""
        tokens = [result.tally.prompt_tokens, result.tally.completion_tokens]
        line = {"request": request, "failed": result.failed, "tokens": tokens, "record": orjson.Fragment(result.record)}
        with self._lock:
            self._file.write(orjson.dumps(line) + b"\n")
            self._file.flush()
            self._count(request, result.failed, tokens)

    def _count(self, request: int, failed: bool, tokens: list[int]) -> None:
        self.done.add(request)
        self.failed += failed
        self.prompt_tokens += tokens[0]
        self.completion_tokens += tokens[1]

    def write_to(self, answers: BinaryIO, errors: BinaryIO) -> None:
        """Write the records to the one file or the other."""
        os.fsync(self._file.fileno())
        for line, _ in _lines(self._path):
            (errors if line["failed"] else answers).write(one_line(line["record"]) + b"\n")

    def close(self) -> None:
        """No more is appended."""
        self._file.close()


def _lines(path: Path) -> Iterator[tuple[dict[str, Any], int]]:
    """The whole lines of the file, and where each ends."""
    if not path.exists():
        return
    end = 0
    with path.open("rb") as file:
        for raw in file:
            end += len(raw)
            if raw.endswith(b"\n"):
                yield orjson.loads(raw), end
