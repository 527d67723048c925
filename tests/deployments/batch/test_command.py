"""``python -m deployments batch`` as a user runs it: mistakes, Ctrl-C, a kill, and going on."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

import pytest
from pydantic import BaseModel

from deployments.batch.settings import HEEDED, unheeded
from deployments.commands import main
from deployments.commands.batch import pool_of
from deployments.commands.serve import RAY_ENVIRONMENT
from deployments.config import AppConfig, ModelConfig, parse_config
from tests.deployments.batch.helpers import batch_line, records, write_lines
from tests.deployments.local import TEMPLATE, wait_until

ROOT = Path(__file__).parents[3]
IDS = [f"r{i}" for i in range(120)]


def command(*args: object) -> list[str]:
    return [sys.executable, "-m", "deployments", "batch", *map(str, args)]


def run(*args: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command(*args), capture_output=True, text=True, timeout=120, check=False)


def test_mistakes_are_one_sentence_and_exit_2(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    good = write_lines(tmp_path / "in.jsonl", [{"prompt": "x"}])
    errors = write_lines(tmp_path / "out.errors.jsonl", [{"prompt": "x"}])
    summary = write_lines(tmp_path / "out.summary.json", [{"prompt": "x"}])
    (tmp_path / "empty.jsonl").write_text("")
    text = write_lines(tmp_path / "in.txt", ["x"])
    (tmp_path / "there.jsonl").write_text("")
    (tmp_path / "parts.jsonl.parts").mkdir()
    (tmp_path / "parts.jsonl.parts" / "job.json").write_text('{"inputs": "other"}')
    out = ("--output", tmp_path / "out.jsonl")
    cases: list[tuple[tuple[object, ...], str]] = [
        (("--input", tmp_path / "none.jsonl", *out), "no such file"),
        (("--input", tmp_path / "*.none", *out), "no file matches"),
        (("--input", tmp_path / "empty.jsonl", *out), "is empty"),
        (("--input", good, "--output", "/proc/none/out.jsonl"), "cannot be written"),
        (("--input", good, "--output", tmp_path / "there.jsonl"), "--overwrite"),
        (("--input", good, "--output", tmp_path / "parts.jsonl"), "unfinished run"),
        (("--input", good, "--output", tmp_path / "parts.jsonl", "--resume"), "inputs hold something else"),
        (("--input", good, "--output", good, "--overwrite"), "is an input too"),
        (("--input", errors, *out, "--overwrite"), "out.errors.jsonl: is an input too"),
        (("--input", good, errors, "--output", tmp_path / "out.txt", "--overwrite"), "is an input too"),
        (("--input", summary, *out, "--overwrite"), "out.summary.json: is an input too"),
        (("--input", good, *out, "--resume", "--overwrite"), "contradict"),
        (("--input", good, *out, "--replicas", "3:2"), "MIN:MAX"),
        (("--input", good, *out, "--body", "[]"), "JSON object"),
        (("--input", good, *out, "--model", "other"), "demo only"),
        (("--input", good, *out, "--lines-per-task", "0"), "from 1"),
        (("--input", good, *out, "--price-per-hour", "-1"), "above 0"),
        (("--input", good, *out, "--config", tmp_path / "none.yaml"), "none.yaml"),
        (("--input", good), "--output"),
        (("--input", text, *out, "--column", "x"), "leave --column out"),
    ]
    for args, word in cases:
        assert main(["batch", *map(str, args)]) == 2
        told = capsys.readouterr().err
        assert word in told and told.count("\n") == 1, (args, told)
    done = run("--input", tmp_path / "empty.jsonl", *out)
    assert done.returncode == 2 and done.stderr.count("\n") == 1 and "Traceback" not in done.stderr
    assert good.exists() and errors.exists() and summary.exists() and not (tmp_path / "out.jsonl").exists()


def test_workers_are_as_configuration_and_options_say() -> None:
    model = ModelConfig.model_validate(
        {
            "engine": {"max_running": 5},
            "num_cpus": 3,
            "num_gpus": 1,
            "resources": {"x": 1},
            "environment": {"A": "b"},
            "autoscaling": {"min_replicas": 0, "max_replicas": 4},
        }
    )
    pool = pool_of(model, None)
    assert (pool.smallest, pool.largest, pool.in_flight) == (1, 4, 10)
    assert (pool.num_cpus, pool.num_gpus, pool.resources) == (3, 1, {"x": 1})
    assert pool.environment == {"OMP_NUM_THREADS": "3", "A": "b"}
    assert (pool_of(model, (2, 3)).smallest, pool_of(model, (2, 3)).largest) == (2, 3)


def test_settings_that_a_batch_does_not_use_are_told() -> None:
    config = parse_config(
        {
            "models": [
                {"name": "a", "autoscaling": {"max_replicas": 2, "target_running": 3}},
                {"name": "b", "stall_s": 9},
            ],
            "store": {"url": "memory://", "max_namespaces": 2},
            "batches": {"folder": "x"},
            "keys_env": "NONE",
        }
    )
    wanted = ["models.autoscaling.target_running", "store.max_namespaces", "batches.folder", "keys_env"]
    assert unheeded(config) == wanted
    assert unheeded(parse_config({})) == []
    documented = (ROOT / "docs/batch.md").read_text()
    names = set(leaves(AppConfig))
    assert names >= HEEDED
    for name in names:
        assert name not in HEEDED or f"`{name}`" in documented, name


def leaves(section: type[BaseModel], prefix: str = "") -> Iterator[str]:
    """Settings of a section by their full names."""
    for name, field in section.model_fields.items():
        inner = [kind for kind in (field.annotation, *get_args(field.annotation)) if isinstance(kind, type)]
        sections = [kind for kind in inner if issubclass(kind, BaseModel)]
        yield from leaves(sections[0], f"{prefix}{name}.") if sections else [prefix + name]


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    """A cluster on which the commands run."""
    from ray.cluster_utils import Cluster

    with pytest.MonkeyPatch.context() as patch:
        for name, value in RAY_ENVIRONMENT.items():
            patch.setenv(name, value)
        made = Cluster(initialize_head=True, head_node_args={"num_cpus": 2, "include_dashboard": False})
        yield made.address
        made.shutdown()


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_interrupted_killed_and_resumed(
    address: str, tmp_path: Path, tiny_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output, parts = tmp_path / "out.jsonl", tmp_path / "out.jsonl.parts"
    source = write_lines(tmp_path / "in.jsonl", [batch_line(name, name, model="tiny") for name in IDS])
    engine = {"model": str(tiny_folder), "prior": False, "compile": False, "budget": 4, "max_running": 2}
    models = [{"name": "tiny", "engine": engine, "num_cpus": 0.5, "threads": 1}]
    config = tmp_path / "c.yaml"
    args = {"models": models, "store": {"url": "embedded:"}}
    config.write_text(json.dumps({"applications": [{"import_path": "deployments.app:build_app", "args": args}]}))
    body = {"max_tokens": 200, "ignore_eos": True, "temperature": 0}
    words: list[object] = ["--input", source, "--output", output, "--config", config, "--address", address]
    words += ["--lines-per-task", 8, "--progress-s", 1, "--price-per-hour", 3.6, "--ordered"]

    def begun(*more: object) -> subprocess.Popen[str]:
        before = len(list(parts.glob("part-*")))
        process = subprocess.Popen(
            command(*words, *more), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
        )
        wait_until(lambda: len(list(parts.glob("part-*"))) > before or process.poll() is not None, "parts come", 90)
        return process

    with begun("--body", json.dumps(body)) as process:
        process.send_signal(signal.SIGINT)
        told = process.communicate(timeout=60)[1]
    assert process.returncode == 130 and "--resume goes on" in told and "Traceback" not in told, told
    lines = [json.loads(line) for line in told.splitlines() if line.startswith("{")]
    assert lines and set(lines[-1]) == {
        *("done", "requests", "errors", "requests_per_s", "tokens_per_s", "mat", "elapsed_s", "left_s")
    }
    assert not output.exists()

    assert main(["batch", *map(str, words), "--resume", "--body", json.dumps(body | {"max_tokens": 5})]) == 2
    told = capsys.readouterr().err
    assert "body was" in told and told.count("\n") == 1

    with begun("--resume", "--body", json.dumps(body)) as process:
        process.send_signal(signal.SIGINT)
        assert process.stderr is not None
        while "Ctrl-C again ends at once" not in (line := process.stderr.readline()):
            assert line, "it ended without a word"
        process.send_signal(signal.SIGTERM)
        told = process.communicate(timeout=60)[1]
    assert process.returncode == 130 and "--resume goes on" in told and "Traceback" not in told, told

    with begun("--resume", "--body", json.dumps(body)) as process:
        process.send_signal(signal.SIGKILL)
    assert not output.exists()

    done = run(*words, "--resume", "--body", json.dumps(body), "--replicas", "2:2")
    assert done.returncode == 0, done.stderr
    found = records(output)
    assert [record["custom_id"] for record in found] == IDS  # each once, in order
    assert Counter(record["response"]["body"]["usage"]["completion_tokens"] for record in found) == {200: len(IDS)}
    summary = json.loads(done.stdout.splitlines()[-1])
    assert (summary["requests"], summary["errors"], summary["completion_tokens"]) == (120, 0, 200 * 120)
    assert summary["mat"] > 1 and summary["tokens_per_s"] > 0 and summary["tokens_per_s_per_replica"] > 0
    assert summary["cost"] == pytest.approx(summary["replica_s"] / 1000, rel=1e-3)
    assert summary["accepted"]["store"] > 0  # what the others said drafts
    assert not parts.exists() and not (tmp_path / "out.errors.jsonl").exists()

    assert main(["batch", *map(str, words), "--resume", "--body", json.dumps(body)]) == 0
    assert "complete already" in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_model_chat_and_overwrite(address: str, tmp_path: Path, tiny_folder: Path) -> None:
    """Plain prompts, put to the second of two models as a chat, in the place of an older output."""
    output = write_lines(tmp_path / "out.jsonl", ["of an older run"])
    write_lines(tmp_path / "out.errors.jsonl", ["of an older run"])
    engine = {"model": str(chatting(tiny_folder, tmp_path)), "prior": False, "compile": False, "budget": 4}
    models = [{"name": name, "engine": engine, "num_cpus": 0.5, "threads": 1} for name in ("first", "second")]
    models[0]["drain_s"] = 3
    config = tmp_path / "c.yaml"
    args = {"models": models, "ingress_replicas": 2, "limits": {"timeout_s": 5, "choices": 9}}
    config.write_text(json.dumps({"applications": [{"import_path": "deployments.app:build_app", "args": args}]}))
    lines = [{"prompt": "abc"}, {"prompt": "abc", "n": 10}, {"prompt": "x" * 10}, {"prompt": "too long" * 100}]
    inputs = [
        write_lines(tmp_path / "in.jsonl", lines),
        write_lines(tmp_path / "empty.jsonl", []),
        write_lines(tmp_path / "in.txt", ["a text", "and another"]),
        write_lines(tmp_path / "turns.jsonl", [{"question_id": 81, "category": "writing", "turns": ["one", "two"]}]),
    ]
    words = ["--input", *inputs, "--output", output, "--config", config, "--address", address, "--model", "second"]
    done = run(*words, "--chat", "--ordered", "--overwrite", "--body", '{"max_tokens": 4, "ignore_eos": true}')
    assert done.returncode == 0 and "core_worker" not in done.stderr, done.stderr
    note = f"note: {config}: a batch does not use models.drain_s, limits.timeout_s, ingress_replicas"
    assert done.stderr.splitlines()[0] == note
    assert f"note: {tmp_path / 'empty.jsonl'} is empty" in done.stderr
    answered, failed = records(output), records(tmp_path / "out.errors.jsonl")
    ids = [record["custom_id"] for record in answered]
    assert ids == ["in.jsonl:1", "in.jsonl:3", "in.txt:1", "in.txt:2", "81"], ids
    for record in answered[:4]:
        body = record["response"]["body"]
        assert (body["object"], body["model"]) == ("chat.completion", "second") and body["choices"][0]["message"]
    assert [record["response"]["status_code"] for record in failed] == [400, 400]
    assert "9" in failed[0]["response"]["body"]["error"]["message"]  # limits.choices
    assert failed[1]["response"]["body"]["error"]["code"] == "context_length_exceeded"
    assert json.loads((tmp_path / "out.summary.json").read_text())["job"]["chat"] is True


def chatting(model: Path, folder: Path) -> Path:
    """A copy of a model with a chat template."""
    copy = shutil.copytree(model, folder / "model")
    settings = json.loads((copy / "tokenizer_config.json").read_text())
    (copy / "tokenizer_config.json").write_text(json.dumps(settings | {"chat_template": TEMPLATE}))
    return copy


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_worker_that_cannot_start_is_told(address: str, tmp_path: Path) -> None:
    source = write_lines(tmp_path / "in.jsonl", [{"prompt": "x"}])
    config = tmp_path / "c.yaml"
    args: dict[str, Any] = {"models": [{"name": "none", "engine": {"model": str(tmp_path / "nothing")}}]}
    config.write_text(json.dumps({"applications": [{"import_path": "deployments.app:build_app", "args": args}]}))
    done = run("--input", source, "--output", tmp_path / "o.jsonl", "--config", config, "--address", address)
    assert done.returncode == 1 and "nothing" in done.stderr.splitlines()[-1], done.stderr
    assert "Traceback" not in done.stderr
