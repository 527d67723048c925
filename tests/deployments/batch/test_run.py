"""Runs on a real Ray cluster of several nodes whose workers, nodes and drivers are killed: each line has one record."""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow
import pytest
from pyarrow import csv, parquet

from deployments.batch.engine import EngineAnswerer, EngineSpec
from deployments.batch.journal import Journal
from deployments.batch.locations import Location
from deployments.batch.outputs import Outputs
from deployments.batch.plan import Plan
from deployments.batch.run import Pool, Run
from deployments.batch.worker import WorkerSettings
from deployments.commands.serve import RAY_ENVIRONMENT
from tests.datastore.servers import Server, free_ports
from tests.deployments.batch.fake import FakeAnswerer, FakeSpec
from tests.deployments.batch.helpers import batch_line, journal_of, plan_of, records, text_of, write_lines
from tests.deployments.local import wait_until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]


@pytest.fixture(scope="module")
def cluster(bucket: str) -> Iterator[Any]:
    """A head, and two nodes with a place for a worker each, whose environment has the bucket's credentials."""
    import ray
    from ray.cluster_utils import Cluster

    with pytest.MonkeyPatch.context() as patch:
        for name, value in RAY_ENVIRONMENT.items():
            patch.setenv(name, value)
        made = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
        try:
            for _ in range(2):
                made.add_node(num_cpus=1, resources={"place": 1})
            ray.init(address=made.address, log_to_driver=False, logging_level="ERROR")
            yield made
        finally:
            ray.shutdown()
            made.shutdown()


def start(plan: Plan, journal: Journal, spec: FakeSpec, workers: int = 2, lines: int = 8) -> Run:
    settings = WorkerSettings(plan.files, FakeAnswerer, spec)
    pool = Pool(workers, workers, num_cpus=0.1, resources={"place": 1}, in_flight=spec.in_flight)
    return Run(plan, journal, pool, settings, lines)


def finished(output: Path, journal: Journal) -> list[dict[str, Any]]:
    """All records, once the run is over."""
    outputs = Outputs(str(output))
    outputs.finish(journal, {}, ordered=True)
    return records(output) + records(output.with_suffix(".errors.jsonl"))


def once_each(found: list[dict[str, Any]], ids: list[str]) -> bool:
    return Counter(record["custom_id"] for record in found) == Counter(ids)


def test_each_line_has_one_record(cluster: Any, tmp_path: Path) -> None:  # faults 33 and 34
    lines: list[Any] = [batch_line(f"r{i}", f"prompt {i}") for i in range(1000)]
    lines[500:500] = [
        batch_line("long", "refuse"),
        [1, 2],
        batch_line("r7", "again"),
        batch_line("bad", "x") | {"url": "/v2"},
    ]
    plan = plan_of(write_lines(tmp_path / "in.jsonl", lines), lines=64)
    journal = journal_of(tmp_path / "out.jsonl", plan)
    start(plan, journal, FakeSpec(), lines=64).execute()
    outputs = Outputs(str(tmp_path / "out.jsonl"))
    outputs.finish(journal, {}, ordered=True)
    answered, failed = records(tmp_path / "out.jsonl"), records(tmp_path / "out.errors.jsonl")
    assert [record["custom_id"] for record in answered] == [f"r{i}" for i in range(1000)]
    assert all(text_of(record) == f"prompt {i}"[::-1] for i, record in enumerate(answered))
    assert [(record["custom_id"], (record["error"] or {}).get("code")) for record in failed] == [
        ("long", None),
        (None, "invalid_json_line"),
        ("r7", "duplicate_custom_id"),
        ("bad", "invalid_url"),
    ]
    assert failed[0]["response"]["status_code"] == 400
    assert journal.totals.mat == 2.25 and journal.totals.tally.completion_tokens == 10_000
    assert not outputs.parts.exists()


