"""With CI=true a skipped test fails, and one that is expected to fail: neither could tell that something is wrong.

``@pytest.mark.may_skip("needs a GPU")`` exempts one test.
"""

from __future__ import annotations

import os
from collections.abc import Generator

import pytest


def _forbid(report: pytest.TestReport | pytest.CollectReport) -> None:
    if os.environ.get("CI") == "true" and report.skipped:
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else report.longrepr
        report.outcome = "failed"
        report.longrepr = f"with CI=true nothing may be skipped, or be expected to fail: {reason}"


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if item.get_closest_marker("may_skip") is None:
        _forbid(report)
    return report


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report() -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    report = yield
    _forbid(report)
    return report
