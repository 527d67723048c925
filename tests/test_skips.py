"""The rule that a skip fails a CI run, tried on small test files."""

from __future__ import annotations

import pytest

from tests import skips

TESTS = """
import pytest

def test_passes(): pass

def test_skips(): pytest.skip("no service")

@pytest.mark.skipif(True, reason="no tool")
def test_skips_by_mark(): pass

@pytest.mark.may_skip("needs a GPU")
def test_may_skip(): pytest.skip("no GPU")

@pytest.mark.xfail
def test_expected(): assert False
"""


@pytest.fixture
def small(pytester: pytest.Pytester) -> pytest.Pytester:
    with open(skips.__file__, encoding="utf-8") as file:
        pytester.makeconftest(file.read())
    pytester.makeini("[pytest]\nmarkers =\n  may_skip(reason): exempt")
    return pytester


def test_ci_turns_skips_into_failures(small: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CI", "true")
    small.makepyfile(TESTS)
    result = small.runpytest()
    result.assert_outcomes(passed=1, failed=2, errors=1, skipped=1)
    result.stdout.fnmatch_lines(["*nothing may be skipped, or be expected to fail: *no service*"])


def test_ci_refuses_a_skipped_module(small: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CI", "true")
    small.makepyfile("import pytest\npytest.importorskip('no_such_module')\ndef test_x(): pass")
    result = small.runpytest()
    result.assert_outcomes(errors=1)
    assert result.ret != 0


def test_elsewhere_a_skip_is_a_skip(small: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CI", raising=False)
    small.makepyfile(TESTS)
    small.runpytest().assert_outcomes(passed=1, skipped=3, xfailed=1)
