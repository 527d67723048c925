"""``python -m tests``: no test is left out, and one process runs what a path names."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.__main__ import ROOT, halves, names_a_path


def test_every_file_of_tests_is_in_one_half() -> None:
    found = [
        file
        for half in halves()
        for path in map(Path, half)
        for file in ([path] if path.is_file() else path.rglob("test_*.py"))
    ]
    assert sorted(found) == sorted(ROOT.rglob("test_*.py")) and all(halves())


@pytest.mark.parametrize(
    ("options", "named"),
    [
        (["tests/racer"], True),
        (["-x", "tests/test_main.py::test_every_file_of_tests_is_in_one_half"], True),
        (["-k", "tests"], False),
        (["-k", "", "-x"], False),
        (["--durations=60"], False),
        ([], False),
    ],
)
def test_a_path_is_told_from_a_value(monkeypatch: pytest.MonkeyPatch, options: list[str], named: bool) -> None:
    monkeypatch.chdir(ROOT.parent)
    assert names_a_path(options) is named
