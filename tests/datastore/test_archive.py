from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from datastore.archive import Archive, Header, write_archive
from datastore.errors import InputError

HEADER = Header(schema=1, fingerprint="abcd" * 4, namespace="tenant")
RECORDS = [b"", b"one", bytes(range(256)) * 400, b"\n"]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "store.ngrams"
    assert write_archive(path, HEADER, RECORDS) == len(RECORDS)
    return path


def test_what_was_written_is_read(path: Path) -> None:
    archive = Archive(path)
    assert archive.header == HEADER and list(archive) == RECORDS == list(archive) and archive.check() == len(RECORDS)
    assert path.stat().st_size < 2000  # compressed


def test_an_empty_store_makes_a_whole_file(tmp_path: Path) -> None:
    assert write_archive(tmp_path / "a", HEADER, []) == 0
    assert Archive(tmp_path / "a").check() == 0


def test_every_damage_is_found_before_anything_is_merged(path: Path) -> None:
    whole = path.read_bytes()
    refused = []
    for place in range(0, len(whole), 3):
        damaged = bytearray(whole)
        damaged[place] ^= 0x10
        path.write_bytes(damaged)
        try:
            assert list(Archive(path)) == RECORDS  # a bit that zstd does not use
        except InputError:
            refused.append(place)
    assert len(refused) > 0.95 * len(range(0, len(whole), 3))
    for length in range(0, len(whole) - 1, 11):
        path.write_bytes(whole[:length])
        with pytest.raises(InputError):
            Archive(path).check()


@pytest.mark.parametrize(
    "content, sentence",
    [
        (b"PK\x03\x04 something else", "no file of n-grams; name one that 'python -m datastore export' wrote"),
        (b"", "no file of n-grams"),
        (b"racer-serve n-grams 1\n{}\n", r"not a whole file \(its header is damaged\); copy it anew"),
    ],
)
def test_what_is_no_archive_is_one_sentence(tmp_path: Path, content: bytes, sentence: str) -> None:
    (tmp_path / "a").write_bytes(content)
    with pytest.raises(InputError, match=sentence):
        Archive(tmp_path / "a")


def test_a_missing_file_and_a_missing_folder(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="cannot be read"):
        Archive(tmp_path / "none")
    with pytest.raises(InputError, match="cannot be written"):
        write_archive(tmp_path / "none" / "a", HEADER, [])


def test_a_failed_export_leaves_the_old_file_and_nothing_else(path: Path) -> None:
    before = path.read_bytes()

    def broken() -> Iterator[bytes]:
        yield b"one"
        raise ConnectionError

    with pytest.raises(InputError):
        write_archive(path, HEADER, broken())
    assert path.read_bytes() == before and [file.name for file in path.parent.iterdir()] == [path.name]
