"""Secrets, configurations, volumes, accounts and variables that something refers to."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import PurePosixPath
from typing import Any

from k8s.checks.world import Pod, World, ray_cluster

_VARIABLE = re.compile(r"\$(?:(\w+)|\{(\w+)\})")
_DEPENDENT = re.compile(r"\$\((\w+)\)")


def references_exist(world: World) -> Iterator[str]:
    """Every Secret, ConfigMap, claim and account exists, with the keys that are asked of it."""
    for pod in world.pods:
        account = pod.spec.get("serviceAccountName")
        if account and world.find("ServiceAccount", account) is None:
            yield f"{pod.role}: there is no ServiceAccount {account}"
        for volume in pod.spec.get("volumes", []):
            yield from _volume(world, pod, volume)
        for container in pod.containers:
            for source in container.get("envFrom", []):
                for kind, field in (("ConfigMap", "configMapRef"), ("Secret", "secretRef")):
                    if field in source:
                        yield from _missing(world, pod.role, kind, source[field]["name"], [])
            for variable in container.get("env", []):
                yield from _value_from(world, pod.role, variable)
    for manifest in world.of("RayService", "RayJob"):
        options = ray_cluster(manifest).get("gcsFaultToleranceOptions", {})
        for field in ("redisUsername", "redisPassword"):
            yield from _value_from(world, f"{manifest['kind']} {manifest['metadata']['name']}", options.get(field, {}))


def _value_from(world: World, who: str, variable: Mapping[str, Any]) -> Iterator[str]:
    source = variable.get("valueFrom", {})
    for kind, field in (("ConfigMap", "configMapKeyRef"), ("Secret", "secretKeyRef")):
        if field in source:
            yield from _missing(world, who, kind, source[field]["name"], [source[field]["key"]])


def _volume(world: World, pod: Pod, volume: Mapping[str, Any]) -> Iterator[str]:
    if "persistentVolumeClaim" in volume:
        claim = volume["persistentVolumeClaim"]["claimName"]
        if world.find("PersistentVolumeClaim", claim) is None:
            yield f"{pod.role}: there is no PersistentVolumeClaim {claim}"
    for kind, name, keys in _sources(volume):
        yield from _missing(world, pod.role, kind, name, keys)


def _sources(volume: Mapping[str, Any]) -> Iterator[tuple[str, str, list[str]]]:
    """(kind, name, keys) of what a volume is filled from; no keys: all."""
    for source in [volume, *volume.get("projected", {}).get("sources", [])]:
        for kind, field in (("ConfigMap", "configMap"), ("Secret", "secret")):
            if field in source:
                name = source[field].get("name") or source[field]["secretName"]
                yield kind, name, [item["key"] for item in source[field].get("items", [])]


def _missing(world: World, who: str, kind: str, name: str, keys: list[str]) -> Iterator[str]:
    found = world.find(kind, name)
    if found is None:
        yield f"{who}: there is no {kind} {name}"
        return
    for key in keys:
        if key not in _keys(found):
            yield f"{who}: the {kind} {name} has no key {key}"


def _keys(manifest: Mapping[str, Any]) -> set[str]:
    return {key for field in ("data", "stringData", "binaryData") for key in manifest.get(field) or {}}


def mounts_exist(world: World) -> Iterator[str]:
    """Containers mount volumes that their pod has, and files that commands and configurations name are there."""
    for pod in world.pods:
        own = {volume["name"] for volume in pod.spec.get("volumes", [])}
        for container in pod.containers:
            claims = {"data"} if pod.role.startswith("StatefulSet") and _claims(world, pod) else set()
            for mount in container.get("volumeMounts", []):
                if mount["name"] not in own | claims:
                    yield f"{pod.role}: {container['name']} mounts {mount['name']}, which is no volume of the pod"
            for word in [*container.get("command", []), *container.get("args", [])]:
                if word.startswith("/etc/") and word not in mounted_files(world, pod, container):
                    yield f"{pod.role}: {container['name']} runs {word}, which no volume holds"
    for manifest, args in world.served():
        if path := args.get("keys_file"):
            for pod in (pod for pod in world.pods if pod.role.startswith(f"RayService {manifest['metadata']['name']}")):
                if path not in mounted_files(world, pod, pod.spec["containers"][0]):
                    yield f"{pod.role}: keys_file {path} is in no volume that is mounted"


def _claims(world: World, pod: Pod) -> bool:
    owner = world.find("StatefulSet", pod.role.split()[1])
    return bool(owner and owner["spec"].get("volumeClaimTemplates"))


def mounted_files(world: World, pod: Pod, container: Mapping[str, Any]) -> set[str]:
    """Paths of the files that a container's mounted ConfigMaps and Secrets hold."""
    volumes = {volume["name"]: volume for volume in pod.spec.get("volumes", [])}
    files = set()
    for mount in container.get("volumeMounts", []):
        for kind, name, keys in _sources(volumes.get(mount["name"], {})):
            held = keys or _keys(world.find(kind, name) or {})
            files |= {str(PurePosixPath(mount["mountPath"]) / key) for key in held}
    return files


def variables_exist(world: World) -> Iterator[str]:
    """Variables that a store's URL names are set in replicas; $(NAME) in a value names one defined before it."""
    replicas = world.selected({"matchLabels": {"app.kubernetes.io/component": "replica"}})
    for _, args in world.served():
        for match in _VARIABLE.finditer((args.get("store") or {}).get("url") or ""):
            name = match[1] or match[2]
            for pod in replicas:
                if name not in _variables(world, pod.spec["containers"][0]):
                    yield f"{pod.role}: store.url names ${name}, which is not set there"
    for pod in world.pods:
        for container in pod.containers:
            known: set[str] = set()
            for variable in container.get("env", []):
                for name in _DEPENDENT.findall(variable.get("value", "")):
                    if name not in known:
                        yield f"{pod.role}: {variable['name']} needs $({name}), which is not defined before it"
                known.add(variable["name"])
            for argument in container.get("args", []):
                for name in _DEPENDENT.findall(argument):
                    if name not in known:
                        yield f"{pod.role}: the argument {argument} needs $({name}), which is not defined"


def _variables(world: World, container: Mapping[str, Any]) -> set[str]:
    names = {variable["name"] for variable in container.get("env", [])}
    for source in container.get("envFrom", []):
        names |= _keys(world.find("ConfigMap", source.get("configMapRef", {}).get("name", "")) or {})
    return names
