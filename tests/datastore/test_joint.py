"""An engine's commands with a real store: racer finds datastore by the installed entry points, and by nothing else."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from datastore.commands import main as datastore
from racer.commands import main as racer
from racer.store import open_source
from tests.datastore.servers import Server
from tests.tiny import byte_tokenizer

SETTINGS = ["--dtype", "float32", "--device", "cpu", "--no-prior", "--no-compile", "--budget", "8"]
SETTINGS += ["--cache-bytes", str(1 << 23)]


@pytest.fixture
def questions(tmp_path: Path) -> str:
    path = tmp_path / "questions.jsonl"
    path.write_text("".join(json.dumps({"prompt": text}) + "\n" for text in ("abc abc abc", "1 2 3 4", "xyz xyz")))
    return str(path)


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RACER_CACHE", str(tmp_path / "cache"))


def bench(model: Path, questions: str, capsys: pytest.CaptureFixture[str], *options: str) -> dict[str, dict[str, int]]:
    """Accepted tokens by mode and source."""
    code = racer(
        [
            *("bench", "--model", str(model), *SETTINGS, "--data", questions, "--max-tokens", "48", "--json"),
            *("--drafts", "racer", "--source-deadline-ms", "2000", *options),
        ]
    )
    captured = capsys.readouterr()
    assert code == 0, captured.err
    result = json.loads(captured.out.splitlines()[-1])
    assert result["mismatches"] == 0 and result["store"]["counters"]["failed"] == {}
    return {
        "+store" if row["store"] else row["drafts"]: row["accepted_by_source"] | {"steps": row["steps"]}
        for row in result["rows"]
        if row["category"] == "all"
    }


def test_a_store_warmed_in_one_process_serves_the_next(
    tiny_folder: Path, questions: str, redis_single: Server, namespace: str, capsys: pytest.CaptureFixture[str]
) -> None:
    where = ("--store", redis_single.url, "--namespace", namespace)
    cold = bench(tiny_folder, questions, capsys, *where)
    assert cold["+store"]["store"] == 0
    warm = bench(tiny_folder, questions, capsys, *where, "--store-warm")
    later = bench(tiny_folder, questions, capsys, *where)
    assert warm["+store"]["store"] > 0 and later["+store"] == warm["+store"]
    assert later["+store"]["steps"] < cold["+store"]["steps"]
    stranger = bench(tiny_folder, questions, capsys, "--store", redis_single.url, "--namespace", namespace + "-other")
    assert stranger["+store"]["store"] == 0


def test_a_corpus_taught_by_ingest_feeds_the_engine(
    tiny_folder: Path,
    questions: str,
    redis_single: Server,
    namespace: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The corpus is what the model says: its own answers, as text."""
    where = ["--namespace", namespace]
    output = str(tmp_path / "answers.jsonl")
    asked = ["generate", "--model", str(tiny_folder), *SETTINGS, "--input", questions, "--output", output]
    assert racer([*asked, "--max-tokens", "48", "--drafts", "off"]) == 0
    command = ["ingest", output, "--url", redis_single.url, "--tokenizer", str(tiny_folder), *where]
    assert datastore(command) == 0
    fed = bench(tiny_folder, questions, capsys, "--store", redis_single.url, *where)
    assert fed["+store"]["store"] > 0 and fed["+store"]["steps"] < fed["racer"]["steps"]


def test_a_server_of_its_own_is_stopped_with_the_command(
    tiny_folder: Path, questions: str, capsys: pytest.CaptureFixture[str]
) -> None:
    found = bench(tiny_folder, questions, capsys, "--store", "embedded:", "--store-warm")
    assert found["+store"]["store"] > 0


def test_each_scheme_is_served() -> None:
    tokenizer = byte_tokenizer()
    for url in (
        *("redis://127.0.0.1:1", "rediss://127.0.0.1:1", "valkey://127.0.0.1:1", "memory://", "embedded:"),
        *("redis+sentinel://127.0.0.1:1/mymaster", "redis+cluster://127.0.0.1:1", "rediss+cluster://127.0.0.1:1"),
    ):
        source = open_source(url, tokenizer, "n")
        assert source.counters()["lookups"] == 0
        source.close()


@pytest.mark.parametrize(
    "options, sentence",
    [
        (("--store", "http://host"), "store 'http:': use a URL that begins with one of embedded"),
        (("--store", "redis://host:port"), "is not host or host:port"),
        (("--store", "memory://", "--namespace", "a b"), "namespace 'a b' is not a name"),
    ],
)
def test_a_mistake_is_one_sentence(
    tiny_folder: Path, options: tuple[str, ...], sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert racer(["run", "--model", str(tiny_folder), *SETTINGS, "--prompt", "abc", *options]) == 2
    error = capsys.readouterr().err.splitlines()[-1]
    assert error.startswith("error: ") and sentence in error
