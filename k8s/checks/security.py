"""What containers and accounts may do, and what KubeRay's operator refuses."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from k8s.checks.world import World, ray_cluster, ray_groups

_CONTAINER = {"allowPrivilegeEscalation": False, "readOnlyRootFilesystem": True, "privileged": False}
_OF_RAY_START = {"num-cpus", "num-gpus", "memory", "resources"}


def containers_are_confined(world: World) -> Iterator[str]:
    """Not root, root file system read-only, no privilege, no capability, the runtime's system call filter."""
    for pod in world.pods:
        context = pod.spec.get("securityContext", {})
        if context.get("runAsNonRoot") is not True:
            yield f"{pod.role}: runAsNonRoot is not true"
        if context.get("seccompProfile", {}).get("type") != "RuntimeDefault":
            yield f"{pod.role}: the seccomp profile is not RuntimeDefault"
        for container in pod.containers:
            yield from _confined(f"{pod.role}: {container['name']}", container.get("securityContext", {}))
    for manifest in world.of("RayService", "RayJob"):
        options = ray_cluster(manifest).get("autoscalerOptions", {})
        name = f"{manifest['kind']} {manifest['metadata']['name']}: autoscaler"
        yield from _confined(name, options.get("securityContext", {}))


def _confined(who: str, context: Mapping[str, Any]) -> Iterator[str]:
    for key, wanted in _CONTAINER.items():
        if context.get(key) is not wanted:
            yield f"{who}: {key} is not {str(wanted).lower()}"
    if context.get("capabilities", {}).get("drop") != ["ALL"] or context["capabilities"].get("add"):
        yield f"{who}: not all capabilities are dropped"


def accounts_have_no_rights(world: World) -> Iterator[str]:
    """No roles are bound, and no token is mounted but in Ray's head, whose autoscaler has KubeRay's."""
    for manifest in world.of("Role", "ClusterRole", "RoleBinding", "ClusterRoleBinding"):
        yield f"{manifest['kind']} {manifest['metadata']['name']} gives rights"
    for account in world.of("ServiceAccount"):
        if account.get("automountServiceAccountToken") is not False:
            yield f"ServiceAccount {account['metadata']['name']} mounts its token"
    for pod in world.pods:
        head = pod.labels.get("ray.io/node-type") == "head"
        if head and pod.spec.get("serviceAccountName"):
            yield f"{pod.role}: its account is KubeRay's to make, for the autoscaler alone"
        if not head and (not pod.spec.get("serviceAccountName") or pod.spec.get("automountServiceAccountToken", True)):
            yield f"{pod.role}: needs an account of its own, whose token is not mounted"


def operator_accepts(world: World) -> Iterator[str]:
    """Rules that the operator holds against a cluster and its schema does not."""
    for manifest in world.of("RayService", "RayJob"):
        name = f"{manifest['kind']} {manifest['metadata']['name']}"
        cluster = ray_cluster(manifest)
        options = cluster.get("autoscalerOptions", {})
        v2 = cluster.get("enableInTreeAutoscaling", False) and options.get("version") == "v2"
        for group, kind in ray_groups(manifest):
            who = f"{name}: group {group.get('groupName', kind)}"
            if group.get("resources") and _OF_RAY_START & set(group.get("rayStartParams", {})):
                yield f"{who}: resources stand in rayStartParams too"
            if v2 and group["template"]["spec"].get("restartPolicy", "Never") != "Never":
                yield f"{who}: the autoscaler v2 needs restartPolicy Never"
            if group.get("idleTimeoutSeconds") is not None and not v2:
                yield f"{who}: idleTimeoutSeconds needs the autoscaler v2"
        head = cluster["headGroupSpec"]["template"]["spec"]["containers"][0]
        managed = {"REDIS_PASSWORD", "REDIS_USERNAME", "RAY_REDIS_ADDRESS"}
        for variable in head.get("env", []):
            if variable["name"] in managed and "gcsFaultToleranceOptions" in cluster:
                yield f"{name}: {variable['name']} of the head is gcsFaultToleranceOptions' to set"
