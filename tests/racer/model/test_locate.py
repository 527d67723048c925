from __future__ import annotations

import shutil
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import huggingface_hub
import pytest

from racer.config import EngineConfig
from racer.errors import ModelError
from racer.model import locate as module
from racer.model.loader import load
from racer.model.locate import Checkpoint, locate


@pytest.fixture
def hub_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty local cache of the Hub."""
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    return tmp_path / "hub"


@pytest.fixture
def silent_server(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The Hub's address is a server that accepts connections and never answers."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"http://127.0.0.1:{server.getsockname()[1]}"
        monkeypatch.setattr(huggingface_hub.constants, "ENDPOINT", address)
        yield address


@pytest.fixture
def closed_port(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody listens at the Hub's address."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    monkeypatch.setattr(huggingface_hub.constants, "ENDPOINT", f"http://127.0.0.1:{port}")


@pytest.mark.usefixtures("closed_port", "hub_cache")
def test_unreachable_hub_is_refused_at_once() -> None:
    started = time.monotonic()
    with pytest.raises(ModelError, match=r"'acme/tiny'.*cannot be reached"):
        locate("acme/tiny")
    assert time.monotonic() - started < 5


@pytest.mark.usefixtures("silent_server", "hub_cache")
def test_silent_hub_is_given_up_at_the_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "HUB_TIMEOUT_S", 0.5)
    started = time.monotonic()
    with pytest.raises(ModelError, match="cannot be reached"):
        locate("acme/tiny")
    assert 0.4 < time.monotonic() - started < 5


@pytest.mark.usefixtures("closed_port")
def test_offline_a_cached_hub_model_still_loads(hub_cache: Path, tiny_folder: Path) -> None:
    repository = hub_cache / "models--acme--tiny"
    (repository / "refs").mkdir(parents=True)
    (repository / "refs" / "main").write_text("c0ffee")
    shutil.copytree(tiny_folder, repository / "snapshots" / "c0ffee")
    loaded = load(EngineConfig(model="acme/tiny"))
    assert (loaded.name, loaded.vocab_size) == ("acme/tiny", 260)


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        (["config.json", "model.safetensors", "pytorch_model.bin"], "*.safetensors"),
        (["config.json", "pytorch_model.bin"], "*.bin"),
    ],
)
def test_hub_download_takes_one_kind_of_weights(
    files: list[str], expected: str, tiny_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: dict[str, object] = {}

    def info(self: object, name: str, timeout: float) -> SimpleNamespace:
        return SimpleNamespace(sha="c0ffee", siblings=[SimpleNamespace(rfilename=file) for file in files])

    def download(name: str, **options: object) -> str:
        asked.update(options, name=name)
        return str(tiny_folder)

    monkeypatch.setattr(huggingface_hub.HfApi, "model_info", info)
    monkeypatch.setattr(huggingface_hub, "snapshot_download", download)
    assert locate("acme/tiny") == Checkpoint("acme/tiny", tiny_folder)
    assert (asked["name"], asked["revision"]) == ("acme/tiny", "c0ffee")
    patterns = asked["allow_patterns"]
    assert isinstance(patterns, list)
    assert {"*.safetensors", "*.bin"} & set(patterns) == {expected}


def test_hub_repository_without_config(monkeypatch: pytest.MonkeyPatch) -> None:
    info = SimpleNamespace(sha="c0ffee", siblings=[SimpleNamespace(rfilename="model.gguf")])
    monkeypatch.setattr(huggingface_hub.HfApi, "model_info", lambda self, name, timeout: info)
    with pytest.raises(ModelError, match=r"no config\.json"):
        locate("acme/tiny")


@pytest.mark.parametrize("name", ["/no/such", "./none", "~/none", "none.gguf", "a/b/c", "two words", ""])
def test_what_cannot_be_a_hub_id_is_a_wrong_path(name: str) -> None:
    with pytest.raises(ModelError, match="no such file or folder"):
        locate(name)


def test_a_file_that_is_no_gguf(tmp_path: Path) -> None:
    (tmp_path / "model.gguf").write_bytes(b"GGML and more")
    with pytest.raises(ModelError, match="not a GGUF file"):
        locate(str(tmp_path / "model.gguf"))


def test_fingerprint_sees_a_change_anywhere_in_a_sampled_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_WHOLE_BYTES", 1000)
    monkeypatch.setattr(module, "_WINDOW_BYTES", 100)
    monkeypatch.setattr(module, "_WINDOWS", 40)
    path = tmp_path / "model.safetensors"
    content = bytearray(3000)
    seen = set()
    for position in (None, 0, 999, 1000, 1717, 2999):
        changed = content.copy()
        if position is not None:
            changed[position] = 1
        path.write_bytes(changed)
        seen.add(Checkpoint("x", tmp_path).fingerprint())
    path.write_bytes(bytes(3001))
    seen.add(Checkpoint("x", tmp_path).fingerprint())
    assert len(seen) == 7


def test_fingerprint_ignores_other_files(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    before = Checkpoint("x", tmp_path).fingerprint()
    (tmp_path / "README.md").write_text("hello")
    (tmp_path / "folder.json").mkdir()
    assert Checkpoint("y", tmp_path).fingerprint() == before
    (tmp_path / "tokenizer.json").write_text("{}")
    assert Checkpoint("x", tmp_path).fingerprint() != before
