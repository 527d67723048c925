"""Who may reach whom."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from k8s.checks.world import Pod, World, matches

_COMPONENT = "app.kubernetes.io/component"
_OPEN = "ingress"
_CLIENTS = {"datastore": {"replica", "datastore"}, "cluster-state": {"head", "cluster-state"}}
"""Components whose pods are Redis servers, and those whose pods may reach them."""


def networks_are_closed(world: World) -> Iterator[str]:
    """Every pod has a policy; only the ingress is open to all; Redis servers are reached by their clients alone."""
    policies = [p for p in world.of("NetworkPolicy") if "Ingress" in p["spec"].get("policyTypes", ["Ingress"])]
    for pod in world.pods:
        own = [policy for policy in policies if matches(policy["spec"]["podSelector"], pod.labels)]
        if not own:
            yield f"{pod.role}: no NetworkPolicy restricts who reaches it"
        for policy in own:
            for rule in policy["spec"].get("ingress", []):
                for problem in _too_open(world, pod, rule):
                    yield f"NetworkPolicy {policy['metadata']['name']}: {problem}"


def _too_open(world: World, pod: Pod, rule: dict[str, Any]) -> Iterator[str]:
    component = pod.labels.get(_COMPONENT, "")
    if not rule.get("from"):
        if component != _OPEN:
            yield f"everybody reaches {pod.role}"
        elif not rule.get("ports"):
            yield f"everybody reaches every port of {pod.role}"
    if (clients := _CLIENTS.get(component)) is None:
        return
    for peer in rule.get("from", []):
        if set(peer) != {"podSelector"}:
            yield f"others than pods of this namespace reach {pod.role}"
        for other in world.selected(peer.get("podSelector", {})):
            if other.labels.get(_COMPONENT) not in clients:
                yield f"{other.role} reaches {pod.role}"
