"""Sweeps: the order of runs, resuming, and servers that are started with a variant's settings."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any, Self

import pytest
import yaml

from datastore.keys import NAMESPACE
from loadtest.errors import UserError
from loadtest.grid import read_grid
from loadtest.runs import append_run, read_runs
from loadtest.servers import Key, RunningServer
from loadtest.sweep import Sweep, plan
from tests.deployments.local import wait_until
from tests.loadtest.commands import here, loadtest
from tests.loadtest.scripted import answer, scripted

CONFIG = {"models": [{"name": "m", "engine": {"model": "demo"}}], "store": {"url": "embedded:"}}
GRID: dict[str, Any] = {
    "servers": {"own": {"config": CONFIG}},
    "variants": [{"name": "plain", "drafts": False}, {"name": "racer", "drafts": "racer"}],
    "workloads": ["support"],
    "loads": [{"users": 1}, {"users": 2}],
    "repeats": 2,
    "run": {"duration_s": 1.0},
}


def grid(path: Path, **changes: Any) -> Path:
    path.write_text(yaml.safe_dump(GRID | changes))
    return path


def test_variants_take_turns_on_one_server(tmp_path: Path) -> None:
    ((_, runs),) = plan(read_grid(grid(tmp_path / "g.yaml")))
    order = [(run.repeat, run.load.users, run.variant.name) for run in runs]
    assert order == [
        (0, 1, "plain"), (0, 1, "racer"), (0, 2, "racer"), (0, 2, "plain"),
        (1, 1, "racer"), (1, 1, "plain"), (1, 2, "plain"), (1, 2, "racer"),
    ]  # fmt: skip


def test_settings_of_a_variant_make_the_server(tmp_path: Path) -> None:
    variants: list[dict[str, Any]] = [{"name": "plain", "drafts": "off"}]
    variants += [
        {"name": "r", "drafts": "racer", "budget": ["auto", 16], "store": [False, "cold", "warm"], "replicas": [1, 2]}
    ]
    blocks = plan(read_grid(grid(tmp_path / "g.yaml", variants=variants, repeats=1, loads=[{"users": 1}])))
    found = {}
    for instance, runs in blocks:
        args = json.loads(instance.args or "")
        model = args["models"][0]
        made = (model["engine"].get("budget"), args["store"]["url"], model.get("autoscaling", {}).get("max_replicas"))
        found[made] = [run.variant.name for run in runs]
    assert found == {
        (None, "embedded:", None): ["plain"],
        ("auto", None, 1): ["r auto off 1"],
        ("auto", None, 2): ["r auto off 2"],
        ("auto", "embedded:", 1): ["r auto cold 1", "r auto warm 1"],
        ("auto", "embedded:", 2): ["r auto cold 2", "r auto warm 2"],
        (16, None, 1): ["r 16 off 1"],
        (16, None, 2): ["r 16 off 2"],
        (16, "embedded:", 1): ["r 16 cold 1", "r 16 warm 1"],
        (16, "embedded:", 2): ["r 16 cold 2", "r 16 warm 2"],
    }


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"variants": [{"drafts": "fast"}]}, "variants.0.drafts"),
        ({"variants": [{"name": "a"}, {"name": "a"}]}, "called 'a'"),
        ({"variants": [{"name": "a", "server": "other"}]}, "one of own"),
        (
            {"servers": {"own": {"url": "http://x/v1"}}, "variants": [{"name": "a", "store": "warm"}]},
            "which the sweep starts",
        ),
        ({"servers": {"own": {"url": "http://x/v1", "config": {}}}}, "exactly one of"),
        ({"servers": {"own": {"url": "http://x/v1", "environment": {"A": "1"}}}}, "environment is for a server"),
        ({"servers": {"own": {"url": "http://x/v1", "ready_timeout_s": 9}}}, "ready_timeout_s is for a server"),
        (
            {"servers": GRID["servers"] | {"b": {"config": {}}}, "variants": [{"name": "a", "server": "own"}]},
            "no variant uses the server 'b'",
        ),
        ({"warm": {"users": 2}}, "no variant has store: warm"),
        ({"variants": [{"drafts": ["off", "racer"], "budget": 8}]}, "budget has no effect with drafts: off"),
        ({"variants": [{"drafts": "logits", "store": "warm"}]}, "store: warm has no effect with drafts: logits"),
        ({"run": {"think_s": 1.0}}, "have one turn"),
        ({"workloads": ["nothing.jsonl"]}, "cannot be read"),
        ({"run": {"seed": 1}}, "'seed' is the sweep's"),
        ({"run": {"duraton_s": 1}}, "duraton_s"),
        ({"baseline": "none"}, "is no variant"),
        ({"loads": [{"users": 1, "rate": 2.0}]}, "exactly one of users"),
        ({"workloads": ["a/x.jsonl", "b/x.jsonl"]}, "would be called"),
    ],
)
def test_wrong_grids_are_told(tmp_path: Path, changes: dict[str, Any], said: str) -> None:
    with pytest.raises(UserError, match=said):
        plan(read_grid(grid(tmp_path / "g.yaml", **changes)))


def test_a_sweep_goes_on_where_it_was_interrupted(tmp_path: Path) -> None:
    out = tmp_path / "out"
    with scripted(lambda number, body: answer(0.05, tokens=12 if body.get("drafts") == "racer" else 6)) as server:
        changes = {
            "servers": {"there": {"url": server.url}},
            "settle": 0,
            "repeats": 1,
            "loads": [{"users": 1}],
            "workloads": ["support", "summary"],
        }
        path = grid(tmp_path / "g.yaml", **changes, run={"duration_s": 0.5})
        command = [sys.executable, "-m", "loadtest", "sweep", str(path), "--output", str(out)]
        process = subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        wait_until(lambda: len(read_runs(out)) >= 1, "a run is recorded", 60)
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=30)
        before = read_runs(out)
        assert process.returncode == 130 and "the same command goes on" in said, said
        assert 1 <= len(before) < 4
        listed = here("sweep", str(path), "--output", str(out), "--dry-run").stdout
        assert listed.count("(done)") == len(before)
        done = loadtest("sweep", str(path), "--output", str(out))
    assert done.returncode == 0, done.stderr
    after = read_runs(out)
    assert after[: len(before)] == before and len(after) == 4 == len((out / "runs.jsonl").read_text().splitlines())
    first = {record["variant"]: record["settings"] for record in after if record["workload"] == "summary"}
    assert (first["plain"]["drafts"], first["racer"]["drafts"]) == ("off", "racer")
    assert first["plain"]["seed"] == first["racer"]["seed"]  # both variants get the same requests
    assert all((out / "samples" / record["id"] / "samples.jsonl").exists() for record in after)


def test_a_server_that_does_not_start_fails_its_runs_alone(tmp_path: Path) -> None:
    with scripted(lambda number, body: answer()) as server:
        broken = [sys.executable, "-c", "print('no port'); raise SystemExit(3)", "{port}"]
        servers = {"there": {"url": server.url}, "broken": {"command": broken, "kind": "openai"}}
        variants = [{"name": "plain", "server": "there"}, {"name": "peer", "server": "broken"}]
        changes = {"servers": servers, "variants": variants, "loads": [{"users": 1}], "repeats": 1, "settle": 0}
        path = grid(tmp_path / "g.yaml", **changes, run={"duration_s": 0.3})
        done = loadtest("sweep", str(path), "--output", str(tmp_path / "out"))
    assert done.returncode == 1
    records = {record["variant"]: record for record in read_runs(tmp_path / "out")}
    assert "no port" in records["peer"]["error"] and records["plain"]["figures"]["failed"] == 0
    report = here("report", str(tmp_path / "out"))
    assert report.returncode == 0 and "no port" in (tmp_path / "out" / "report.html").read_text()


class Idle(RunningServer):
    """Starts nothing."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        pass


