"""Space on nodes' disks, and what outlives a deletion."""

from __future__ import annotations

from collections.abc import Iterator

from k8s.checks.world import Pod, World, quantity, ray_cluster

STORAGE = "ephemeral-storage"


def storage_covers_volumes(world: World) -> Iterator[str]:
    """Scratch volumes on a node's disk have a size, and the containers' limits have room for them.

    A pod is evicted when its logs, its containers' layers and these volumes together are larger than the limits.
    """
    for pod in world.pods:
        volumes, unbounded = 0.0, False
        for volume in pod.spec.get("volumes", []):
            scratch = volume.get("emptyDir")
            if scratch is None or scratch.get("medium") == "Memory":
                continue
            if "sizeLimit" not in scratch:
                unbounded = True
                yield f"{pod.role}: volume {volume['name']} has no sizeLimit"
            else:
                volumes += quantity(scratch["sizeLimit"])
        limit = _limit(world, pod)
        if not unbounded and limit <= volumes:
            yield (
                f"{pod.role}: the limits of {STORAGE}, {limit / 2**30:.2f}Gi together, leave nothing beside the "
                f"volumes' {volumes / 2**30:.2f}Gi"
            )


def _limit(world: World, pod: Pod) -> float:
    """Of all containers that run at the same time; beside Ray's head that is the autoscaler."""
    found = [container.get("resources", {}) for container in pod.spec["containers"]]
    if pod.labels.get("ray.io/node-type") == "head":
        found += [
            ray_cluster(manifest).get("autoscalerOptions", {}).get("resources", {})
            for manifest in world.of("RayService", "RayJob")
            if pod.role == f"{manifest['kind']} {manifest['metadata']['name']} head"
        ]
    return sum(quantity(resources.get("limits", {}).get(STORAGE, 0)) for resources in found)


def results_outlive_deletion(world: World) -> Iterator[str]:
    """What a job has written is not deleted with it: its claims and their namespace are made apart."""
    applied = {(manifest["kind"], manifest["metadata"]["name"]) for manifest in world.manifests}
    for job in world.of("RayJob"):
        name = f"RayJob {job['metadata']['name']}"
        for pod in (pod for pod in world.pods if pod.role.startswith(f"{name} ")):
            for volume in pod.spec.get("volumes", []):
                claim = volume.get("persistentVolumeClaim", {}).get("claimName")
                if ("PersistentVolumeClaim", claim) in applied:
                    yield f"{pod.role}: `kubectl delete -k` would delete the claim {claim} and what it has written"
        if ("Namespace", namespace := job["metadata"].get("namespace")) in applied:
            yield f"{name}: `kubectl delete -k` would delete the namespace {namespace}, and the claims in it"
