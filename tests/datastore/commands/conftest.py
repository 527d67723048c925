"""The command line called in this process, with a tokenizer that has a token for nearly each byte."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from datastore.commands import main
from tests.tiny import byte_tokenizer


@dataclass(frozen=True)
class Done:
    """What a command left behind."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> dict[str, Any]:
        """stdout as one JSON object."""
        found: dict[str, Any] = json.loads(self.out)
        return found


Command = Callable[..., Done]


@pytest.fixture(scope="session")
def tokenizer_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tokenizer")
    byte_tokenizer().save_pretrained(folder)
    return folder


@pytest.fixture
def datastore(
    tokenizer_folder: Path, namespace: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Command:
    """``datastore(command, *options, url=...)`` in a namespace of the test's own."""
    monkeypatch.delenv("DATASTORE_URL", raising=False)

    def call(command: str, *options: str, url: str | None = None, tokenizer: bool = True) -> Done:
        capsys.readouterr()
        given = ["--namespace", namespace] if "--namespace" not in options else []
        given += ["--url", url] if url else []
        given += ["--tokenizer", str(tokenizer_folder)] if tokenizer and "--tokenizer" not in options else []
        code = main([command, *options, *given])
        return Done(code, *capsys.readouterr())

    return call