def test_poison_takes_only_itself_along(cluster: Any, tmp_path: Path) -> None:
    poison = {20: "die", 40: "dead", 60: "bug"}
    prompts = {f"r{i}": poison.get(i, f"prompt {i}") for i in range(64)}
    plan = plan_of(write_lines(tmp_path / "in.jsonl", [batch_line(*one) for one in prompts.items()]), lines=16)
    journal = journal_of(tmp_path / "out.jsonl", plan)
    start(plan, journal, FakeSpec(), lines=16).execute()
    found = finished(tmp_path / "out.jsonl", journal)
    assert once_each(found, list(prompts))
    lost = {record["custom_id"]: record["error"]["code"] for record in found if record["error"]}
    assert lost == {"r20": "worker_lost", "r40": "worker_lost", "r60": "internal_error"}


def under_way(tmp_path: Path, ids: list[str], delay_s: float, log: Path) -> tuple[Plan, Journal, Run, threading.Thread]:
    """A run in a thread over one line for each id, each noted in ``log`` when it is answered."""
    plan = plan_of(write_lines(tmp_path / "in.jsonl", [batch_line(name, name) for name in ids]))
    journal = journal_of(tmp_path / "out.jsonl", plan)
    run = start(plan, journal, FakeSpec(delay_s=delay_s, log=str(log)))
    thread = threading.Thread(target=run.execute)
    thread.start()
    return plan, journal, run, thread


def test_worker_and_node_lost_in_the_middle(cluster: Any, tmp_path: Path) -> None:
    ids, log = [f"r{i}" for i in range(400)], tmp_path / "log"
    _, journal, _, thread = under_way(tmp_path, ids, delay_s=0.6, log=log)
    wait_until(lambda: len(workers_in(log)) == 2 and len(lines_of(log)) > 40, "both work", 60)
    os.kill(int(lines_of(log)[-1].split()[0]), signal.SIGKILL)
    wait_until(lambda: len(workers_in(log)) == 3, "there is a new one", 60)
    cluster.remove_node(cluster.worker_nodes.copy().pop(), allow_graceful=False)
    cluster.add_node(num_cpus=1, resources={"place": 1})
    thread.join(120)
    assert not thread.is_alive()
    found = finished(tmp_path / "out.jsonl", journal)
    assert once_each(found, ids) and not any(record["error"] for record in found)


def test_workers_are_added_while_there_is_work(cluster: Any, tmp_path: Path) -> None:
    ids, log = [f"r{i}" for i in range(600)], tmp_path / "log"
    plan = plan_of(write_lines(tmp_path / "in.jsonl", [batch_line(name, name) for name in ids]))
    journal = journal_of(tmp_path / "out.jsonl", plan)
    spec = FakeSpec(delay_s=0.5, log=str(log))
    pool = Pool(1, 2, num_cpus=0.1, resources={"place": 1}, in_flight=spec.in_flight)
    Run(plan, journal, pool, WorkerSettings(plan.files, FakeAnswerer, spec), 8).execute()
    assert len(workers_in(log)) == 2, "there was one worker all the time"
    assert once_each(finished(tmp_path / "out.jsonl", journal), ids)


def test_tables_are_answered_by_column(cluster: Any, tmp_path: Path) -> None:
    for name, write in (("a.parquet", parquet.write_table), ("b.csv", csv.write_csv)):
        write(pyarrow.table({"id": [1, 2], "prompt": [f"{name} 1", f"{name} 2"]}), str(tmp_path / name))
    (tables := tmp_path / "tables").mkdir()
    plan = plan_of(tmp_path / "a.parquet", tmp_path / "b.csv", column="prompt", folder=tables)
    journal = journal_of(tmp_path / "out.jsonl", plan)
    start(plan, journal, FakeSpec()).execute()
    found = finished(tmp_path / "out.jsonl", journal)
    assert [text_of(record)[::-1] for record in found] == ["a.parquet 1", "a.parquet 2", "b.csv 1", "b.csv 2"]


