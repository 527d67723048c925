"""Records of answers with characters at which some readers end a line."""

from __future__ import annotations

import io
import json
from pathlib import Path

from deployments.batch.answers import refused
from deployments.batch.records import RecordFile
from deployments.batch.requests import LineError

TEXT = "a\u2028b\u2029c\x85d\x1ce\\u2028"


def test_a_record_is_one_line_for_every_reader(tmp_path: Path) -> None:
    result = refused(LineError("invalid_url", TEXT, None, TEXT), "line 3")
    assert len(result.record.decode().splitlines()) == 1
    records = RecordFile(tmp_path / "records")
    records.add(0, result)
    answers, errors = io.BytesIO(), io.BytesIO()
    records.write_to(answers, errors)
    records.close()
    assert not answers.getvalue()
    (line,) = errors.getvalue().decode().splitlines()
    assert json.loads(line) == json.loads(result.record)
    assert TEXT in json.loads(line)["error"]["message"]
