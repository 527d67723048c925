"""Errors on the way of a batch: each is told or becomes a record, and what is done is not lost."""

from __future__ import annotations

import asyncio
import json
import multiprocessing
import os
import signal
import threading
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
import ray

from deployments.batch import run
from deployments.batch.answers import Result
from deployments.batch.batch_run import BatchRun
from deployments.batch.journal import Journal, table_of
from deployments.batch.locations import Location
from deployments.batch.outputs import Outputs
from deployments.batch.records import RecordFile
from deployments.batch.shelf import Json, Shelf, new_batch
from deployments.config import AppConfig
from deployments.errors import ConfigError, DeploymentError
from deployments.keys import KeyRing, owner_of
from tests.deployments.batch.helpers import batch_line, records, write_lines
from tests.deployments.local import wait_until

# --- while parts become the output


def killed_while_finishing(output: Path, owner: type, name: str) -> None:
    """A process that has all records is killed when it is about to call ``owner.name`` for the first time."""

    def die(*args: object, **options: object) -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    outputs = Outputs(str(output))
    with outputs.opened({}, 2, resume=False, overwrite=False) as journal:
        assert journal is not None
        journal.add(table_of([(i, Result(f"record {i}".encode(), False)) for i in range(2)]))
        journal.flush()
        setattr(owner, name, die)
        outputs.finish(journal, {"job": {}}, ordered=True)


@pytest.mark.parametrize(
    ("owner", "name", "complete"),
    [
        (Journal, "records", False),  # when nothing of the output is there
        (Location, "write", False),  # answers are, the summary is not
        (Journal, "discard", True),  # all is, and parts as well
    ],
)
def test_killed_while_parts_become_the_output(tmp_path: Path, owner: type, name: str, complete: bool) -> None:
    output = tmp_path / "out.jsonl"
    process = multiprocessing.get_context("fork").Process(target=killed_while_finishing, args=(output, owner, name))
    process.start()
    process.join(60)
    assert process.exitcode == -signal.SIGKILL
    outputs = Outputs(str(output))
    with outputs.opened({}, 2, resume=True, overwrite=False) as journal:
        assert (journal is None) == complete
        if journal is not None:
            assert journal.done.all()
            outputs.finish(journal, {"job": {}}, ordered=True)
    assert output.read_bytes() == b"record 0\nrecord 1\n"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out.jsonl", "out.summary.json"]


def finish(outputs: Outputs) -> None:
    """As the command does after ``--resume``, when every request has its record."""
    with outputs.opened({}, 2, resume=True, overwrite=False) as journal:
        assert journal is not None
        for request in missing(journal.done):
            journal.add(table_of([(request, Result(f"record {request}".encode(), False))]))
            journal.flush()
        outputs.finish(journal, {"job": {}}, ordered=True)


def missing(done: Any) -> list[int]:
    return [request for request, there in enumerate(done) if not there]


def test_part_that_cannot_be_read_while_merging_is_not_deleted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    outputs, opened = Outputs(str(tmp_path / "out.jsonl")), list[Any]()
    part_file = pq.ParquetFile

    def once(stream: Any) -> Any:
        opened.append(stream)
        if len(opened) == 1:
            raise OSError("the network was away")
        return part_file(stream)

    with (
        monkeypatch.context() as patch,
        pytest.raises(DeploymentError, match=r"of 2 records 1 cannot be read.*--resume"),
    ):
        patch.setattr(pq, "ParquetFile", once)
        finish(outputs)
    assert [path.name for path in tmp_path.iterdir()] == ["out.jsonl.parts"]
    finish(outputs)
    assert (tmp_path / "out.jsonl").read_bytes() == b"record 0\nrecord 1\n" and not outputs.parts.exists()


def test_output_that_cannot_be_written_keeps_its_parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    outputs, write = Outputs(str(tmp_path / "out.jsonl")), Location.write

    def full(place: Location, data: bytes) -> None:
        if place == outputs.summary:
            raise OSError("No space left on device")
        write(place, data)

    with monkeypatch.context() as patch, pytest.raises(DeploymentError, match=r"No space left.*--resume") as wrong:
        patch.setattr(Location, "write", full)
        finish(outputs)
    assert not isinstance(wrong.value, ConfigError)
    finish(outputs)
    assert (tmp_path / "out.jsonl").read_bytes() == b"record 0\nrecord 1\n" and not outputs.parts.exists()


