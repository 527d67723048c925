from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from pathlib import Path

import pyarrow
import pytest
from pyarrow import parquet

from datastore.errors import InputError
from datastore.reading import PIECE_CHARACTERS, Reader, SourceFile, find_files

Compress = Callable[[bytes], bytes]


def zstd(data: bytes) -> bytes:
    return bytes(pyarrow.compress(data, "zstd", asbytes=True))


COMPRESSIONS: dict[str, Compress] = {"": bytes, ".gz": gzip.compress, ".zst": zstd}
RECORDS = [{"text": "one\nfish", "id": 1}, {"text": "zwei Fische äöü \U0001f41f", "id": 2}, {"text": "", "id": 3}]


def read(path: Path, field: str = "text", named: bool = True) -> list[str]:
    return list(Reader(SourceFile(path, named), field))


def lines(records: list[dict[str, object]]) -> bytes:
    return "".join(json.dumps(record) + "\n" for record in records).encode()


@pytest.mark.parametrize("suffix", COMPRESSIONS)
def test_text_comes_in_whole_lines(tmp_path: Path, suffix: str) -> None:
    text = "".join(f"line {i} äöü\n" for i in range(5000))
    path = tmp_path / f"a.txt{suffix}"
    path.write_bytes(COMPRESSIONS[suffix]("\ufeff".encode() + text.replace("\n", "\r\n").encode()))
    reader = Reader(SourceFile(path, True), "text")
    pieces = list(reader)
    assert "".join(pieces) == text
    assert all(0 < len(piece) <= PIECE_CHARACTERS and piece.endswith("\n") for piece in pieces)
    assert len(pieces) == -(-len(text) // PIECE_CHARACTERS) and reader.position == path.stat().st_size


@pytest.mark.parametrize("suffix", COMPRESSIONS)
def test_json_lines(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"a.jsonl{suffix}"
    path.write_bytes(COMPRESSIONS[suffix](lines(RECORDS)))
    assert read(path) == ["one\nfish", "zwei Fische äöü \U0001f41f"]


def test_parquet(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    rows = [f"row {i}" for i in range(1000)]
    parquet.write_table(pyarrow.table({"text": [*rows, None, ""], "id": list(range(1002))}), path)
    reader = Reader(SourceFile(path, True), "text")
    assert list(reader) == rows and reader.position == path.stat().st_size


def test_a_long_text_is_cut_the_same_way_each_time(tmp_path: Path) -> None:
    text = "x" * (PIECE_CHARACTERS + 10) + "\n" + "y" * 20 + "\n" + "z" * (2 * PIECE_CHARACTERS)
    (tmp_path / "a.txt").write_text(text)
    (tmp_path / "a.jsonl").write_text(json.dumps({"text": text}))
    for path in (tmp_path / "a.txt", tmp_path / "a.jsonl"):
        pieces = read(path)
        assert "".join(pieces) == text and max(map(len, pieces)) <= PIECE_CHARACTERS
        assert pieces == read(path)


def test_bad_lines_are_told_and_passed_over(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text('{"text": "good"}\n{"text": 7, "body": "b"}\nnot json\n[1]\n\n{"text": "\\ud800 half"}\n')
    reader = Reader(SourceFile(path, True), "text")
    assert list(reader) == ["good", "? half"]
    assert [bad.removeprefix(f"{path}:") for bad in reader.bad] == [
        "2: no text in field 'text'; choose one of body with --field",
        "3: not JSON (Expecting value: line 1 column 1 (char 0)); correct the line",
        "4: no text in field 'text'; write a JSON object",
    ]


@pytest.mark.parametrize(
    "name, content, sentence",
    [
        ("a.txt", b"\xff\xfe\x00broken", r"not UTF-8 text \(invalid start byte\); convert it"),
        ("a.gz", b"\x1f\x8b garbage", "cannot be read"),
        ("b.gz", gzip.compress(b"text " * 9999)[:40], "cannot be read"),
        ("c.zst", zstd(bytes(range(256)) * 999)[:100], "cannot be read"),
        ("d.zst", b"no such frame", "cannot be read"),
        ("a.parquet", b"PAR1", "cannot be read as Parquet"),
    ],
)
def test_a_file_that_cannot_be_read_is_one_sentence(tmp_path: Path, name: str, content: bytes, sentence: str) -> None:
    path = tmp_path / name
    path.write_bytes(content)
    with pytest.raises(InputError, match=f"^{path}: {sentence}") as caught:
        read(path)
    assert "\n" not in str(caught.value)


def test_a_column_that_is_missing_or_no_text_is_one_sentence(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    parquet.write_table(pyarrow.table({"body": ["b"], "id": [1]}), path)
    with pytest.raises(InputError, match="no column 'text'; choose one of body, id with --field"):
        read(path)
    with pytest.raises(InputError, match="column 'id' holds int64, not text"):
        read(path, "id")
    assert read(path, "body") == ["b"]


def test_files_folders_and_patterns(tmp_path: Path) -> None:
    for name in ("b.txt", "a.py", "sub/c.py", "sub/.hidden", ".git/config", "sub/deep/d.txt"):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(name)

    def found(*names: str) -> list[str]:
        return [str(file.path.relative_to(tmp_path)) for file in find_files([str(tmp_path / name) for name in names])]

    assert found("") == ["a.py", "b.txt", "sub/c.py", "sub/deep/d.txt"]
    assert found("**/*.py") == ["a.py", "sub/c.py"] and found("*.txt") == ["b.txt"]
    assert found("b.txt", "", "b.txt") == ["b.txt", "a.py", "sub/c.py", "sub/deep/d.txt"]
    assert [file.named for file in find_files([str(tmp_path / "b.txt"), str(tmp_path)])] == [True, False, False, False]
    for missing in ("none.txt", "*.jsonl", "empty"):
        (tmp_path / "empty").mkdir(exist_ok=True)
        with pytest.raises(InputError, match=r"no such file, no folder with files, and no pattern"):
            found(missing)


def test_binary_files_are_known_by_their_first_bytes(tmp_path: Path) -> None:
    contents = {"a.pyc": b"\x00\x01", "a.txt": b"text", "a.txt.gz": gzip.compress(b"text"), "a.parquet": b"PAR1\0\0"}
    for name, content in contents.items():
        (tmp_path / name).write_bytes(content)
    assert {file.path.name: file.is_binary for file in find_files([str(tmp_path)])} == {
        "a.pyc": True,
        "a.txt": False,
        "a.txt.gz": False,
        "a.parquet": False,
    }


def test_identity_is_the_contents_and_the_fields(tmp_path: Path) -> None:
    def identity(name: str, content: bytes, field: str = "text") -> str:
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(content)
        return SourceFile(path, True).identity(field)

    assert identity("a.jsonl", b"{}") == identity("moved/b.jsonl", b"{}")
    assert len({identity("a.jsonl", b"{}"), identity("a.jsonl", b"{}", "body"), identity("a.txt", b"{}")}) == 3
    assert identity("a.txt", b"x", "text") == identity("a.txt", b"x", "body")  # plain text has no fields
    large = bytearray(18 << 20)
    before = identity("large.txt", bytes(large))
    large[-1] = 1
    assert identity("large.txt", bytes(large)) != before