@pytest.mark.parametrize(
    ("warming", "said"),
    [
        ({"error": "it does not answer"}, "the store was not warmed: it does not answer"),
        ({"figures": {"failed": 2, "errors": {"HTTP 503": 2}}}, "2 requests failed, as with HTTP 503"),
    ],
)
def test_a_store_that_was_not_warmed_makes_no_warm_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, warming: dict[str, Any], said: str
) -> None:
    changes = {"variants": [{"name": "w", "store": "warm"}], "loads": [{"users": 1}], "repeats": 1, "settle": 0}
    asked: list[dict[str, Any]] = []

    def run(settings: dict[str, Any], key: Key | None, output: Path | None = None) -> dict[str, Any]:
        asked.append(settings)
        return warming

    made = Sweep(
        read_grid(grid(tmp_path / "g.yaml", **changes, warm={"conversations": 7, "users": 3})), tmp_path, print
    )
    monkeypatch.setattr("loadtest.sweep.RunningServer", Idle)
    monkeypatch.setattr(made, "_run", run)
    made.carry_out()
    (record,) = read_runs(tmp_path)
    assert said in record["error"] and made.failed == 1
    assert [(one["max_conversations"], one["load"]) for one in asked] == [(7, {"users": 3})]  # the warming alone


def test_a_line_that_was_cut_off_is_made_again(tmp_path: Path) -> None:
    out = tmp_path / "out"
    with scripted(lambda number, body: answer()) as server:
        changes: dict[str, Any] = {"servers": {"there": {"url": server.url}}, "settle": 0, "repeats": 1}
        changes |= {"loads": [{"users": 1}], "variants": [{"name": "ä", "drafts": "off"}, {"name": "b"}]}
        command = ["sweep", str(grid(tmp_path / "g.yaml", **changes, run={"duration_s": 0.3})), "--output", str(out)]
        assert loadtest(*command).returncode == 0
        (first, second), runs = read_runs(out), out / "runs.jsonl"
        lines = runs.read_bytes().splitlines(keepends=True)
        runs.write_bytes(lines[1] + lines[0].partition("ä".encode())[0] + "ä".encode()[:1])  # killed within a letter
        report = here("report", str(out))
        assert report.returncode == 0 and "runs.jsonl:2 was cut off" in report.stderr
        done = loadtest(*command)
    assert done.returncode == 0 and "was cut off" in done.stderr, done.stderr
    after = read_runs(out)
    assert after[0] == second and [record["id"] for record in after] == [second["id"], first["id"]]
    assert len(runs.read_text().splitlines()) == 2


