"""Files as texts: plain text, JSON lines and Parquet, also compressed.

A file is read as numbered pieces, the same ones each time, so that an interrupted reader can go on behind a number.
"""

from __future__ import annotations

import glob
import gzip
import hashlib
import io
import json
import os
import zlib
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from datastore.errors import InputError

PIECE_CHARACTERS = 1 << 14
"""Length at which a text is cut, at the end of a line where there is one."""

_VERSION = b"1"  # raise it when files are cut into other pieces
_JSON_LINES = {".jsonl", ".ndjson"}
_PARQUET = {".parquet"}
_COMPRESSED = {".gz", ".zst"}
_SNIFFED = 8192
_WHOLE_BYTES = 16 << 20  # a file up to this size is hashed whole
_WINDOWS, _WINDOW_BYTES = 256, 4096  # of a larger one the beginning and so many windows, evenly spread
_PARQUET_ROWS = 256


@dataclass(frozen=True)
class SourceFile:
    """One file to read. ``named``: by the user, not found in a folder or by a pattern."""

    path: Path
    named: bool

    @property
    def kind(self) -> str:
        """Suffix that tells how to read it, compression aside."""
        suffixes = [suffix for suffix in self.path.suffixes if suffix not in _COMPRESSED]
        return suffixes[-1].lower() if suffixes else ""

    @property
    def has_fields(self) -> bool:
        """Its records have fields, one of which is the text."""
        return self.kind in _JSON_LINES | _PARQUET

    @property
    def is_binary(self) -> bool:
        """Not text, by its first bytes; files with records, and compressed ones, are not looked into."""
        if self.has_fields or self.path.suffix in _COMPRESSED:
            return False
        with self.path.open("rb") as file:
            return b"\0" in file.read(_SNIFFED)

    def identity(self, field: str) -> str:
        """32 hexadecimal digits for the file's content and the field read, wherever the file lies.

        Large files are sampled: at most 17 MiB are read.
        """
        digest = hashlib.sha256(_VERSION)
        if self.has_fields:
            digest.update(field.encode())
        size = self.path.stat().st_size
        digest.update(f"{self.kind}:{size}\n".encode())
        with self.path.open("rb") as file:
            digest.update(file.read(_WHOLE_BYTES))
            for window in range(_WINDOWS if size > _WHOLE_BYTES else 0):
                file.seek((size - _WINDOW_BYTES) * window // (_WINDOWS - 1))
                digest.update(file.read(_WINDOW_BYTES))
        return digest.hexdigest()[:32]


def find_files(names: list[str]) -> list[SourceFile]:
    """Files, folders and patterns (``**`` goes into folders) as files, each once, in a stable order.

    Hidden files and folders inside a named folder are left out, and so are links to folders.

    Raises:
        InputError: a name stands for no file.
    """
    found: dict[Path, SourceFile] = {}
    for name in names:
        path = Path(name).expanduser()
        if path.is_file():
            files = [SourceFile(path, True)]
        elif path.is_dir():
            files = [SourceFile(file, False) for file in _in_folder(path)]
        else:
            matched = sorted(glob.glob(str(path), recursive=True))
            files = [SourceFile(file, False) for file in map(Path, matched) if file.is_file()]
        if not files:
            raise InputError(f"{name}: no such file, no folder with files, and no pattern that matches any")
        for file in files:
            found.setdefault(file.path.resolve(), file)
    return list(found.values())


def _in_folder(folder: Path) -> Iterator[Path]:
    for here, folders, files in os.walk(folder):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        yield from (Path(here, name) for name in sorted(files) if not name.startswith("."))


class Reader:
    """Iterates over a file's pieces of text, none of them empty.

    ``position``: bytes of the file behind the latest piece, about. ``bad``: records without a text, each told in a
    sentence that names the line. Raises InputError where the file cannot be read on.
    """

    def __init__(self, file: SourceFile, field: str) -> None:
        self.position = 0
        self.bad: list[str] = []
        self._file = file
        self._field = field

    def __iter__(self) -> Iterator[str]:
        path = self._file.path
        try:
            yield from (piece for piece in self._pieces() if piece)
        except UnicodeDecodeError as error:
            raise InputError(f"{path}: not UTF-8 text ({error.reason}); convert it, or leave it out") from error
        except (OSError, EOFError, zlib.error) as error:
            reason = getattr(error, "strerror", None) or error
            raise InputError(f"{path}: cannot be read ({reason}); replace it, or leave it out") from error

    def _pieces(self) -> Iterator[str]:
        if self._file.kind in _PARQUET:
            for text in self._parquet():
                yield from _cut(text)
            return
        with ExitStack() as stack:
            raw = stack.enter_context(self._file.path.open("rb"))
            stream = stack.enter_context(_decompressed(raw, self._file.path.suffix))
            # "\r\n" is read as the "\n" that a model writes
            text_stream = stack.enter_context(io.TextIOWrapper(stream, encoding="utf-8-sig"))
            for text in self._records(text_stream) if self._file.kind in _JSON_LINES else _blocks(text_stream):
                self.position = raw.tell()
                yield from _cut(text)

    def _records(self, lines: io.TextIOWrapper) -> Iterator[str]:
        for number, line in enumerate(lines, start=1):
            if not line.strip():
                continue
            try:
                record = json.loads(line)
            except (ValueError, RecursionError) as error:
                self.bad.append(f"{self._file.path}:{number}: not JSON ({error}); correct the line")
                continue
            text = record.get(self._field) if isinstance(record, dict) else None
            if isinstance(text, str):
                yield _printable(text)
            else:
                self.bad.append(f"{self._file.path}:{number}: no text in field {self._field!r}; {_fields_of(record)}")

    def _parquet(self) -> Iterator[str]:
        import pyarrow
        from pyarrow import parquet

        path, field = self._file.path, self._field
        try:
            with parquet.ParquetFile(path) as table:
                names = table.schema_arrow.names
                if field not in names:
                    raise InputError(f"{path}: no column {field!r}; choose one of {', '.join(names)} with --field")
                kind = table.schema_arrow.field(field).type
                if not (pyarrow.types.is_string(kind) or pyarrow.types.is_large_string(kind)):
                    raise InputError(f"{path}: column {field!r} holds {kind}, not text; choose another with --field")
                size, rows, seen = path.stat().st_size, max(table.metadata.num_rows, 1), 0
                for batch in table.iter_batches(_PARQUET_ROWS, columns=[field]):
                    seen += len(batch)
                    self.position = size * seen // rows
                    yield from (text for text in batch.column(0).to_pylist() if text)
        except pyarrow.ArrowException as error:
            raise InputError(f"{path}: cannot be read as Parquet ({error}); replace it, or leave it out") from error


def _decompressed(raw: IO[bytes], suffix: str) -> Any:
    if suffix == ".gz":
        return gzip.GzipFile(fileobj=raw)
    if suffix == ".zst":
        import pyarrow

        return pyarrow.CompressedInputStream(pyarrow.PythonFile(raw, "r"), "zstd")
    return raw


def _blocks(stream: io.TextIOWrapper) -> Iterator[str]:
    """A text in blocks of whole lines; a line longer than a block is cut."""
    lines: list[str] = []
    size = 0
    while line := stream.readline(PIECE_CHARACTERS):
        if size + len(line) > PIECE_CHARACTERS:
            yield "".join(lines)
            lines, size = [], 0
        lines.append(line)
        size += len(line)
    yield "".join(lines)


def _cut(text: str) -> Iterator[str]:
    start = 0
    while len(text) - start > PIECE_CHARACTERS:
        end = text.rfind("\n", start, start + PIECE_CHARACTERS) + 1 or start + PIECE_CHARACTERS
        yield text[start:end]
        start = end
    yield text[start:]


def _printable(text: str) -> str:
    """JSON can hold half a surrogate pair, which is no character."""
    return text.encode("utf-8", "replace").decode("utf-8")


def _fields_of(record: Any) -> str:
    if not isinstance(record, dict):
        return "write a JSON object"
    texts = [name for name, value in record.items() if isinstance(value, str)]
    return f"choose one of {', '.join(texts)} with --field" if texts else "it has no text at all"
