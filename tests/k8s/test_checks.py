"""Each check of our own catches a bad manifest, and names what is wrong."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from k8s.checks import CHECKS, problems
from k8s.checks.world import quantity
from tests.k8s.bad_manifests import ALL_BAD, Spoil, named, spec
from tests.k8s.conftest import Overlay

Get = Callable[[str], Overlay]


@pytest.mark.parametrize(
    ("name", "check", "told", "spoil"), ALL_BAD, ids=[f"{check}:{told}" for _, check, told, _ in ALL_BAD]
)
def test_bad_manifest_is_caught(overlay: Get, name: str, check: str, told: str, spoil: Spoil) -> None:
    objects, external = named(overlay(name).manifests), overlay(name).external
    assert problems(list(objects.values()), external) == []
    spoil(objects)
    found = [one for one in problems(list(objects.values()), external) if one.startswith(f"{check}:")]
    assert any(told in problem for problem in found), found


def test_route_to_nowhere_is_caught(overlay: Get) -> None:
    gateway = overlay("multi-gpu")
    for change, told in (
        ({"backendRefs": [{"name": "other", "port": 80}]}, "other is no service"),
        ({"backendRefs": [{"name": "racer", "port": 81}]}, "no port 81"),
        ({"backends": []}, "unknown field backends"),
    ):
        objects = named(gateway.manifests)
        spec(objects, "HTTPRoute racer")["rules"][0].update(change)
        found = problems(list(objects.values()), gateway.external)
        assert any("routes_lead_to_services" in problem and told in problem for problem in found), found


def test_monitor_of_a_port_that_no_pod_has_is_caught(overlay: Get) -> None:
    objects = named(overlay("gpu").manifests)
    spec(objects, "PodMonitor racer")["podMetricsEndpoints"][0]["port"] = "metric"
    found = problems(list(objects.values()), overlay("gpu").external)
    assert any("PodMonitor racer" in problem for problem in found)


def test_every_check_has_a_bad_manifest() -> None:
    spoilt = {check for _, check, _, _ in ALL_BAD}
    assert {check.__name__ for check in CHECKS} - spoilt == {"routes_lead_to_services"}


@pytest.mark.parametrize(("text", "value"), [("500m", 0.5), ("2Gi", 2 * 1024**3), (4, 4.0), ("1536Mi", 1.5 * 1024**3)])
def test_quantities(text: object, value: float) -> None:
    assert quantity(text) == value
    with pytest.raises(ValueError, match="2GB"):
        quantity("2GB")
