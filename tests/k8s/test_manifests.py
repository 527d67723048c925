"""Every overlay renders, and what it renders to is valid: built-in kinds, operators' kinds, YAML's own form."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

from k8s import generate
from k8s.checks import problems
from k8s.commands import main
from k8s.generate import ROOT, generated
from k8s.render import RenderError, externals, render
from tests.k8s import schemas
from tests.k8s.conftest import OVERLAYS, Overlay

Get = Callable[[str], Overlay]

VERSIONS = ("1.30", "1.37")
"""The oldest and the newest Kubernetes that the manifests are for."""

OF_OPERATORS = {"RayService", "RayJob", "PodMonitor", "PrometheusRule"}
OWN_CHECK = {"HTTPRoute"}
"""k8s.checks.addresses.routes_lead_to_services."""


def test_all_overlays_are_listed() -> None:
    assert sorted(OVERLAYS) == sorted(path.name for path in (ROOT / "overlays").iterdir())


@pytest.mark.parametrize("name", OVERLAYS)
@pytest.mark.parametrize("version", VERSIONS)
def test_built_in_kinds_are_valid(overlay: Get, name: str, version: str) -> None:
    checked = 0
    for manifest in [*overlay(name).manifests, *overlay(name).external]:
        if manifest["kind"] not in OF_OPERATORS | OWN_CHECK:
            kubernetes_validate.validate(manifest, version, strict=True)
            checked += 1
    assert checked >= 8


def test_a_field_that_kubernetes_does_not_know_is_refused(overlay: Get) -> None:
    manifest = overlay("dev").one("StatefulSet", "redis")
    manifest["spec"]["template"]["spec"]["containers"][0]["imagePolicy"] = "Always"
    with pytest.raises(kubernetes_validate.ValidationError, match="imagePolicy"):
        kubernetes_validate.validate(manifest, VERSIONS[1], strict=True)


@pytest.mark.may_skip("needs the operators' schemas")
@pytest.mark.parametrize("name", OVERLAYS)
def test_kinds_of_operators_are_valid(overlay: Get, name: str) -> None:
    found = [manifest for manifest in overlay(name).manifests if manifest["kind"] in OF_OPERATORS]
    assert found and [problem for manifest in found for problem in schemas.problems(manifest)] == []


def _at(value: Any, *path: str | int) -> Any:
    for step in path:
        value = value[step]
    return value


WORKER = ("rayClusterConfig", "workerGroupSpecs", 1)


@pytest.mark.may_skip("needs the operators' schemas")
@pytest.mark.parametrize(
    ("kind", "path", "key", "value", "told"),
    [
        ("RayService", (), "serveConfig", "", "serveConfig"),
        ("RayService", WORKER, "idleTimeout", 60, "idleTimeout"),
        ("RayService", WORKER, "maxReplicas", "8", "'8'"),
        ("RayService", (*WORKER, "template", "spec", "containers", 0), "imagePullpolicy", "Always", "imagePullpolicy"),
        ("RayService", ("rayClusterConfig", "autoscalerOptions"), "version", "v3", "v3"),
        ("PodMonitor", (), "endpoints", [], "endpoints"),
        ("PodMonitor", ("podMetricsEndpoints", 0), "scheme", "ftp", "ftp"),
        ("PrometheusRule", ("groups", 0, "rules", 0), "expression", "1", "expression"),
        ("PrometheusRule", ("groups", 0), "name", 1, "1 is not of type"),
    ],
)
def test_what_an_operator_would_refuse_is_found(
    overlay: Get, kind: str, path: tuple[str | int, ...], key: str, value: Any, told: str
) -> None:
    manifest = overlay("gpu").one(kind)
    _at(manifest, "spec", *path)[key] = value
    assert any(told in problem for problem in schemas.problems(manifest))


@pytest.mark.may_skip("needs the operators' schemas")
def test_defaults_count_and_list_maps_are_maps(overlay: Get) -> None:
    manifest = overlay("gpu").one("RayService")
    worker = _at(manifest, "spec", *WORKER)
    del worker["minReplicas"], worker["maxReplicas"]  # required, with defaults
    assert schemas.problems(manifest) == []
    del worker["groupName"]
    assert any("groupName" in problem for problem in schemas.problems(manifest))
    rules = overlay("gpu").one("PrometheusRule")
    rules["spec"]["groups"].append(rules["spec"]["groups"][0])
    assert any("twice" in problem for problem in schemas.problems(rules))


@pytest.mark.parametrize("name", OVERLAYS)
def test_objects_fit_each_other(overlay: Get, name: str) -> None:
    assert problems(overlay(name).manifests, overlay(name).external) == []


def test_yaml_is_tidy() -> None:
    files = sorted(str(path) for path in ROOT.rglob("*.yaml"))
    assert len(files) > 25
    done = subprocess.run(
        [sys.executable, "-m", "yamllint", "--strict", "--config-file", str(ROOT / ".yamllint"), *files],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout


def test_generated_files_are_as_generated() -> None:
    stale = [str(path.relative_to(ROOT)) for path, text in generated().items() if path.read_text() != text]
    assert stale == [], "run `python -m k8s generate`"


def test_a_folder_that_does_not_render_is_told(tmp_path: Path) -> None:
    with pytest.raises(RenderError, match="does not render") as wrong:
        render(tmp_path)
    assert "\n" not in str(wrong.value)
    done = subprocess.run(
        [sys.executable, "-m", "k8s", "check", str(tmp_path)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 2 and done.stderr.count("\n") == 1 and str(tmp_path) in done.stderr


def test_generate_writes_what_is_stale(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = {tmp_path / "new" / "a.yaml": "a: 1\n", tmp_path / "b.yaml": "b: 1\n"}
    (tmp_path / "b.yaml").write_text("b: 1\n")
    monkeypatch.setattr(generate, "generated", lambda: made)
    assert generate.write() == [tmp_path / "new" / "a.yaml"]
    assert (tmp_path / "new" / "a.yaml").read_text() == "a: 1\n" and generate.write() == []


def test_check_command_names_problems(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    service = {"apiVersion": "v1", "kind": "Service", "metadata": {"name": "lost"}, "spec": {"selector": {"a": "b"}}}
    (tmp_path / "service.yaml").write_text(yaml.safe_dump(service))
    (tmp_path / "kustomization.yaml").write_text("resources: [service.yaml]\n")
    assert main(["check", str(tmp_path)]) == 1
    assert "selectors_match: Service lost" in capsys.readouterr().out
    assert main(["check", str(ROOT / "overlays" / "dev")]) == 0
    assert main(["check", "--nonsense"]) == 2


def test_probes_ask_health_and_ready(overlay: Get) -> None:
    """The ingress's by our own paths; a Ray worker by its agent's, which knows whether the node can work."""
    ingress, replicas = _at(overlay("gpu").one("RayService"), "spec", "rayClusterConfig", "workerGroupSpecs")
    (container,) = ingress["template"]["spec"]["containers"]
    paths = {kind: container[f"{kind}Probe"]["httpGet"]["path"] for kind in ("startup", "readiness")}
    assert paths == {"startup": "/ready", "readiness": "/health"}
    agent = _at(replicas, "template", "spec", "containers", 0)["readinessProbe"]["httpGet"]
    assert agent["path"] == "/api/healthz"


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("enableInTreeAutoscaling",), True),
        (("autoscalerOptions", "version"), "v2"),
        (("gcsFaultToleranceOptions", "redisAddress"), "redis://gcs-redis:6379"),
        (("headGroupSpec", "resources", "CPU"), "0"),
        (("workerGroupSpecs", 0, "groupName"), "ingress"),
        (("workerGroupSpecs", 1, "idleTimeoutSeconds"), 600),
    ],
)
def test_the_cluster_is_as_documented(overlay: Get, path: tuple[str | int, ...], value: Any) -> None:
    service = overlay("gpu").one("RayService")
    assert _at(service, "spec", "rayClusterConfig", *path) == value
    assert _at(service, "spec", "upgradeStrategy", "type") == "NewCluster"
    for group in _at(service, "spec", "rayClusterConfig", "workerGroupSpecs"):
        assert _at(group, "template", "spec")["topologySpreadConstraints"]
    assert overlay("gpu").one("PodDisruptionBudget", "racer-ingress")


@pytest.mark.parametrize("component", sorted(path.name for path in (ROOT / "components").iterdir()))
def test_each_component_fits_the_base_alone(component: str, tmp_path: Path) -> None:
    """In an overlay of one's own, beside those that come along."""
    folder = tmp_path / "k8s" / "overlays" / "own"
    shutil.copytree(ROOT, tmp_path / "k8s")
    shutil.copytree(ROOT / "overlays" / "gpu", folder)
    settings = yaml.safe_load((folder / "kustomization.yaml").read_text())
    secrets = "secrets.example.yaml"  # those for TLS too
    (folder / secrets).write_text((ROOT / "overlays" / "multi-gpu" / secrets).read_text())
    rendered = []
    for chosen in ([], [f"../../components/{component}"]):
        (folder / "kustomization.yaml").write_text(yaml.safe_dump(settings | {"components": chosen}))
        rendered.append(render(folder))
        assert problems(rendered[-1], externals(folder)) == []
    assert rendered[0] != rendered[1]
