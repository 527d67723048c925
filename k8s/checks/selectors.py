"""Names and selectors."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

from k8s.checks.world import World, matches


def names_differ(world: World) -> Iterator[str]:
    """No two objects of one kind share a name, nor do containers or volumes of a pod."""
    of_objects = Counter(f"{m['kind']} {m['metadata']['name']}" for m in world.manifests)
    for name, times in of_objects.items():
        if times > 1:
            yield f"{name} is there {times} times"
    for pod in world.pods:
        for what, things in (("container", pod.containers), ("volume", pod.spec.get("volumes", []))):
            for name, times in Counter(thing["name"] for thing in things).items():
                if times > 1:
                    yield f"{pod.role}: {what} {name} is there {times} times"


def selectors_match(world: World) -> Iterator[str]:
    """Every selector matches a pod, and a workload's its own."""
    for manifest in world.manifests:
        for where, selector in _selectors(manifest):
            if selector and not world.selected(selector):
                yield f"{manifest['kind']} {manifest['metadata']['name']}: {where} matches no pod"
    for manifest in world.of("Deployment", "StatefulSet", "DaemonSet"):
        labels = manifest["spec"]["template"]["metadata"].get("labels", {})
        if not matches(manifest["spec"]["selector"], labels):
            yield f"{manifest['kind']} {manifest['metadata']['name']}: its selector does not match its own pods"
    for pod in world.pods:
        for constraint in pod.spec.get("topologySpreadConstraints", []):
            if not matches(constraint["labelSelector"], pod.labels):
                yield f"{pod.role}: topology spread over {constraint['topologyKey']} does not count the pod itself"


def _selectors(manifest: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    kind, spec = manifest["kind"], manifest.get("spec", {})
    if kind == "Service":
        yield "selector", {"matchLabels": spec.get("selector", {})}
    elif kind in ("PodDisruptionBudget", "PodMonitor"):
        yield "selector", spec["selector"]
    elif kind == "NetworkPolicy":
        yield "podSelector", spec["podSelector"]
        for side, peers in (("ingress", "from"), ("egress", "to")):
            for number, rule in enumerate(spec.get(side, [])):
                for peer in rule.get(peers, []):
                    if "podSelector" in peer and "namespaceSelector" not in peer:
                        yield f"{side}[{number}].{peers}", peer["podSelector"]


def budgets_can_be_kept(world: World) -> Iterator[str]:
    """A budget over pods that KubeRay makes counts them: Kubernetes cannot know how many there should be."""
    for budget in world.of("PodDisruptionBudget"):
        spec, name = budget["spec"], budget["metadata"]["name"]
        groups = [pod.group for pod in world.selected(spec["selector"]) if pod.group is not None]
        kept = spec.get("minAvailable")
        if groups and not isinstance(kept, int):
            yield f"PodDisruptionBudget {name}: pods of a Ray cluster need minAvailable as a number"
        elif groups and kept >= (least := sum(group.get("minReplicas", 1) for group in groups)):
            yield f"PodDisruptionBudget {name}: with {least} pods and minAvailable {kept} no node can be drained"
