"""Ports, and the addresses of services."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from k8s.checks.world import Pod, World

_URL = re.compile(r"(?:redis|rediss|valkey|valkeys)(?:\+\w+)?://(?:[^@\s/]*@)?([\w.,:-]+)")
_PROBES = ("startupProbe", "readinessProbe", "livenessProbe")
_ROUTE_FIELDS = {"parentRefs", "hostnames", "rules"}
_RULE_FIELDS = {"name", "matches", "filters", "timeouts", "backendRefs"}


def ports_exist(world: World) -> Iterator[str]:
    """Ports that services, probes, policies and monitors name are declared by the pods they mean."""
    for service in world.of("Service"):
        selected = world.selected({"matchLabels": service["spec"].get("selector", {})})
        for port in service["spec"].get("ports", []):
            yield from _missing(
                f"Service {service['metadata']['name']}", port.get("targetPort", port["port"]), selected
            )
    for pod in world.pods:
        for container in pod.containers:
            for probe in _PROBES:
                http = container.get(probe, {}).get("httpGet")
                if http is not None:
                    yield from _missing(f"{pod.role}: {probe} of {container['name']}", http["port"], [pod])
    for policy in world.of("NetworkPolicy"):
        spec, name = policy["spec"], policy["metadata"]["name"]
        own = world.selected(spec["podSelector"])
        for rule in spec.get("ingress", []):
            for port in rule.get("ports", []):
                yield from _missing(f"NetworkPolicy {name}: ingress", port["port"], own)
        for rule in spec.get("egress", []):
            peers = [peer for peer in rule.get("to", []) if "podSelector" in peer and "namespaceSelector" not in peer]
            for port in rule.get("ports", []) if peers else []:
                selected = [pod for peer in peers for pod in world.selected(peer["podSelector"])]
                yield from _missing(f"NetworkPolicy {name}: egress", port["port"], selected)
    for monitor in world.of("PodMonitor"):
        for endpoint in monitor["spec"]["podMetricsEndpoints"]:
            for pod in world.selected(monitor["spec"]["selector"]):
                if "submitter" not in pod.role:
                    yield from _missing(f"PodMonitor {monitor['metadata']['name']}", endpoint["port"], [pod])


def _missing(who: str, port: str | int, pods: list[Pod]) -> Iterator[str]:
    if not any(port in pod.ports() for pod in pods):
        yield f"{who}: no pod that it means declares the port {port!r}"


def addresses_exist(world: World) -> Iterator[str]:
    """Hosts in the URLs of Redis servers are services, or pods of a StatefulSet, on a port of theirs."""
    for where, text in _texts(world.manifests):
        for hosts in _URL.findall(text):
            for host in hosts.split(","):
                name, _, port = host.partition(":")
                if problem := _unreachable(world, name, int(port or 6379)):
                    yield f"{where}: {problem}"


def _unreachable(world: World, host: str, port: int) -> str | None:
    pod, _, service_name = host.rpartition(".")
    service = world.find("Service", service_name)
    if service is None:
        return f"{host} is no service of these manifests"
    if port not in {entry["port"] for entry in service["spec"]["ports"]}:
        return f"the service {service_name} has no port {port}"
    if pod:
        owner, _, number = pod.rpartition("-")
        owner_set = world.find("StatefulSet", owner)
        if owner_set is None or owner_set["spec"]["serviceName"] != service_name:
            return f"{host}: there is no StatefulSet {owner} of the service {service_name}"
        if int(number) >= owner_set["spec"]["replicas"]:
            return f"{host}: the StatefulSet {owner} has {owner_set['spec']['replicas']} pods only"
    return None


def _texts(value: Any, where: str = "") -> Iterator[tuple[str, str]]:
    if isinstance(value, str):
        yield where, value
    elif isinstance(value, dict):
        if "kind" in value and "metadata" in value:
            where = f"{value['kind']} {value['metadata'].get('name')}"
        for inner in value.values():
            yield from _texts(inner, where)
    elif isinstance(value, list):
        for inner in value:
            yield from _texts(inner, where)


def names_can_be_resolved(world: World) -> Iterator[str]:
    """Pods whose way out is restricted, and that are given names of services, reach every name server, wherever it is.

    A name server may be pods of any namespace, with any labels, or a cache on the node's own network: nothing of a
    selector matches that, so the rule names ports alone.
    """
    services = {service["metadata"]["name"] for service in world.of("Service")}
    for policy in world.of("NetworkPolicy"):
        spec = policy["spec"]
        if "Egress" not in spec.get("policyTypes", []):
            continue
        rules = [rule.get("ports", []) for rule in spec.get("egress", []) if not rule.get("to")]
        open_ports = {(port["port"], port.get("protocol", "TCP")) for ports in rules for port in ports}
        if [] in rules or {(53, "UDP"), (53, "TCP")} <= open_ports:
            continue
        for pod in world.selected(spec["podSelector"]):
            for variable in (variable for container in pod.containers for variable in container.get("env", [])):
                hosts = re.findall(r"[\w.-]+(?=:\d)", variable.get("value", ""))
                if named := next((host for host in hosts if host.rpartition(".")[2] in services), None):
                    yield (
                        f"NetworkPolicy {policy['metadata']['name']}: {pod.role} is given the name {named}, but "
                        "may not ask every name server (egress to port 53, UDP and TCP, without `to`)"
                    )


def routes_lead_to_services(world: World) -> Iterator[str]:
    """An HTTPRoute has the fields of the Gateway API, and its backends exist."""
    for route in world.of("HTTPRoute"):
        name = route["metadata"]["name"]
        for field in sorted(set(route["spec"]) - _ROUTE_FIELDS):
            yield f"HTTPRoute {name}: unknown field {field}"
        for rule in route["spec"]["rules"]:
            for field in sorted(set(rule) - _RULE_FIELDS):
                yield f"HTTPRoute {name}: unknown field {field} of a rule"
            for backend in rule["backendRefs"]:
                if problem := _unreachable(world, backend["name"], backend["port"]):
                    yield f"HTTPRoute {name}: {problem}"
