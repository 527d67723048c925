"""An overlay on this machine: nodes of a local Ray cluster as its groups describe them, its Redis pods as processes."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from k8s.checks.world import quantity, ray_groups
from tests.datastore.servers import free_ports
from tests.deployments.local import wait_until
from tests.deployments.test_serve_command import descendants
from tests.k8s.conftest import Overlay
from tests.k8s.pods import PASSWORD, Pod, config_of


class LocalCluster:
    """Ray's head on its Redis, the datastore, a node for each group of replicas, and one for all HTTP sides.

    The first overlay says what head, Redis and environment are.

    Use it as a context; whatever it starts it stops. ``nodes`` holds the nodes: "head", "ingress", and by overlay and
    group "dev replicas", ...
    """

    def __init__(self, overlays: Sequence[Overlay], folder: Path) -> None:
        self._stack = ExitStack()
        self._overlays = overlays
        self.nodes: dict[str, Any] = {}
        self.port, self._dashboard_port, gcs_port, store_port = free_ports(4)
        self._gcs = Pod(config_of(overlays[0], "gcs-redis-config"), folder / "gcs", gcs_port)
        self._store = Pod(config_of(overlays[0], "redis-config"), folder / "store", store_port)

    @property
    def root(self) -> str:
        """Where the applications answer."""
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
        environment = config_of(self._overlays[0], "racer-environment")["data"]
        for name, value in environment.items():
            if not value.startswith("/"):  # folders of the container
                patch.setenv(name, value)
        patch.setenv("RAY_metrics_report_interval_ms", "1000")  # not ten seconds
        patch.setenv("RAY_prestart_worker_first_driver", "0")  # no process for each processor that a node claims
        for pod in (self._gcs, self._store):
            stack.callback(pod.stop)
            pod.start()
        service = self._overlays[0].one("RayService")
        user = service["spec"]["rayClusterConfig"]["gcsFaultToleranceOptions"]["redisUsername"]["value"]
        login = {"redis_username": user, "redis_password": PASSWORD}
        patch.setenv("RAY_REDIS_ADDRESS", f"redis://127.0.0.1:{self._gcs.port}")
        head = ray_groups(service)[0][0]
        dashboard = {"include_dashboard": True, "dashboard_port": self._dashboard_port}
        cluster = Cluster(initialize_head=True, head_node_args=resources(head) | login | dashboard)
        stack.callback(cluster.shutdown)
        patch.delenv("RAY_REDIS_ADDRESS")
        self.nodes["head"] = cluster.head_node
        patch.setenv("REDIS_PASSWORD", PASSWORD)
        patch.setenv("REDIS_URL", f"redis://racer:{PASSWORD}@127.0.0.1:{self._store.port}")
        http_sides: dict[str, float] = {}
        for overlay in self._overlays:
            _, (ingress, _), (replicas, _) = ray_groups(overlay.one("RayService"))
            self.nodes[f"{overlay.name} {replicas['groupName']}"] = cluster.add_node(**resources(replicas))
            for name, amount in resources(ingress)["resources"].items():
                http_sides[name] = http_sides.get(name, 0.0) + amount
        self.nodes["ingress"] = cluster.add_node(num_cpus=0, resources=http_sides)
        ray.init(address=cluster.address, log_to_driver=False, logging_level="ERROR")
        stack.callback(ray.shutdown)
        stack.callback(serve.shutdown)

    def deploy(self, *configs: Mapping[str, Any]) -> None:
        """Hand configurations to Serve's REST API as KubeRay's operator does, on a port of this machine, until all run.

        The first one's application answers at "/", each other at "/" and its name.
        """
        address = f"http://127.0.0.1:{self._dashboard_port}/api/serve/applications/"
        listen = {"http_options": {"host": "127.0.0.1", "port": self.port}}
        applications = [application for config in configs for application in config["applications"]]
        answer = httpx.put(address, json={"applications": applications} | listen, timeout=120)
        assert answer.status_code == 200, answer.text

        def run() -> bool:
            states = httpx.get(address, timeout=60).json()["applications"]
            told = {application["name"]: states.get(application["name"], {}) for application in applications}
            assert all(state.get("status") != "DEPLOY_FAILED" for state in told.values()), told
            return all(
                told[application["name"]].get("status") == "RUNNING"
                and ready(self.root + application["route_prefix"].rstrip("/")) == 200
                for application in applications
            )

        wait_until(run, "the applications run", 600)  # the first time each replica compiles, all on few cores

    def nodes_of(self, application: str, deployment: str) -> set[str]:
        """Names of the nodes that hold replicas of a deployment."""
        import ray
        from ray.serve._private.constants import SERVE_NAMESPACE

        found = set()
        for actor in ray.util.list_named_actors(all_namespaces=True):
            if actor["namespace"] == SERVE_NAMESPACE and f"::{application}#{deployment}#" in actor["name"]:
                handle = ray.get_actor(actor["name"], namespace=SERVE_NAMESPACE)
                ask = handle.__ray_call__.remote(lambda _: __import__("ray").get_runtime_context().get_node_id())
                found.add(self._name(ray.get(ask)))
        return found

    def _name(self, node_id: str) -> str:
        import ray

        (port,) = (node["NodeManagerPort"] for node in ray.nodes() if node["NodeID"] == node_id)
        return next(name for name, node in self.nodes.items() if node.node_manager_port == port)

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
    for child, title in descendants(pid).items():
        try:
            rollup = Path(f"/proc/{child}/smaps_rollup").read_text()
        except OSError:  # it has ended
            continue
        share = 1024.0 * sum(int(line.split()[1]) for line in rollup.splitlines() if line.startswith("Pss:"))
        program = os.path.basename(title.split(" ")[0])
        script = re.search(r"ray::(\S+)", title) or (program.startswith("python") and re.search(r"(\w+\.py)\b", title))
        name = script[1] if script else program
        found[name] = found.get(name, 0.0) + share
    return found
