"""The inputs' chunks as a dataset: one block each, read when a worker is about to want it."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from dataclasses import dataclass

import pyarrow as pa
from ray.data import Datasource, ReadTask
from ray.data.block import BlockMetadata

from deployments.batch.plan import Chunk, InputFile


@dataclass(frozen=True)
class Task:
    """A chunk of which only some requests are wanted; None: all of them."""

    chunk: Chunk
    wanted: tuple[int, ...] | None = None


class ChunkSource(Datasource):  # type: ignore[misc]  # untyped
    """Blocks of one row: ``task``, a pickled :class:`Task`, and ``data``, the chunk's bytes, or ``error``."""

    def __init__(self, files: tuple[InputFile, ...], tasks: list[Task]) -> None:
        super().__init__()
        self._files, self._tasks = files, tasks

    def get_name(self) -> str:
        """For Ray's messages."""
        return "Requests"

    def estimate_inmemory_data_size(self) -> int:
        """Bytes of all chunks."""
        return sum(task.chunk.bytes for task in self._tasks)

    @property
    def supports_distributed_reads(self) -> bool:
        """Files of this machine are read on it."""
        return not any(file.place.local for file in self._files)

    def get_read_tasks(self, parallelism: int, per_task_row_limit: int | None = None, **_: object) -> list[ReadTask]:
        """One for each chunk, however many are asked for."""
        return [self._read_task(task) for task in self._tasks]

    def _read_task(self, task: Task) -> ReadTask:
        file = self._files[task.chunk.file]
        metadata = BlockMetadata(num_rows=1, size_bytes=task.chunk.bytes, input_files=None, exec_stats=None)
        return ReadTask(lambda: _read(task, file), metadata)


def _read(task: Task, file: InputFile) -> Iterator[pa.Table]:
    data, error = b"", ""
    try:
        with file.place.filesystem.open_input_file(file.place.path) as stream:
            stream.seek(task.chunk.offset)
            data = bytes(stream.read(task.chunk.bytes))
        if len(data) != task.chunk.bytes:
            error = "the file has become shorter"
    except OSError as failed:
        error = str(failed)
    yield pa.table({"task": [pickle.dumps(task)], "data": [data], "error": [error]})
