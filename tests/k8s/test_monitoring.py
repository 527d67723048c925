"""Rules and dashboard: valid, each alert fires when it should and not otherwise, and each says what to do."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from k8s.dashboard import PANELS
from tests.k8s.conftest import Overlay
from tests.k8s.prometheus import promtool

Get = Callable[[str], Overlay]
RUNBOOK = Path(__file__).parents[2] / "docs" / "runbook.md"
CASES = Path(__file__).with_name("alerts.yaml")


@pytest.fixture
def rules(overlay: Get) -> dict[str, Any]:
    spec: dict[str, Any] = overlay("gpu").one("PrometheusRule")["spec"]
    return spec


def alerts(rules: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {rule["alert"]: rule for group in rules["groups"] for rule in group["rules"] if "alert" in rule}


def test_rules_are_valid(rules: dict[str, Any], tmp_path: Path) -> None:
    (tmp_path / "rules.yaml").write_text(yaml.safe_dump(rules))
    done = promtool("check", "rules", "--lint=all", "--lint-fatal", "rules.yaml", folder=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    rules["groups"][0]["rules"][0]["expr"] = "sum by (model ("
    (tmp_path / "rules.yaml").write_text(yaml.safe_dump(rules))
    assert promtool("check", "rules", "rules.yaml", folder=tmp_path).returncode != 0


def run_cases(rules: dict[str, Any], folder: Path) -> tuple[int, str]:
    (folder / "rules.yaml").write_text(yaml.safe_dump(rules))
    (folder / "cases.yaml").write_text(CASES.read_text())
    done = promtool("test", "rules", "cases.yaml", folder=folder)
    return done.returncode, done.stdout + done.stderr


def test_alerts_fire_when_they_should(rules: dict[str, Any], tmp_path: Path) -> None:
    """tests/k8s/alerts.yaml: for each alert one series that raises it and one that does not."""
    code, told = run_cases(rules, tmp_path)
    assert code == 0, told
    cases = yaml.safe_load(CASES.read_text())["tests"]
    tried = {
        (case["alertname"], bool(case.get("exp_alerts"))) for test in cases for case in test.get("alert_rule_test", [])
    }
    assert tried == {(name, fires) for name in alerts(rules) for fires in (True, False)}


def test_alerts_that_never_fire_are_found(rules: dict[str, Any], tmp_path: Path) -> None:
    for alert in alerts(rules).values():
        alert["expr"] = f"({alert['expr']}) > 1e12"
    code, told = run_cases(rules, tmp_path)
    assert code != 0 and all(name in told for name in alerts(rules)), told


def test_every_alert_says_what_to_do(rules: dict[str, Any]) -> None:
    headings = {match.lower() for match in re.findall(r"^## (\w+)", RUNBOOK.read_text(), flags=re.MULTILINE)}
    for name, alert in alerts(rules).items():
        said = alert["annotations"]
        assert said["runbook"] == f"docs/runbook.md#{name.lower()}" and name.lower() in headings
        assert said["summary"] and said["description"] and alert["labels"]["severity"]


def test_dashboard_is_in_its_config_map(overlay: Get) -> None:
    config = overlay("gpu").one("ConfigMap", "racer-dashboard")
    assert config["metadata"]["labels"]["grafana_dashboard"] == "1"
    board = json.loads(config["data"]["racer-serve.json"])
    assert [panel["title"] for panel in board["panels"]] == [panel.title for panel in PANELS]
    places = [(p["gridPos"]["x"], p["gridPos"]["y"]) for p in board["panels"]]
    assert len(set(places)) == len(places)
