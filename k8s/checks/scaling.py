"""Numbers of replicas, what fits where, and how long an end may take."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

from deployments.config import AppConfig
from k8s.checks.world import World, quantity, ray_cluster, ray_groups
from k8s.render import Manifest

_PACK = "RAY_SERVE_USE_PACK_SCHEDULING_STRATEGY"
_STOP_S = 20
"""What a pod needs to end after its drain."""


def bounds_are_ordered(world: World) -> Iterator[str]:
    """In each group minReplicas ≤ replicas ≤ maxReplicas."""
    for manifest in world.of("RayService", "RayJob"):
        for group in ray_cluster(manifest).get("workerGroupSpecs", []):
            least, now, most = (group.get(key, 0) for key in ("minReplicas", "replicas", "maxReplicas"))
            if not 0 <= least <= now <= most:
                yield (
                    f"{manifest['kind']} {manifest['metadata']['name']}: group {group['groupName']} has minReplicas "
                    f"{least}, replicas {now}, maxReplicas {most}; they must ascend"
                )


def deployments_fit(world: World) -> Iterator[str]:
    """Groups have nodes that replicas fit on, and enough for all of them; a node claims no more than its pod has."""
    for manifest in world.of("RayService", "RayJob"):
        yield from _claims(manifest)
    for manifest, args in world.served():
        config = AppConfig.model_validate(args)
        groups = [group for group, _ in ray_groups(manifest)]
        ingress = {"CPU": config.ingress_cpus} | config.ingress_resources
        wanted = {"the ingress": (ingress, config.ingress_replicas)}
        for model in config.models:
            demand = {"CPU": model.num_cpus, "GPU": model.num_gpus} | model.resources
            wanted[f"model {model.name}"] = (demand, model.autoscaling.max_replicas)
        for what, (demand, number) in wanted.items():
            room = sum(_fitting(demand, group) for group in groups)
            if room < number:
                yield (
                    f"RayService {manifest['metadata']['name']}: {what} may have {number} replicas, but its groups "
                    f"have room for {room}"
                )


def _claims(manifest: Manifest) -> Iterator[str]:
    for group, kind in ray_groups(manifest):
        name = f"{manifest['kind']} {manifest['metadata']['name']}: group {group.get('groupName', kind)}"
        limits = group["template"]["spec"]["containers"][0].get("resources", {}).get("limits", {})
        for resource, of_pod in (("CPU", "cpu"), ("GPU", "nvidia.com/gpu")):
            claimed = quantity(group.get("resources", {}).get(resource, 0))
            if claimed > quantity(limits.get(of_pod, 0)):
                yield f"{name} claims {claimed:g} {resource}, its pod may have {limits.get(of_pod, 0)}"


def _fitting(demand: Mapping[str, float], group: Mapping[str, Any]) -> int:
    """Replicas with this ``demand`` that all nodes of ``group`` hold at most."""
    return _on_one_node(demand, group) * int(group.get("maxReplicas", 1))


def _on_one_node(demand: Mapping[str, float], group: Mapping[str, Any]) -> int:
    has = {name: quantity(value) for name, value in group.get("resources", {}).items()}
    needed = {name: amount for name, amount in demand.items() if amount > 0}
    return min((math.floor(has.get(name, 0.0) / amount + 1e-9) for name, amount in needed.items()), default=0)


def packed_replicas_need_two_nodes(world: World) -> Iterator[str]:
    """Where Serve fills one node before the next, the fewest replicas are more than one node holds.

    Else all of them may be on one node, whose loss ends the service, whatever pods are spread over.
    """
    for manifest, args in world.served():
        name = f"RayService {manifest['metadata']['name']}"
        if not _is_packed(world, manifest):
            continue
        for model in AppConfig.model_validate(args).models:
            demand = {"CPU": model.num_cpus, "GPU": model.num_gpus} | model.resources
            fewest = model.autoscaling.min_replicas
            for group in ray_cluster(manifest).get("workerGroupSpecs", []):
                each = _on_one_node(demand, group)
                if each and 0 < fewest <= each:
                    yield (
                        f"{name}: replicas are packed, and one node of group {group['groupName']} holds all {fewest} "
                        f"of model {model.name} at rest; set min_replicas above {each}"
                    )
                elif each and fewest > each * group.get("minReplicas", 0):
                    yield (
                        f"{name}: {fewest} replicas of model {model.name} at rest need more than the minReplicas "
                        f"{group.get('minReplicas', 0)} of group {group['groupName']}"
                    )


def _is_packed(world: World, manifest: Manifest) -> bool:
    names = [
        source.get("configMapRef", {}).get("name", "")
        for source in ray_cluster(manifest)["headGroupSpec"]["template"]["spec"]["containers"][0].get("envFrom", [])
    ]
    found = (world.find("ConfigMap", name) for name in names)
    return any((config or {}).get("data", {}).get(_PACK) == "1" for config in found)


def drains_end_in_time(world: World) -> Iterator[str]:
    """A pod sleeps longer before its end than the longest answer may take, and is not killed meanwhile."""
    for manifest, args in world.served():
        config = AppConfig.model_validate(args)
        for model in config.models:
            if model.drain_s < config.limits.timeout_s:
                yield (
                    f"RayService {manifest['metadata']['name']}: model {model.name} drains for {model.drain_s:g} s, "
                    f"but an answer may take {config.limits.timeout_s:g} s (limits.timeout_s)"
                )
        drain_s = max(model.drain_s for model in config.models)
        for group, kind in ray_groups(manifest):
            name = f"RayService {manifest['metadata']['name']}: group {group.get('groupName', kind)}"
            spec = group["template"]["spec"]
            hook = spec["containers"][0].get("lifecycle", {}).get("preStop", {})
            sleeps_s = hook.get("sleep", {}).get("seconds", 0)
            grace_s = spec.get("terminationGracePeriodSeconds", 30)
            if sleeps_s <= drain_s:
                yield f"{name}: preStop sleeps {sleeps_s} s, which is not longer than the drain of {drain_s:g} s"
            if grace_s < sleeps_s + _STOP_S:
                yield f"{name}: terminationGracePeriodSeconds is {grace_s}, not preStop's {sleeps_s} and {_STOP_S} more"