def test_a_record_that_lacks_its_end_alone_is_kept(tmp_path: Path) -> None:
    (tmp_path / "runs.jsonl").write_text('{"id": "a"}\n{"id": "b"}')
    append_run(tmp_path, {"id": "c"})
    assert [record["id"] for record in read_runs(tmp_path)] == ["a", "b", "c"]
    with pytest.raises(UserError, match="cannot be read"):
        (tmp_path / "other" / "runs.jsonl").mkdir(parents=True)
        read_runs(tmp_path / "other")


def test_namespaces_of_runs_are_valid_whatever_their_names(tmp_path: Path) -> None:
    variants = [{"drafts": "racer", "store": ["cold", "warm"]}]
    steps = [{"steps": [{"users": users, "seconds": 60.0} for users in range(1, 12)]}]
    made = Sweep(read_grid(grid(tmp_path / "g.yaml", variants=variants, loads=steps, run={})), tmp_path, print)
    runs = [run for _, runs in made.blocks for run in runs]
    namespaces = {made.key_of(run).namespace for run in runs}
    assert len(namespaces) == len(runs) == 4 and all(NAMESPACE.fullmatch(one) for one in namespaces)


def test_records_are_lines_whatever_their_texts_hold(tmp_path: Path) -> None:
    (tmp_path / "runs.jsonl").write_text('{"id": "a", "error": "one\u2028two"}\n{"id": "b", "er', encoding="utf-8")
    assert read_runs(tmp_path) == [{"id": "a", "error": "one\u2028two"}]  # the last line was cut off by a kill
