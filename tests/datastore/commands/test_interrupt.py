"""Ingest as a process of its own, interrupted and killed, against a real server."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.datastore.commands.conftest import Command
from tests.datastore.servers import Server, wait_for

BATCH = 4096
PROGRAM = (
    "import sys, signal, datastore.ingest as ingest; from datastore.commands import main;"
    f"ingest.BATCH_CHARACTERS = {BATCH}; sys.exit(main(sys.argv[1:]))"
)


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    folder = tmp_path / "corpus"
    folder.mkdir()
    for i in range(30):
        (folder / f"{i:02}.txt").write_text("".join(f"file {i} line {j} {i * j}\n" for j in range(400)))
    return folder


@pytest.fixture
def interrupted(
    corpus: Path, redis_single: Server, tokenizer_folder: Path, namespace: str, datastore: Command
) -> Callable[[signal.Signals], tuple[int, str]]:
    """``interrupted(signal)``: starts an ingest, sends it the signal midway; its exit code and stderr."""

    def learned() -> int:
        return int(datastore("stats", "--json", url=redis_single.url).json["tokens_learned"])

    def run(number: signal.Signals) -> tuple[int, str]:
        options = ["--url", redis_single.url, "--namespace", namespace, "--tokenizer", str(tokenizer_folder)]
        with subprocess.Popen(
            [sys.executable, "-c", PROGRAM, "ingest", str(corpus), *options],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        ) as process:
            wait_for(lambda: learned() > 0 or process.poll() is not None, "the first batch")
            process.send_signal(number)
            _, err = process.communicate(timeout=60)
        return process.returncode, err

    return run


def total(corpus: Path, datastore: Command, redis_single: Server) -> int:
    """Tokens of the corpus, by learning it all at once elsewhere."""
    done = datastore("ingest", str(corpus), "--json", "--namespace", "whole", "--again", url=redis_single.url)
    assert datastore("purge", "--yes", "--namespace", "whole", url=redis_single.url, tokenizer=False).code == 0
    return int(json.loads(done.out)["tokens"])


Interrupt = Callable[[signal.Signals], tuple[int, str]]


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_ingest_loses_and_doubles_nothing(
    interrupted: Interrupt, corpus: Path, datastore: Command, redis_single: Server, number: signal.Signals
) -> None:
    code, err = interrupted(number)
    assert (code, err) == (130, "interrupted; run the same command again to go on\n")
    everything = total(corpus, datastore, redis_single)
    first = datastore("stats", "--json", url=redis_single.url).json["tokens_learned"]
    second = datastore("ingest", str(corpus), "--json", url=redis_single.url).json
    assert 0 < first < everything and first + second["tokens"] == everything
    assert second["files_done"] + second["files_known"] == 30


@pytest.mark.slow
def test_a_killed_ingest_leaves_out_one_batch_at_most(
    interrupted: Interrupt, corpus: Path, datastore: Command, redis_single: Server
) -> None:
    code, _ = interrupted(signal.SIGKILL)
    assert code == -signal.SIGKILL
    everything = total(corpus, datastore, redis_single)
    first = datastore("stats", "--json", url=redis_single.url).json["tokens_learned"]
    second = datastore("ingest", str(corpus), "--json", url=redis_single.url).json["tokens"]
    longest_file = max(path.stat().st_size for path in corpus.iterdir())
    assert first > 0 and everything - (BATCH + longest_file) <= first + second <= everything
