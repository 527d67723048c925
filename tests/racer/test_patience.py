from __future__ import annotations

import logging
import time

import pytest

from racer.patience import told_if_slow


def test_only_what_takes_long_is_told(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    logger = logging.getLogger("racer.x")
    with told_if_slow(logger, "being quick, 100%", 60.0):
        pass
    with told_if_slow(logger, "compiling, 100%", 0.01):
        deadline = time.monotonic() + 30
        while not caplog.messages and time.monotonic() < deadline:  # told while it goes on, not afterwards
            time.sleep(0.01)
        assert caplog.messages == ["compiling, 100%"]
    assert caplog.messages == ["compiling, 100%"]
