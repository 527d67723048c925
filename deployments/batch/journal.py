"""The records of a run until all are there: small files beside the output, each whole or not there at all.

``OUTPUT.parts/`` holds ``job.json`` (of what run they are) and ``part-RUN-NUMBER.parquet`` (records and what their
answers took). Once the output is complete ``job.json`` is deleted, then the rest. One process writes it: each request's
first record is kept, later ones are dropped, so that a request answered twice has one record all the same.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow import fs as pafs

from deployments.batch.answers import SOURCES, Result, Tally
from deployments.batch.locations import Location, short
from deployments.batch.merging import in_order, in_turn
from deployments.errors import ConfigError, DeploymentError

SCHEMA = pa.schema(
    [
        ("request", pa.int64()),
        ("failed", pa.bool_()),
        ("record", pa.large_binary()),
        ("prompt_tokens", pa.int64()),
        ("completion_tokens", pa.int64()),
        ("steps", pa.int64()),
        ("decided", pa.int64()),
        *((source, pa.int64()) for source in SOURCES),
    ]
)
"""Columns of a table of records: ``request`` is its index over all inputs, the numbers are :class:`Tally`'s."""

_COUNTS = SCHEMA.names[3:]
_FLUSH_S = 2.0
_FLUSH_BYTES = 16 << 20


def table_of(results: list[tuple[int, Result]]) -> pa.Table:
    """Records with the indices of their requests, as a table."""
    columns: dict[str, list[Any]] = {name: [] for name in SCHEMA.names}
    for request, result in results:
        tally = result.tally
        counts = (tally.prompt_tokens, tally.completion_tokens, tally.steps, tally.decided)
        row = (request, result.failed, result.record, *counts, *(tally.accepted[source] for source in SOURCES))
        for name, value in zip(SCHEMA.names, row, strict=True):
            columns[name].append(value)
    return pa.table(columns, schema=SCHEMA)


class Totals:
    """What records sum up to."""

    def __init__(self) -> None:
        self.requests = self.errors = 0
        self.tally = Tally()

    def add(self, table: pa.Table) -> None:
        """Count a table's records."""
        self.requests += table.num_rows
        self.errors += int(np.count_nonzero(table.column("failed").to_numpy()))
        sums = {name: int(table.column(name).to_numpy().sum()) for name in _COUNTS}
        tally = self.tally
        tally.prompt_tokens += sums["prompt_tokens"]
        tally.completion_tokens += sums["completion_tokens"]
        tally.steps += sums["steps"]
        tally.decided += sums["decided"]
        for source in SOURCES:
            tally.accepted[source] += sums[source]

    @property
    def mat(self) -> float | None:
        """Mean accepted tokens; None where no step was taken."""
        return self.tally.decided / self.tally.steps if self.tally.steps else None


