"""The objects of an overlay, and the pods that they come to."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import yaml

from k8s.render import Manifest

_UNITS = {"": 1.0, "m": 1e-3, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12} | {
    f"{letter}i": 1024.0**power for power, letter in enumerate("KMGT", start=1)
}
_QUANTITY = re.compile(r"([0-9.]+)([A-Za-z]*)")


def quantity(text: Any) -> float:
    """A Kubernetes quantity ("500m", "2Gi", 4) as a number.

    Raises:
        ValueError: it is none.
    """
    match = _QUANTITY.fullmatch(str(text))
    if match is None or match[2] not in _UNITS:
        raise ValueError(f"{text!r} is no quantity")
    return float(match[1]) * _UNITS[match[2]]


@dataclass(frozen=True)
class Pod:
    """A pod template: ``role`` says whose, ``group`` is the Ray group's spec where there is one."""

    role: str
    labels: Mapping[str, str]
    spec: Mapping[str, Any]
    group: Mapping[str, Any] | None = field(default=None, compare=False)

    @property
    def containers(self) -> list[dict[str, Any]]:
        """All its containers, those that only prepare included."""
        return [*self.spec.get("initContainers", []), *self.spec["containers"]]

    def ports(self) -> set[str | int]:
        """Names and numbers of the ports it declares."""
        declared = [port for container in self.containers for port in container.get("ports", [])]
        return {port.get("name", "") for port in declared} | {port["containerPort"] for port in declared}


class World:
    """``manifests`` are applied, ``external`` ones exist before."""

    def __init__(self, manifests: Sequence[Manifest], external: Sequence[Manifest] = ()) -> None:
        self.manifests = list(manifests)
        self.external = list(external)

    def of(self, *kinds: str) -> Iterator[Manifest]:
        """All objects of these kinds, external ones too."""
        return (m for m in [*self.manifests, *self.external] if m["kind"] in kinds)

    def find(self, kind: str, name: str) -> Manifest | None:
        """The object of this kind and name."""
        return next((m for m in self.of(kind) if m["metadata"]["name"] == name), None)

    @cached_property
    def pods(self) -> list[Pod]:
        """Every pod template, of workloads and of Ray's groups."""
        found = []
        for manifest in self.of("Deployment", "StatefulSet", "DaemonSet", "Job"):
            template = manifest["spec"]["template"]
            role = f"{manifest['kind']} {manifest['metadata']['name']}"
            found.append(Pod(role, template["metadata"].get("labels", {}), template["spec"]))
        for manifest in self.of("RayService", "RayJob"):
            name = f"{manifest['kind']} {manifest['metadata']['name']}"
            if submitter := manifest["spec"].get("submitterPodTemplate"):
                labels = submitter.get("metadata", {}).get("labels", {})
                found.append(Pod(f"{name} submitter", labels, submitter["spec"]))
            for group, node_type in ray_groups(manifest):
                template = group["template"]
                given = template.get("metadata", {}).get("labels", {})
                labels = given | {"ray.io/node-type": node_type}
                found.append(Pod(f"{name} {group.get('groupName', 'head')}", labels, template["spec"], group))
        return found

    def selected(self, selector: Mapping[str, Any]) -> list[Pod]:
        """Pods that a label selector matches; an empty one matches all."""
        return [pod for pod in self.pods if matches(selector, pod.labels)]

    def served(self) -> Iterator[tuple[Manifest, dict[str, Any]]]:
        """Each RayService with the arguments of its application."""
        for manifest in self.of("RayService"):
            config = yaml.safe_load(manifest["spec"].get("serveConfigV2") or "") or {}
            for application in config.get("applications", []):
                yield manifest, application["args"]


def ray_cluster(manifest: Manifest) -> dict[str, Any]:
    """The cluster that a RayService or RayJob describes."""
    spec = manifest["spec"]
    cluster: dict[str, Any] = spec.get("rayClusterConfig") or spec["rayClusterSpec"]
    return cluster


def ray_groups(manifest: Manifest) -> list[tuple[dict[str, Any], str]]:
    """Its groups, each with "head" or "worker"."""
    cluster = ray_cluster(manifest)
    workers = [(group, "worker") for group in cluster.get("workerGroupSpecs", [])]
    return [(cluster["headGroupSpec"], "head"), *workers]


def matches(selector: Mapping[str, Any], labels: Mapping[str, str]) -> bool:
    """Whether a label selector (matchLabels, matchExpressions) matches ``labels``."""
    if any(labels.get(key) != value for key, value in selector.get("matchLabels", {}).items()):
        return False
    for rule in selector.get("matchExpressions", []):
        value, wanted = labels.get(rule["key"]), rule.get("values", [])
        holds = {
            "In": value in wanted,
            "NotIn": value not in wanted,
            "Exists": value is not None,
            "DoesNotExist": value is None,
        }
        if not holds[rule["operator"]]:
            return False
    return True
