"""A real Prometheus, and promtool, for the rules and the dashboard."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from tests.datastore.servers import free_ports
from tests.deployments.local import wait_until


def program(name: str) -> str:
    """Path of ``prometheus`` or ``promtool``; skips the test where it is missing."""
    path = shutil.which(name)
    if path is None:
        pytest.skip(f"{name} is not installed (Debian: apt-get install prometheus)")
    return path


def promtool(*args: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """Run promtool in ``folder``."""
    return subprocess.run([program("promtool"), *args], cwd=folder, capture_output=True, text=True, check=False)


class Prometheus:
    """Scrapes ``targets`` every second and evaluates ``rules`` as often; a context that ends it."""

    def __init__(self, folder: Path, targets: Sequence[str], rules: dict[str, Any], relabel: list[Any]) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        for group in rules["groups"]:
            group["interval"] = "1s"
        (folder / "rules.yaml").write_text(yaml.safe_dump(rules))
        scrape = {
            "job_name": "racer",
            "static_configs": [{"targets": list(targets)}],
            "metric_relabel_configs": [
                {"source_labels": rule["sourceLabels"], "regex": rule["regex"], "action": rule["action"]}
                for rule in relabel
            ],
        }
        config = {"global": {"scrape_interval": "1s"}, "rule_files": ["rules.yaml"], "scrape_configs": [scrape]}
        (folder / "prometheus.yaml").write_text(yaml.safe_dump(config))
        (self.port,) = free_ports(1)
        self._folder = folder
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Prometheus:
        command = [program("prometheus"), "--config.file=prometheus.yaml", "--storage.tsdb.path=data"]
        command.append(f"--web.listen-address=127.0.0.1:{self.port}")
        with (self._folder / "log").open("wb") as log:
            self._process = subprocess.Popen(command, cwd=self._folder, stdout=log, stderr=log)
        wait_until(self._answers, f"Prometheus answers\n{(self._folder / 'log').read_text()}", 30)
        return self

    def __exit__(self, *exception: object) -> None:
        assert self._process is not None
        self._process.terminate()
        self._process.wait(20)

    def _answers(self) -> bool:
        try:
            return httpx.get(f"http://127.0.0.1:{self.port}/-/ready", timeout=5).status_code == 200
        except httpx.HTTPError:
            return False

    def query(self, text: str) -> list[dict[str, Any]]:
        """Series that a query returns now, those without a number left out."""
        answer = httpx.get(f"http://127.0.0.1:{self.port}/api/v1/query", params={"query": text}, timeout=30).json()
        assert answer["status"] == "success", (text, answer)
        found: list[dict[str, Any]] = answer["data"]["result"]
        return [series for series in found if series["value"][1] != "NaN"]