class Journal:
    """Takes in records. What :meth:`flush` has written outlives whatever happens to this process.

    ``done``: for each request whether it has a record. ``earlier``: seconds that earlier runs took, and their workers.
    """

    def __init__(self, folder: Location, requests: int) -> None:
        self.folder = folder
        self.done = np.zeros(requests, dtype=bool)
        self.totals = Totals()
        self.earlier = {"elapsed_s": 0.0, "replica_s": 0.0}
        self.spent = {"elapsed_s": 0.0, "replica_s": 0.0}
        self._waiting: list[pa.Table] = []
        self._lock = threading.Lock()
        self._flushed_s = time.monotonic()
        self._run = self._part = 0

    # --- beginning

    def begin(self, job: dict[str, Any]) -> None:
        """Make the folder. Raises OSError where that cannot be done."""
        self.folder.filesystem.create_dir(self.folder.path)
        self.folder.child("job.json").write(json.dumps(job, indent=1).encode())

    def job(self) -> dict[str, Any] | None:
        """What the folder says of the run it belongs to; None where there is no folder."""
        place = self.folder.child("job.json")
        return json.loads(place.read()) if place.exists() else None

    def resume(self) -> None:
        """Read what earlier runs have finished. A part that cannot be read is as if it were not there."""
        spent: dict[str, dict[str, float]] = {}
        for part in self.parts():
            self._run = max(self._run, int(part.name.split("-")[1]) + 1)
            with suppress(OSError, pa.ArrowException):
                table = _read(part, [name for name in SCHEMA.names if name != "record"])
                self._mark(self._fresh(table))
                told = json.loads((table.schema.metadata or {}).get(b"spent", b"{}"))
                run = spent.setdefault(part.name.split("-")[1], {})
                for name, value in told.items():
                    run[name] = max(value, run.get(name, 0.0))
        for run in spent.values():
            for name, value in run.items():
                self.earlier[name] += value

    # --- taking in

    def add(self, table: pa.Table) -> int:
        """Keep the records of requests that have none yet; how many those were."""
        with self._lock:
            table = self._fresh(table)
            self._mark(table)
            if table.num_rows:
                self._waiting.append(table)
        if sum(waiting.nbytes for waiting in self._waiting) >= _FLUSH_BYTES:
            self.flush()
        return int(table.num_rows)

    def _fresh(self, table: pa.Table) -> pa.Table:
        """Without the requests that have a record, or an earlier one in this table."""
        requests = table.column("request").to_numpy()
        fresh = np.zeros(len(requests), dtype=bool)
        fresh[np.unique(requests, return_index=True)[1]] = True
        fresh &= ~self.done[requests]
        return table if fresh.all() else table.filter(pa.array(fresh))

    def _mark(self, table: pa.Table) -> None:
        self.done[table.column("request").to_numpy()] = True
        self.totals.add(table)

    def flush_if_due(self) -> None:
        """Flush, if the last time was a while ago. From any thread."""
        if time.monotonic() - self._flushed_s >= _FLUSH_S:
            self.flush()

    def flush(self) -> None:
        """Write what waits as one more part. Raises DeploymentError: that cannot be done."""
        with self._lock:
            self._flushed_s = time.monotonic()
            if not self._waiting:
                return
            table = pa.concat_tables(self._waiting).sort_by("request")
            known = {"spent": json.dumps(self.spent), "first": str(table.column("request")[0].as_py())}
            part = self.folder.child(f"part-{self._run:03d}-{self._part:07d}.parquet")
            try:
                with part.writing() as stream:
                    pq.write_table(table.replace_schema_metadata(known), stream, compression="zstd")
            except (OSError, pa.ArrowException) as error:
                raise DeploymentError(
                    f"{part.text}: cannot be written ({short(error)}); what was written before is kept: "
                    "mend it, then --resume"
                ) from error
            self._part += 1
            self._waiting = []

    # --- ending

    def parts(self) -> list[Location]:
        """The parts, in the order in which they were written."""
        entries = self.folder.filesystem.get_file_info(pafs.FileSelector(self.folder.path, allow_not_found=True))
        names = sorted(entry.base_name for entry in entries)
        return [self.folder.child(name) for name in names if name.startswith("part-") and name.endswith(".parquet")]

    def records(self, *, ordered: bool) -> Iterator[tuple[bool, bytes]]:
        """Each record and whether it failed; ``ordered``: as the inputs stand, else as they were finished.

        Raises:
            DeploymentError: at the end, if requests that are done had no record in the parts that could be read.
        """
        written = np.zeros(len(self.done), dtype=bool)  # two runs may have written, if both thought to be the only one
        for request, failed, record in in_order(self.parts()) if ordered else in_turn(self.parts()):
            if not written[request]:
                written[request] = True
                yield failed, record
        if missing := int(np.count_nonzero(self.done & ~written)):
            raise DeploymentError(
                f"{self.folder.text}: of {len(written)} records {missing} cannot be read again; nothing was deleted: "
                "mend it, then --resume"
            )

    def discard(self) -> None:
        """Delete the folder, whose output is complete or not wanted."""
        if self.folder.exists():
            self.folder.filesystem.delete_dir(self.folder.path)


def _read(part: Location, columns: list[str]) -> pa.Table:
    with part.filesystem.open_input_file(part.path) as stream:
        return pq.read_table(stream, columns=columns)


def check_same(kept: dict[str, Any], now: dict[str, Any], folder: Location) -> None:
    """Raise ConfigError if what is to be resumed was begun as something else; names the first difference."""
    for name in {**kept, **now}:
        if kept.get(name) != now.get(name):
            told = (
                "the inputs hold something else now"
                if name == "inputs"
                else (f"{name} was {json.dumps(kept.get(name))} and is {json.dumps(now.get(name))}")
            )
            raise ConfigError(
                f"--resume: {folder.text} was begun otherwise: {told}; give what was given then, or --overwrite"
            )
