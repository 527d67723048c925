"""Writing output lines: in input order, each as soon as it can be."""

from __future__ import annotations

import errno
import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any

from racer.errors import InputError

Record = dict[str, Any]
Sink = Callable[[Record], None]


class OutputFile:
    """A JSON-lines file that is on disk up to the last line written.

    With ``overwrite`` an existing file is replaced, but not before the first line is there: what it holds outlives a
    failed start. A start that fails leaves no new file behind either.

    Raises:
        InputError: the file exists, or cannot be opened or written; the message names it and says why.
    """

    def __init__(self, path: str, *, overwrite: bool) -> None:
        self._path = path
        self._fresh = False
        self._made = not Path(path).exists()
        if Path(path).is_file() and not overwrite:  # devices and pipes hold nothing to overwrite
            raise InputError(f"--output {path}: exists; name another, or give --overwrite")
        try:
            self._file = Path(path).open("a", encoding="utf-8")  # noqa: SIM115  # closed by __exit__
        except OSError as error:
            raise self._sentence(error) from error

    def __enter__(self) -> OutputFile:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self._file.close()
        except OSError as problem:
            if kind is None:
                raise self._sentence(problem) from problem
        if self._made and not self._fresh:
            Path(self._path).unlink(missing_ok=True)

    def write(self, record: Record) -> None:
        """Append one line."""
        try:
            if not self._fresh and Path(self._path).is_file():
                self._file.truncate(0)
            self._fresh = True
            self._file.write(as_line(record) + "\n")
            self._file.flush()
        except OSError as error:
            raise self._sentence(error) from error

    def _sentence(self, error: OSError) -> InputError:
        full = error.errno in (errno.ENOSPC, errno.EDQUOT)
        mend = "free space or name another file" if full else "name another file"
        return InputError(f"{self._path}: cannot be written ({error.strerror}); {mend}")


class InOrder:
    """Hands records on in the order of their index, holding back those that came early."""

    def __init__(self, sinks: list[Sink]) -> None:
        self._sinks = sinks
        self._next = 0
        self._early: dict[int, Record] = {}

    def add(self, index: int, record: Record) -> None:
        """Take one record; each index comes once."""
        self._early[index] = record
        while self._next in self._early:
            self._hand_on(self._early.pop(self._next))
            self._next += 1

    def flush(self) -> None:
        """Hand on what is held back, though records before it are missing: the run ends here."""
        while self._early:
            self._hand_on(self._early.pop(min(self._early)))

    def _hand_on(self, record: Record) -> None:
        for sink in self._sinks:
            sink(record)


def as_line(record: Record) -> str:
    """One line of JSON, readable as it is: no escapes where UTF-8 does."""
    return json.dumps(record, ensure_ascii=False)


def print_line(record: Record) -> None:
    """Write one line of JSON to stdout."""
    print(as_line(record), flush=True)


def print_text(record: Record) -> None:
    """Write an answer, or each turn's, to stdout under its id. One that failed has none: errors are told on stderr."""
    text = record.get("text", [])
    for turn in text if isinstance(text, list) else [text]:
        print(f"--- {record['id']}\n{turn}", flush=True)


def refuse_same_file(source: str, target: str) -> None:
    """Raise InputError if writing ``target`` would destroy ``source``."""
    if os.path.exists(target) and os.path.samefile(source, target) and Path(source).is_file():
        raise InputError(f"{target}: input and output are the same file; name another output")


def say_error(sentence: str) -> None:
    """One line on stderr."""
    print(f"error: {sentence}", file=sys.stderr, flush=True)