def test_stop_is_told_again_until_it_arrives(monkeypatch: pytest.MonkeyPatch) -> None:
    tried: list[object] = []

    def get(call: object, timeout: float) -> None:
        tried.append(call)
        if len(tried) < 3:
            raise ray.exceptions.GetTimeoutError

    monkeypatch.setattr(run, "_POLL_S", 0.001)
    monkeypatch.setattr(ray, "get", get)
    remote = SimpleNamespace(remote=lambda: "told")
    watched = run.Run.__new__(run.Run)
    flushed: list[int] = []
    told = {
        "_stop": threading.Event(),
        "_ended": threading.Event(),
        "_journal": SimpleNamespace(flush_if_due=lambda: flushed.append(len(tried))),
        "_coordinator": SimpleNamespace(stop=remote),
        "_note_spent": lambda: None,
    }
    for name, value in told.items():
        setattr(watched, name, value)
    watched.stop()
    thread = threading.Thread(target=watched._watch, daemon=True)
    thread.start()
    wait_until(lambda: flushed.count(3) > 3, "the watcher goes on")
    watched._ended.set()
    thread.join(5)
    assert tried == ["told"] * 3  # and not once more


def test_cluster_that_is_lost_while_stopping_is_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Workers are asked whether they are at rest; where nobody is there to say so, the run has failed."""

    def get(call: object, timeout: float | None = None) -> None:
        raise ray.exceptions.ActorDiedError

    monkeypatch.setattr(ray, "get", get)
    lost = run.Run.__new__(run.Run)
    flushed: list[int] = []
    told: dict[str, Any] = {
        "_stop": threading.Event(),
        "_ended": threading.Event(),
        "_lines": 8,
        "_pool": run.Pool(),
        "_journal": SimpleNamespace(done=np.zeros(3, bool), flush=lambda: flushed.append(1), flush_if_due=lambda: None),
        "_coordinator": SimpleNamespace(**dict.fromkeys(("stop", "at_rest", "replica_s"), SimpleNamespace(remote=str))),
        "_given": Counter(),
        "_started_s": 0.0,
        "_pass": lambda *_, **__: lost._at_rest(),
    }
    for name, value in told.items():
        setattr(lost, name, value)
    with pytest.raises(DeploymentError, match=r"^the run fails \(.*actor died.*\); what is done is kept.*--resume$"):
        lost.execute()
    assert flushed == [1]


# --- over HTTP


class Broken:
    """A backend with an error of ours."""

    def answer(self, model: str, call: object) -> Any:
        raise RuntimeError("an error of ours")


def execute(folder: Path, lines: int, total: int) -> Json:
    """Run a batch whose requests all meet that error; its state at the end."""
    shelf = Shelf(str(folder))
    write_lines(shelf.data("file-a"), [batch_line(f"r{i}", "x") for i in range(lines)])
    batch = new_batch({"input_file_id": "file-a"}, owner_of(None), "/v1/completions", 60, None)
    batch |= {"status": "in_progress", "request_counts": {"total": total, "completed": 0, "failed": 0}}
    shelf.save_batch(batch)
    config = AppConfig.model_validate({"batches": {"folder": str(folder), "max_in_flight": 2}})
    backend: Any = Broken()

    async def to_its_end() -> None:
        await BatchRun(config, KeyRing([]), lambda: backend, shelf, asyncio.Semaphore(2), batch).execute()

    try:
        asyncio.run(to_its_end())
    finally:
        (path,) = (folder / "batches").glob("*.json")
        found: Json = json.loads(path.read_text())
    return found


def test_errors_of_ours_are_records(tmp_path: Path) -> None:
    batch = execute(tmp_path, 20, 20)
    assert batch["status"] == "completed" and batch["request_counts"] == {"total": 20, "completed": 0, "failed": 20}
    failed = records(tmp_path / "files" / f"{batch['error_file_id']}.data")
    assert {record["custom_id"] for record in failed} == {f"r{i}" for i in range(20)}
    assert {record["error"]["code"] for record in failed} == {"internal_error"}


def test_a_batch_without_all_its_records_is_not_completed(tmp_path: Path) -> None:
    batch = execute(tmp_path, 3, 5)
    assert batch["status"] == "failed" and batch["output_file_id"] is None
    assert "2 of 5 requests have no record" in batch["errors"]["data"][0]["message"]
    assert len(list((tmp_path / "batches").glob("*.records"))) == 1  # what there is was kept


def test_folder_that_cannot_be_written_interrupts_a_batch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError("No space left on device")

    monkeypatch.setattr(RecordFile, "add", full)
    with pytest.raises(OSError, match="No space left"):
        execute(tmp_path, 20, 20)
    (path,) = (tmp_path / "batches").glob("*.json")
    assert json.loads(path.read_text())["status"] == "in_progress"  # it goes on later


def test_other_errors_end_a_batch_for_good(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> None:
        raise RuntimeError("an error of ours")

    monkeypatch.setattr(RecordFile, "add", broken)
    batch = execute(tmp_path, 20, 20)
    assert batch["status"] == "failed" and batch["errors"]["data"][0]["code"] == "internal_error"
