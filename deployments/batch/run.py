"""A run: passes over the requests that have no record yet, on Ray Data, until every one has its record."""

from __future__ import annotations

import logging
import math
import queue
import threading
import time
import warnings
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import ray

from deployments.batch.answers import refused
from deployments.batch.coordinator import Coordinator
from deployments.batch.journal import Journal, table_of
from deployments.batch.plan import Plan, custom_id_of, lines_of
from deployments.batch.requests import LineError
from deployments.batch.source import ChunkSource, Task
from deployments.batch.worker import BatchWorker, WorkerSettings
from deployments.errors import DeploymentError

_SHRINK = 16
_RETRIES = 1
_TASKS = 2  # for each worker at least, where the input is small
_POLL_S = 0.5
_BLOCKS = 8


@dataclass(frozen=True)
class Pool:
    """Workers: from ``smallest`` to ``largest``, and what Ray reserves for each.

    in_flight    requests that a worker has under way
    environment  variables of its process
    """

    smallest: int = 1
    largest: int = 1
    num_cpus: float = 1.0
    num_gpus: float = 0.0
    resources: dict[str, float] = field(default_factory=dict)
    in_flight: int = 64
    environment: dict[str, str] = field(default_factory=dict)


class Run:
    """Answers all requests of a plan that the journal has no record of."""

    def __init__(self, plan: Plan, journal: Journal, pool: Pool, worker: WorkerSettings, lines: int) -> None:
        self._plan, self._journal, self._pool, self._worker = plan, journal, pool, worker
        self._lines = lines
        self._stop, self._ended = threading.Event(), threading.Event()
        self._given: Counter[str] = Counter()
        self._failure: DeploymentError | None = None
        node = {"ray.io/node-id": ray.get_runtime_context().get_node_id()}
        self._coordinator = ray.remote(Coordinator).options(num_cpus=0, label_selector=node).remote()
        self._started_s = time.monotonic()

    def stop(self) -> None:
        """Finish what is under way and begin nothing more. From any thread, also a signal's handler."""
        self._stop.set()

    @property
    def stopped(self) -> bool:
        """It was told to stop."""
        return self._stop.is_set()

    def execute(self) -> None:
        """Return when every request has its record, or when stopped.

        A chunk whose workers die under it twice is tried again in smaller ones, down to single requests, at last one at
        a time: one that then still takes its worker along gets an error record.

        Raises:
            DeploymentError: the cluster or an input fails; what is done is in the journal.
        """
        watcher = threading.Thread(target=self._watch, name="batch-watch", daemon=True)
        watcher.start()
        missing = int(np.count_nonzero(~self._journal.done))
        size, alone = min(self._lines, math.ceil(missing / (_TASKS * self._pool.largest))), False
        try:
            while not self.stopped:
                self._pass(size, alone=alone)
                if self._journal.done.all() or self.stopped:
                    break
                if alone:
                    self._give_up()
                    break
                size, alone = max(1, size // _SHRINK), size == 1
        except ray.exceptions.RayError as error:  # of what is asked of the cluster beside the dataset
            raise _failed(error) from error
        finally:
            self._note_spent()
            self._journal.flush()
            self._ended.set()
            watcher.join()

    # --- a pass

    def _pass(self, size: int, *, alone: bool) -> None:
        dataset = self._dataset(list(self._tasks(size)), size, alone=alone)
        blocks: queue.Queue[Any] = queue.Queue(_BLOCKS)
        threading.Thread(target=_pump, args=(dataset, blocks), name="batch-pump", daemon=True).start()
        while not (self.stopped and self._at_rest()):
            if self._failure is not None:
                raise self._failure
            with suppress(queue.Empty):
                block = blocks.get(timeout=_POLL_S)
                if block is None:
                    return
                if isinstance(block, Exception):
                    raise _failed(block) from block
                for row in block.to_pylist():
                    self._take(row)

    def _tasks(self, size: int) -> Iterator[Task]:
        """What is left, in chunks of at most ``size`` requests."""
        done = self._journal.done
        for chunk in self._plan.chunks:
            missing = np.flatnonzero(~done[chunk.first : chunk.first + chunk.count]) + chunk.first
            if len(missing) == chunk.count and size >= chunk.count:
                yield Task(chunk)
                continue
            for start in range(0, len(missing), size):
                yield Task(chunk, tuple(missing[start : start + size].tolist()))

    def _dataset(self, tasks: list[Task], size: int, *, alone: bool) -> Any:
        pool = self._pool
        context = ray.data.DataContext.get_current()
        context.enable_progress_bars = context.print_on_execution_start = False
        context.enable_auto_log_stats = False
        context.target_max_block_size = 1  # a row is a pack of records: each goes on its way at once
        context.max_errored_blocks = -1  # what is lost with a worker is missing at the end, and done in the next pass
        for name in ("ray.data", "ray.data._internal"):
            logging.getLogger(name).setLevel(logging.CRITICAL)
        at_once = 1 if alone else max(2, math.ceil(pool.in_flight / size) + 1)
        warnings.filterwarnings("ignore", module=r"ray\.data|deployments\.batch\.run")  # of settings nobody here made
        source = ChunkSource(self._plan.files, tasks)
        read = ray.data.read_datasource(source, override_num_blocks=len(tasks), num_cpus=0, concurrency=2)
        return read.map_batches(
            BatchWorker,
            batch_size=1,
            fn_constructor_args=(self._worker, self._coordinator),
            compute=ray.data.ActorPoolStrategy(
                min_size=pool.smallest,
                max_size=pool.largest,
                max_tasks_in_flight_per_actor=1 if alone else 2 * at_once,
                max_concurrent_calls_per_actor=at_once,
                enable_true_multi_threading=True,
            ),
            num_cpus=pool.num_cpus,
            num_gpus=pool.num_gpus,
            resources=pool.resources or None,
            runtime_env={"env_vars": pool.environment},
            max_task_retries=_RETRIES,
        )

    def _take(self, row: dict[str, Any]) -> None:
        if row["error"]:
            raise DeploymentError(f"an input cannot be read any more ({row['error']})")
        if row["records"]:
            table = pa.ipc.open_stream(row["records"]).read_all()
            self._given[row["worker"]] += table.num_rows
            self._journal.add(table)

    def _give_up(self) -> None:
        """Error records for requests that end the worker that answers them."""
        for task in self._tasks(1):
            file = self._plan.files[task.chunk.file]
            for request, line, raw in lines_of(task.chunk, file):
                if task.wanted is None or request in task.wanted:
                    told = LineError("worker_lost", "the worker that answers this request dies each time")
                    told.custom_id = custom_id_of(file.reading, raw, line)
                    self._journal.add(table_of([(request, refused(told, f"{file.source}:{line}"))]))

    # --- meanwhile

    def _watch(self) -> None:
        """Keep the journal on disk; hand a stop on to the workers."""
        told = False
        while not self._ended.wait(_POLL_S):
            self._note_spent()
            try:
                self._journal.flush_if_due()
            except DeploymentError as error:
                self._failure = error
                return
            if self.stopped and not told:
                with suppress(ray.exceptions.RayError):  # tried again
                    ray.get(self._coordinator.stop.remote(), timeout=5)
                    told = True

    def _note_spent(self) -> None:
        elapsed_s = time.monotonic() - self._started_s
        try:
            replica_s = ray.get(self._coordinator.replica_s.remote(), timeout=5)
        except ray.exceptions.RayError:
            return
        self._journal.spent = {"elapsed_s": elapsed_s, "replica_s": replica_s}

    def _at_rest(self) -> bool:
        """All workers have given away what they had under way, and it has arrived."""
        at_rest = ray.get(self._coordinator.at_rest.remote())
        return at_rest is not None and all(self._given[name] >= given for name, given in at_rest.items())


def _pump(dataset: Any, blocks: queue.Queue[Any]) -> None:
    """Hand blocks over, an error or None as the last one: the main thread must be free for signals."""
    try:
        for block in dataset.iter_batches(batch_size=None, batch_format="pyarrow", prefetch_batches=0):
            blocks.put(block)
        blocks.put(None)
    except Exception as error:
        blocks.put(error)


def _failed(error: Exception) -> DeploymentError:
    return DeploymentError(f"the run fails ({_reason(error)}); what is done is kept: mend it, then --resume")


def _reason(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    told = [line for line in lines if "Error" in line]
    return (told[-1] if told else lines[0] if lines else type(error).__name__)[:300]
