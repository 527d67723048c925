"""A tiny model on disk, and the command line called in this process."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from racer import Engine, EngineConfig
from racer.commands import main

SETTINGS = ["--dtype", "float32", "--device", "cpu", "--no-prior", "--no-compile", "--cache-bytes", str(1 << 23)]
SETTINGS += ["--budget", "8"]
TEMPLATE = (
    "{% for message in messages %}[{{ message['role'] }}]{{ message['content'] }}\n{% endfor %}"
    "{% if add_generation_prompt %}[assistant]{% endif %}"
)


@dataclass(frozen=True)
class Done:
    """What a command left behind."""

    code: int
    out: str
    err: str

    @property
    def records(self) -> list[dict[str, Any]]:
        """stdout as JSON lines."""
        return [json.loads(line) for line in self.out.splitlines()]


Command = Callable[..., Done]


@pytest.fixture(scope="session")
def chat_folder(tiny_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny model with a chat template; it never ends an answer by itself, random as it is."""
    folder = tmp_path_factory.mktemp("chat") / "model"
    folder.mkdir()
    for path in tiny_folder.iterdir():
        (folder / path.name).write_bytes(path.read_bytes())
    (folder / "chat_template.jinja").write_text(TEMPLATE)
    return folder


@pytest.fixture(scope="package", autouse=True)
def own_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Nothing of these tests stays in the user's cache, and the tests after them find what is there."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RACER_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture
def racer(chat_folder: Path, capsys: pytest.CaptureFixture[str]) -> Command:
    """``racer(command, *options)`` with the tiny model, in this process."""

    def call(command: str, *options: str, model: str = str(chat_folder)) -> Done:
        capsys.readouterr()
        code = main([command, "--model", model, *SETTINGS, *options])
        return Done(code, *capsys.readouterr())

    return call


@pytest.fixture(scope="session")
def engine(chat_folder: Path) -> Engine:
    """What the commands open, to check their answers against."""
    return Engine(
        EngineConfig(
            model=str(chat_folder),
            dtype="float32",
            device="cpu",
            prior=False,
            compile=False,
            cache_bytes=1 << 23,
            drafts="off",
        )
    )


@pytest.fixture
def jsonl(tmp_path: Path) -> Callable[..., str]:
    """``jsonl(line, ...)`` writes objects, or raw lines, to a file and names it."""

    def write(*lines: Any, name: str = "in.jsonl") -> str:
        path = tmp_path / name
        path.write_text("".join((line if isinstance(line, str) else json.dumps(line)) + "\n" for line in lines))
        return str(path)

    return write
