"""What an engine reports while it loads reaches the terminal by way of Serve's log."""

from __future__ import annotations

import json
import logging
from pathlib import Path

import pytest

from deployments.logs import LOGGER
from deployments.reports import Reports, reporting
from tests.deployments.local import wait_until


def test_reports_of_the_block_go_to_serves_log(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, LOGGER)
    serve, engine = logging.getLogger(LOGGER), logging.getLogger("racer.model.prior")
    serve.addHandler(caplog.handler)
    try:
        with reporting("tiny"):
            engine.info("prior table: %d%%", 10)
        engine.warning("after it")
    finally:
        serve.removeHandler(caplog.handler)
    told = {record.getMessage(): vars(record)["loading"] for record in caplog.records if record.name == LOGGER}
    assert told == {"prior table: 10%": "tiny"}


def line(message: str, level: str = "INFO", **fields: str) -> str:
    return json.dumps({"levelname": level, "message": message, **fields}) + "\n"


def test_new_lines_are_handed_on_once_and_whole(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    old, new = tmp_path / "replica_a.log", tmp_path / "replica_b.log"
    old.write_text(line("of an earlier run", loading="tiny"))
    reports, logger = Reports(tmp_path), logging.getLogger("racer.replicas")

    def told() -> list[tuple[str, str]]:
        caplog.clear()
        reports.hand_on(logger)
        return [(record.levelname, record.getMessage()) for record in caplog.records]

    assert told() == []
    half = line("measuring", "WARNING", loading="tiny")
    new.write_text(line("loading is no field here") + line("compiling", loading="tiny") + half[:20])
    assert told() == [("INFO", "tiny: compiling")]
    with new.open("a") as file:
        file.write(half[20:])
    assert told() == [("WARNING", "tiny: measuring")]
    assert told() == []


def test_they_are_shown_while_somebody_waits(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    with Reports(tmp_path).shown(logging.getLogger("racer.replicas")):
        (tmp_path / "replica_a.log").write_text(line("compiling", loading="tiny"))
        wait_until(lambda: caplog.messages == ["tiny: compiling"], "it is shown", 30)


def test_a_folder_that_is_not_here_holds_no_reports(tmp_path: Path) -> None:
    Reports(tmp_path / "elsewhere").hand_on(logging.getLogger("racer.replicas"))
