"""Files into a store: read, tokenise, learn, and remember how far it got.

The store itself keeps a mark for each file: the number of pieces claimed. A batch is claimed just before it is learned,
so nothing is ever counted twice: a process killed in between leaves out that one batch. Asked to stop, :func:`ingest`
ends behind a batch, and nothing is left out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeVar

import numpy as np

from datastore.errors import InputError
from datastore.reading import Reader, SourceFile
from datastore.store import Ints, NgramStore

if TYPE_CHECKING:
    from tokenizers import Tokenizer

BATCH_CHARACTERS = 1 << 18
"""Text claimed and learned at once: about 65,000 tokens."""

DONE = "done"
"""Mark of a file that was read to its end; else a mark is the number of pieces claimed."""

_T = TypeVar("_T")


@dataclass
class Progress:
    """How far an :func:`ingest` is.

    files_done     files read to their end
    files_known    files left out as an earlier run has taken them in
    files_binary   files left out as they hold no text
    tokens         tokens learned
    bytes_done, bytes_total  of all files as they lie on disk, those of earlier runs included
    problems       what could not be read, a sentence each
    """

    bytes_total: int
    bytes_done: int = 0
    files_done: int = 0
    files_known: int = 0
    files_binary: int = 0
    tokens: int = 0
    problems: list[str] = field(default_factory=list)


@dataclass
class _Batch:
    """Pieces to learn together, the marks that claim them, and the progress once they are learned."""

    texts: list[str] = field(default_factory=list)
    runs: list[Ints] = field(default_factory=list)
    marks: dict[str, str] = field(default_factory=dict)
    characters: int = 0
    bytes_done: int = 0
    files_done: int = 0


def ingest(
    store: NgramStore,
    tokenizer: Tokenizer,
    files: Sequence[SourceFile],
    *,
    text_field: str,
    again: bool = False,
    report: Callable[[Progress], None],
    stopping: Callable[[], bool],
) -> Progress:
    """Learn the files' texts; ``report`` is called after each batch, ``stopping`` asked before each.

    A file that an earlier run has learned is left out, one that it began is read on behind its mark; ``again`` counts
    them once more from their beginning. The next batch is read and tokenised while one is learned.

    Raises:
        StoreUnavailableError: the server cannot be reached or refuses; the batch in hand may be missing in part.
    """
    sizes = _sizes(files)
    progress = Progress(bytes_total=sum(sizes))
    known = {} if again else store.read_marks()
    for batch in _ahead(_tokenised(_batches(files, sizes, known, text_field, progress), tokenizer)):
        if stopping():
            break
        if batch.marks:
            store.write_marks(batch.marks)
        if batch.runs:
            store.learn(batch.runs)
        progress.tokens += sum(map(len, batch.runs))
        progress.bytes_done = batch.bytes_done
        progress.files_done += batch.files_done
        report(progress)
    return progress


def _sizes(files: Sequence[SourceFile]) -> list[int]:
    return [file.path.stat().st_size for file in files]


def _batches(
    files: Sequence[SourceFile], sizes: Sequence[int], known: Mapping[str, str], text_field: str, progress: Progress
) -> Iterator[_Batch]:
    batch = _Batch()
    for file, before, size in zip(files, np.cumsum([0, *sizes]).tolist(), sizes, strict=False):
        try:
            if file.is_binary:
                if file.named:
                    raise InputError(f"{file.path}: not text; leave it out, or name text, .jsonl or .parquet files")
                progress.files_binary += 1
                continue
            identity = file.identity(text_field)
            mark = known.get(identity, "0")
            if mark == DONE:
                progress.files_known += 1
                continue
            reader = Reader(file, text_field)
            for number, text in enumerate(reader, start=1):
                if number <= int(mark):
                    continue
                batch.texts.append(text)
                batch.characters += len(text)
                batch.marks[identity] = str(number)
                batch.bytes_done = before + min(reader.position, size)
                if batch.characters >= BATCH_CHARACTERS:
                    yield batch
                    batch = _Batch()
            progress.problems += reader.bad
            batch.marks[identity] = DONE
            batch.files_done += 1
        except InputError as error:
            progress.problems.append(str(error))
        except OSError as error:
            progress.problems.append(f"{file.path}: cannot be read ({error.strerror}); correct it, or leave it out")
        batch.bytes_done = before + size
    batch.bytes_done = sum(sizes)
    yield batch


def _tokenised(batches: Iterator[_Batch], tokenizer: Tokenizer) -> Iterator[_Batch]:
    for batch in batches:
        # the library encodes the texts on threads of its own, one for each processor, without Python's lock
        encoded = tokenizer.encode_batch_fast(batch.texts, add_special_tokens=False)
        batch.runs = [np.array(one.ids, np.int32) for one in encoded if one.ids]
        batch.texts.clear()
        yield batch


def _ahead(items: Iterator[_T]) -> Iterator[_T]:
    """The same items, the next one being made in a thread while the caller works on one."""
    with ThreadPoolExecutor(1) as pool:
        future = pool.submit(next, items, None)
        while (item := future.result()) is not None:
            future = pool.submit(next, items, None)
            yield item