def test_what_one_worker_says_drafts_for_the_other(cluster: Any, tmp_path: Path, tiny_folder: Path) -> None:
    """Two engines, each in a process of its own, over one store: the second repeats what the first has said."""
    import ray

    (server,) = [Server(tmp_path / "redis", port) for port in free_ports(1)]
    server.start()
    try:
        # In float32: heads of 16 are attended by torch, whose bfloat16 rounds a row by the others that are there.
        engine = {"model": str(tiny_folder), "dtype": "float32", "prior": False, "compile": False, "budget": 4}
        engine["source_deadline_ms"] = 1000
        models = [{"name": "demo", "engine": engine, "num_cpus": 0.1, "threads": 1}]
        spec = EngineSpec({"models": models, "store": {"url": server.url}}, "demo")
        worker = ray.remote(num_cpus=0.1, resources={"place": 1})(EngineAnswerer)
        workers = [worker.remote(spec) for _ in range(2)]
        line = batch_line("one", "abc", max_tokens=200, ignore_eos=True, temperature=0)
        reading = plan_of(write_lines(tmp_path / "in.jsonl", [line])).files[0].reading
        item = reading.read(json.dumps(line).encode(), 1)
        said = []
        for each in workers:
            result = ray.get(each.answer.remote(item), timeout=120)
            said.append((text_of(json.loads(result.record)), result.tally))
            with server.client() as client:
                wait_until(lambda: client.dbsize() > 0, "what was said is in the store", 30)
            time.sleep(1)  # until it is there in whole
        (text, alone), (again, helped) = said
        assert text == again and alone.accepted.get("store", 0) == 0
        assert helped.accepted["store"] > 50 and helped.steps < alone.steps, said
        for each in workers:
            ray.kill(each)
    finally:
        server.kill()


def test_stop_finishes_what_is_under_way(cluster: Any, tmp_path: Path) -> None:
    ids, log = [f"r{i}" for i in range(400)], tmp_path / "log"
    plan, _, run, thread = under_way(tmp_path, ids, delay_s=0.4, log=log)
    wait_until(lambda: len(lines_of(log)) > 20, "some are answered", 60)
    run.stop()
    thread.join(60)
    assert not thread.is_alive()
    answered = len(lines_of(log))
    assert 20 < answered < 400
    resumed = journal_of(tmp_path / "out.jsonl", plan)
    assert int(resumed.done.sum()) == answered  # nothing that was answered is lost
    start(plan, resumed, FakeSpec(log=str(log))).execute()
    assert len(lines_of(log)) == 400  # and nothing is answered twice
    assert once_each(finished(tmp_path / "out.jsonl", resumed), ids)


def test_from_an_object_store_and_back(cluster: Any, bucket: str, tmp_path: Path) -> None:
    """Read by the workers, interrupted and resumed, without a local file."""
    ids, log = [f"r{i}" for i in range(200)], tmp_path / "log"
    for name, part in (("a", ids[:120]), ("b", ids[120:])):
        lines = "".join(json.dumps(batch_line(one, one)) + "\n" for one in part)
        Location.of(bucket.format(f"run/{name}.jsonl")).write(lines.encode())
    plan = plan_of(bucket.format("run/*.jsonl"))
    outputs = Outputs(bucket.format("done/answers.jsonl"))
    with outputs.opened({}, plan.requests, resume=False, overwrite=False) as journal:
        assert journal is not None
        run = start(plan, journal, FakeSpec(delay_s=0.4, log=str(log)))
        thread = threading.Thread(target=run.execute)
        thread.start()
        wait_until(lambda: len(lines_of(log)) > 20, "some are answered", 60)
        run.stop()
        thread.join(60)
    assert not outputs.answers.exists() and 20 < len(lines_of(log)) < len(ids)
    with outputs.opened({}, plan.requests, resume=True, overwrite=False) as journal:
        assert journal is not None
        start(plan, journal, FakeSpec(log=str(log))).execute()
        outputs.finish(journal, {"job": {}}, ordered=True)
    found = [json.loads(line) for line in outputs.answers.read().splitlines()]
    assert [record["custom_id"] for record in found] == ids and len(lines_of(log)) == len(ids)
    assert [text_of(record)[::-1] for record in found] == ids


def workers_in(log: Path) -> set[str]:
    """The processes that have answered."""
    return {line.split()[0] for line in lines_of(log)}


def lines_of(path: Path) -> list[str]:
    return path.read_text().splitlines() if path.exists() else []
