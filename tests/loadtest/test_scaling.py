"""One user, forty, and one again: replicas follow, no request is lost, and the report shows it."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from loadtest.runs import read_runs
from tests.deployments.local import wait_until
from tests.loadtest.commands import here, loadtest
from tests.loadtest.scaling import running, scaling_service

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]


def test_replicas_follow_the_users_and_no_request_is_lost(tmp_path: Path, free_port: int) -> None:
    out = tmp_path / "out"
    steps = [{"users": 1, "seconds": 2}, {"users": 40, "seconds": 12}, {"users": 1, "seconds": 8}]
    with scaling_service(free_port, 4, target_running=8, upscale_delay_s=1.0, downscale_delay_s=2.0) as url:
        grid = {
            "servers": {"scripted": {"url": url}},
            "variants": [{"name": "scripted"}],
            "workloads": ["support"],
            "loads": [{"steps": steps}],
            "repeats": 1,
            "settle": 0,
            "run": {"poll_s": 1.0},
        }
        (tmp_path / "grid.yaml").write_text(yaml.safe_dump(grid))
        done = loadtest("sweep", str(tmp_path / "grid.yaml"), "--output", str(out), timeout_s=200)
        assert done.returncode == 0, done.stderr
        wait_until(lambda: running("model-scripted") == 1, "one replica is left", 60)
    (record,) = read_runs(out)
    figures = record["figures"]
    assert figures["failed"] == 0 and figures["requests"] >= 40, figures["errors"]
    told = [reading["replicas"] for reading in record["readings"] if "replicas" in reading]
    assert told[0] == 1 and max(told) >= 3, told
    assert here("report", str(out)).returncode == 0
    page = (out / "report.html").read_text()
    assert f"1 to {max(told)}" in page and "replicas over time" in page and f"0 of {figures['requests']}" in page
