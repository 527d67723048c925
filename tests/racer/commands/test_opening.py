from __future__ import annotations

import io
import logging

import pytest

from racer import Engine
from racer.commands.opening import Notices, describe

CLEAR = "\r\x1b[K"


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def report(handler: Notices, *texts: str, level: int = logging.INFO) -> None:
    for text in texts:
        handler.handle(logging.LogRecord("racer", level, __file__, 1, text, None, None))


def test_on_a_terminal_a_notice_replaces_the_one_before_and_a_warning_stays() -> None:
    stream = Terminal()
    handler = Notices(stream)
    report(handler, "1 of 9", "2 of 9")
    report(handler, "no table", level=logging.WARNING)
    handler.close()
    assert stream.getvalue() == f"{CLEAR}1 of 9{CLEAR}2 of 9{CLEAR}no table\n{CLEAR}"


def test_elsewhere_counting_on_is_told_every_few_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    monkeypatch.setattr("time.monotonic", lambda: now)
    stream = io.StringIO()
    handler = Notices(stream)
    report(handler, "1 of 9", "2 of 9", "converting")
    now += 1
    report(handler, "converting", "3 of 9")
    now += 16
    report(handler, "4 of 9")
    handler.close()
    assert stream.getvalue().splitlines() == ["1 of 9", "converting", "3 of 9", "4 of 9"]


def test_description_says_what_was_resolved(engine: Engine) -> None:
    described = describe(engine)
    assert "float32 on cpu" in described and "context 512, drafts off" in described
