"""An overlay on this machine: nodes of a local Ray cluster as its groups describe them, its Redis pods as processes."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest
import yaml

from k8s.checks.world import quantity, ray_groups
from tests.datastore.servers import free_ports
from tests.deployments.local import wait_until
from tests.k8s.conftest import Overlay
from tests.k8s.pods import PASSWORD, Pod, config_of

APP = "racer"


class LocalCluster:
    """Ray's head on its Redis, the datastore, and nodes that are added group by group.

    Use it as a context; whatever it starts it stops. ``nodes`` holds each group's node.
    """

    def __init__(self, overlay: Overlay, folder: Path) -> None:
        self._stack = ExitStack()
        self._folder = folder
        self._overlay = overlay
        self.nodes: dict[str, Any] = {}
        self.port, self._dashboard_port, gcs_port, store_port = free_ports(4)
        self._gcs = Pod(config_of(overlay, "gcs-redis-config"), folder / "gcs", gcs_port)
        self._store = Pod(config_of(overlay, "redis-config"), folder / "store", store_port)

    @property
    def root(self) -> str:
        """Where the application answers."""
        return f"http://127.0.0.1:{self.port}"

    def __enter__(self) -> LocalCluster:
        with ExitStack() as stack:
            self._start(stack)
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *exception: object) -> None:
        self._stack.close()

    def _start(self, stack: ExitStack) -> None:
        import ray
        from ray import serve
        from ray.cluster_utils import Cluster

        patch = stack.enter_context(pytest.MonkeyPatch.context())
        environment = config_of(self._overlay, "racer-environment")["data"]
        for name, value in environment.items():
            if not value.startswith("/"):  # folders of the container
                patch.setenv(name, value)
        for pod in (self._gcs, self._store):
            stack.callback(pod.stop)
            pod.start()
        service = self._overlay.one("RayService")
        user = service["spec"]["rayClusterConfig"]["gcsFaultToleranceOptions"]["redisUsername"]["value"]
        login = {"redis_username": user, "redis_password": PASSWORD}
        patch.setenv("RAY_REDIS_ADDRESS", f"redis://127.0.0.1:{self._gcs.port}")
        head, *workers = (group for group, _ in ray_groups(service))
        dashboard = {"include_dashboard": True, "dashboard_port": self._dashboard_port}
        cluster = Cluster(initialize_head=True, head_node_args=resources(head) | login | dashboard)
        stack.callback(cluster.shutdown)
        patch.delenv("RAY_REDIS_ADDRESS")
        self.nodes["head"] = cluster.head_node
        patch.setenv("REDIS_PASSWORD", PASSWORD)
        patch.setenv("REDIS_URL", f"redis://racer:{PASSWORD}@127.0.0.1:{self._store.port}")
        for group in workers:
            self.nodes[group["groupName"]] = cluster.add_node(**resources(group))
        self._cluster = cluster
        ray.init(address=cluster.address, log_to_driver=False, logging_level="ERROR")
        stack.callback(ray.shutdown)
        stack.callback(serve.shutdown)

    def add(self, group: Mapping[str, Any]) -> Any:
        """Another node, of a group of another overlay."""
        self.nodes[group["groupName"]] = self._cluster.add_node(**resources(group))
        return self.nodes[group["groupName"]]

    def remove(self, group: str) -> None:
        """A group's node goes."""
        self._cluster.remove_node(self.nodes.pop(group))

    def deploy(self, config: Mapping[str, Any]) -> None:
        """Hand ``config`` to Serve's REST API as KubeRay's operator does, on a port of this machine, until it runs."""
        address = f"http://127.0.0.1:{self._dashboard_port}/api/serve/applications/"
        listen = {"http_options": {"host": "127.0.0.1", "port": self.port}}
        answer = httpx.put(address, json=dict(config) | listen, timeout=120)
        assert answer.status_code == 200, answer.text

        def runs() -> bool:
            state = httpx.get(address, timeout=60).json()["applications"].get(APP, {})
            assert state.get("status") != "DEPLOY_FAILED", state
            return state.get("status") == "RUNNING" and ready(self.root) == 200

        wait_until(runs, "the application runs", 240)

    def node_of(self, deployment: str) -> set[str]:
        """Names of the groups whose nodes hold replicas of a deployment."""
        import ray
        from ray.serve._private.constants import SERVE_NAMESPACE

        names = {node.unique_id: group for group, node in self.nodes.items()}
        by_id = {node["NodeID"]: names.get(node["ObjectStoreSocketName"], "?") for node in ray.nodes()}
        by_id |= {node["NodeID"]: self._group_at(node["NodeManagerPort"]) for node in ray.nodes()}
        found = set()
        for actor in ray.util.list_named_actors(all_namespaces=True):
            if actor["namespace"] == SERVE_NAMESPACE and f"#{deployment}#" in actor["name"]:
                handle = ray.get_actor(actor["name"], namespace=SERVE_NAMESPACE)
                ask = handle.__ray_call__.remote(lambda _: __import__("ray").get_runtime_context().get_node_id())
                found.add(by_id[ray.get(ask)])
        return found

    def _group_at(self, port: int) -> str:
        return next((name for name, node in self.nodes.items() if node.node_manager_port == port), "?")

    def exporters(self) -> list[str]:
        """host:port of every node's metrics."""
        import ray

        return [f"{n['NodeManagerAddress']}:{n['MetricsExportPort']}" for n in ray.nodes() if n["Alive"]]


def resources(group: Mapping[str, Any]) -> dict[str, Any]:
    """What a node of the group has for Ray."""
    own = {name: quantity(value) for name, value in group.get("resources", {}).items()}
    cpus, gpus = own.pop("CPU", 0.0), own.pop("GPU", 0.0)
    return {"num_cpus": int(cpus), "num_gpus": int(gpus), "resources": own}


def serve_config(overlay: Overlay) -> dict[str, Any]:
    """The configuration that the overlay's manifest carries."""
    config: dict[str, Any] = yaml.safe_load(overlay.one("RayService")["spec"]["serveConfigV2"])
    return config


def ready(root: str) -> int:
    """Status of /ready, 0 where nothing answers."""
    try:
        return httpx.get(f"{root}/ready", timeout=30).status_code
    except httpx.HTTPError:
        return 0


def memory_by_role(pid: int) -> dict[str, float]:
    """Bytes (proportional share) of the processes below ``pid`` by what they are: one entry a Ray actor or program."""
    found: dict[str, float] = {}
    for process in psutil.Process(pid).children(recursive=True):
        try:
            title = " ".join(process.cmdline()) or process.name()
            share = process.memory_full_info().pss
        except psutil.Error:
            continue
        name = match[1] if (match := re.search(r"ray::(\S+)", title)) else os.path.basename(title.split(" ")[0])
        found[name] = found.get(name, 0.0) + share
    return found

