from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from datastore.commands import COMMANDS, main
from tests.datastore.commands.conftest import Command
from tests.datastore.servers import Server, free_ports

HEAVY = {"redis", "tokenizers", "numpy", "numba", "pyarrow", "rich", "huggingface_hub"}


@pytest.mark.parametrize("command", [(), *((name,) for name in COMMANDS)])
def test_help_loads_no_library(command: tuple[str, ...]) -> None:
    """So that it comes at once; the time itself would depend on the machine."""
    code = (
        "import sys; from datastore.commands import main; code = main(sys.argv[1:] + ['--help']);"
        f"print(sorted({HEAVY!r} & sys.modules.keys()), file=sys.stderr); sys.exit(code)"
    )
    done = subprocess.run([sys.executable, "-c", code, *command], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "[]\n") and "usage: python -m datastore" in done.stdout


@pytest.mark.parametrize(
    "arguments, sentence",
    [
        (["nothing"], "invalid choice"),
        (["lookup", "--tokenizer", "demo"], "the following arguments are required: --text"),
        (["bench", "--tokens", "-1"], "'-1' is not valid: it must be a positive integer"),
        (["bench", "--tokens", "10"], "--tokens 10 is too little to measure; use 1000 or more"),
        (["purge", "--yes"], "no store is named; use --url redis://HOST:PORT, or set DATASTORE_URL"),
        (["purge", "--yes", "--url", "ftp://host"], "is no URL of a store"),
        (["purge", "--yes", "--url", "redis://h", "--namespace", "a b"], "namespace 'a b' is not a name"),
        (["stats", "--tokenizer", "/none", "--url", "htp://h"], "is no URL of a store"),  # before the tokenizer
        (["lookup", "--text", "a", "--tokenizer", "/none", "--url", "redis://h:x"], "is not host or host:port"),
        (["export", "--tokenizer", "/none", "--url", "redis://h", "--namespace", "a:b", "f"], "is not a name"),
        (["bench", "--url", "htp://h"], "is no URL of a store"),
        (["ingest", "--tokenizer", "demo", "none.txt"], "none.txt: no such file, no folder with files"),
        (["import", "--tokenizer", "/none", "none.ng"], "none.ng: cannot be read"),
        (["import", "--tokenizer", "/none", "--url", "x", "none.ng"], "none.ng: cannot be read"),
    ],
)
def test_a_mistake_is_one_sentence_and_exit_2(
    arguments: list[str], sentence: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("DATASTORE_URL", raising=False)
    code = main(arguments)
    captured = capsys.readouterr()
    assert (code, captured.out) == (2, "") and sentence in captured.err
    assert captured.err.startswith("error: ") and captured.err.count("\n") == 1


@pytest.mark.parametrize("command", [("stats",), ("lookup", "--text", "abc"), ("purge", "--yes"), ("ingest", __file__)])
@pytest.mark.parametrize("scheme, path", [("redis", ""), ("redis+cluster", ""), ("redis+sentinel", "/mymaster")])
def test_a_server_that_is_not_there_is_one_sentence(
    datastore: Command, command: tuple[str, ...], scheme: str, path: str
) -> None:
    url = f"{scheme}://user:hunter2@127.0.0.1:{free_ports(1)[0]}{path}"
    done = datastore(*command, url=url, tokenizer=command[0] != "purge")
    assert done.code == 2 and done.err.startswith("error: ") and done.err.count("\n") == 1
    assert "hunter2" not in done.err


def test_the_url_may_come_from_the_environment(
    datastore: Command, redis_single: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DATASTORE_URL", redis_single.url)
    done = datastore("stats", "--json")
    assert done.code == 0 and done.json["contexts"] == 0
    assert datastore("stats", url=f"redis://127.0.0.1:{free_ports(1)[0]}").code == 2  # an option goes before it


def test_a_reader_that_goes_away_is_no_traceback(tokenizer_folder: Path, redis_single: Server) -> None:
    command = [sys.executable, "-m", "datastore", "stats", "--url", redis_single.url, "--tokenizer"]
    with subprocess.Popen(
        [*command, str(tokenizer_folder)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None and process.stderr is not None
        process.stdout.close()
        assert process.stderr.read() == ""
    assert process.returncode == 141
