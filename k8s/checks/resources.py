"""Images, requests and limits."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from k8s.checks.world import World, quantity, ray_cluster

_OF_EVERY_CONTAINER = ("cpu", "memory", "ephemeral-storage")


def images_agree(world: World) -> Iterator[str]:
    """Every image has a fixed tag, and the same one wherever it is used."""
    tags: dict[str, dict[str, str]] = {}
    for pod in world.pods:
        for container in pod.containers:
            name, _, tag = container["image"].rpartition(":")
            if not name or tag == "latest":
                yield f"{pod.role}: image {container['image']} has no fixed tag"
            elif (other := tags.setdefault(name, {})) and tag not in other:
                yield f"{pod.role}: image {name} is {tag} here and {next(iter(other))} in {next(iter(other.values()))}"
            else:
                other[tag] = pod.role


def limits_cover_requests(world: World) -> Iterator[str]:
    """Every container asks for processors, memory and disk, and may have at least what it asks for."""
    for who, resources in _all(world):
        requests, limits = resources.get("requests", {}), resources.get("limits", {})
        for name in _OF_EVERY_CONTAINER:
            for what, values in (("requests", requests), ("limits", limits)):
                if name not in values:
                    yield f"{who}: {what}.{name} is missing"
        for name in requests.keys() & limits.keys():
            if quantity(limits[name]) < quantity(requests[name]):
                yield f"{who}: the limit of {name}, {limits[name]}, is below the request, {requests[name]}"
        for name in (requests.keys() | limits.keys()) - set(_OF_EVERY_CONTAINER):
            if requests.get(name) != limits.get(name):
                yield f"{who}: request and limit of {name} must be equal"


def _all(world: World) -> Iterator[tuple[str, dict[str, Any]]]:
    for pod in world.pods:
        for container in pod.containers:
            yield f"{pod.role}: {container['name']}", container.get("resources", {})
    for manifest in world.of("RayService", "RayJob"):
        if (options := ray_cluster(manifest).get("autoscalerOptions")) is not None:
            yield f"{manifest['kind']} {manifest['metadata']['name']}: autoscaler", options.get("resources", {})
