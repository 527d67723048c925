"""What the overlays serve really runs: their Serve configurations, put to a local cluster's REST API as the operator
puts them, on nodes as their groups are, with the Redis pods' own configurations; and a real Prometheus watches."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from deployments.config import ModelConfig
from k8s.checks.world import quantity, ray_groups
from k8s.dashboard import PANELS
from tests.k8s.conftest import Overlay
from tests.k8s.live import LocalCluster, memory_by_role, serve_config
from tests.k8s.prometheus import Prometheus

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

Get = Callable[[str], Overlay]
KEY = "key-of-the-tests"


@pytest.fixture(scope="module")
def cluster(overlay: Get, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    """A cluster on which all three run: the dev overlay's as it is, those for GPUs with the demo model."""
    folder = tmp_path_factory.mktemp("pods")
    overlays = [overlay(name) for name in ("dev", "gpu", "multi-gpu")]
    fill_caches(serve_config(overlays[0]))
    with LocalCluster(overlays, folder) as cluster:
        cluster.deploy(serve_config(overlays[0]), *(with_demo_model(one, folder) for one in overlays[1:]))
        yield cluster


def fill_caches(config: dict[str, Any]) -> None:
    """What a model's first start computes once, before a whole cluster wants the same two processors."""
    (application,) = config["applications"]
    (model,) = (ModelConfig.model_validate(values) for values in application["args"]["models"])
    code = "import sys; from deployments.config import ModelConfig; from deployments.loading import load_engine; "
    code += "load_engine(ModelConfig.model_validate_json(sys.argv[1])).close()"
    threads = {"OMP_NUM_THREADS": str(model.replica_threads)}
    subprocess.run([sys.executable, "-c", code, model.model_dump_json()], env=os.environ | threads, check=True)


def with_demo_model(overlay: Overlay, folder: Path) -> dict[str, Any]:
    """The demo model in the place of theirs; addresses of pods and paths of secrets are this machine's."""
    config = serve_config(overlay)
    (application,) = config["applications"]
    application |= {"name": overlay.name, "route_prefix": f"/{overlay.name}"}
    args = application["args"]
    for model in args["models"]:
        model["engine"] |= {"model": "demo", "device": "cpu", "prior": False, "compile": False, "budget": 8}
        model["threads"] = 1
        model["autoscaling"]["min_replicas"] = 1
    args["store"]["url"] = "$REDIS_URL"
    args["ingress_replicas"] = 1
    if "keys_file" in args:
        keys = folder / "keys.yaml"
        keys.write_text(f"- {{key: {KEY}, namespace: team-a, learn: answers}}\n")
        args["keys_file"] = str(keys)
    return config


def complete(cluster: LocalCluster, model: str, path: str = "", key: str = "none") -> Any:
    with openai.OpenAI(base_url=f"{cluster.root}{path}/v1", api_key=key) as client:
        return client.chat.completions.create(
            model=model, messages=[{"role": "user", "content": "Count to five."}], max_tokens=12, temperature=0
        )


def test_dev_overlay_answers(cluster: LocalCluster) -> None:
    assert httpx.get(f"{cluster.root}/health", timeout=30).status_code == 200
    answer = complete(cluster, "demo")
    assert answer.usage.completion_tokens > 3 and answer.choices[0].message.content
    assert cluster.nodes_of("racer", "model-demo") <= set(cluster.nodes) - {"head", "ingress"}


@pytest.mark.parametrize(("name", "key"), [("gpu", "none"), ("multi-gpu", KEY)])
def test_gpu_overlays_answer_on_logical_gpus(cluster: LocalCluster, name: str, key: str) -> None:
    assert complete(cluster, "qwen3-8b", f"/{name}", key).usage.completion_tokens > 3
    assert cluster.nodes_of(name, "model-qwen3-8b") <= {"gpu gpu", "multi-gpu gpu-nodes"}
    if key == KEY:
        with pytest.raises(openai.AuthenticationError):
            complete(cluster, "qwen3-8b", f"/{name}", "another-key")


def test_the_ingress_nodes_hold_the_http_side(cluster: LocalCluster) -> None:
    for application in ("racer", "gpu", "multi-gpu"):
        assert cluster.nodes_of(application, "ingress") == {"ingress"}


def test_memory_of_pods_covers_what_is_used(cluster: LocalCluster, overlay: Get) -> None:
    """Proportional shares of this machine's processes, after an answer, against the requests of the manifest."""
    used = memory_by_role(os.getpid())

    def of(*parts: str) -> float:
        return sum(size for name, size in used.items() if any(part in name for part in parts))

    of_every_node = of("raylet", "Agent", "agent.py", "main.py", "log_monitor.py", "ProxyActor") / len(cluster.nodes)
    of_role = {
        "replicas": of("ServeReplica:racer:model-demo") + of_every_node,
        "ingress": of("ServeReplica:racer:ingress") + of_every_node,
        "head": of("gcs_server", "dashboard.py", "monitor.py", "ServeController") + of_every_node,
    }
    assert min(of("raylet"), of("ProxyActor"), of("gcs_server"), of("dashboard.py")) > 0, used
    print({role: f"{size / 2**20:.0f} MiB" for role, size in of_role.items()})
    groups = {group.get("groupName", "head"): group for group, _ in ray_groups(overlay("dev").one("RayService"))}
    for role, size in of_role.items():
        asked = groups[role]["template"]["spec"]["containers"][0]["resources"]["requests"]["memory"]
        assert 0 < size < quantity(asked), (role, size, asked)


def test_prometheus_sees_what_rules_and_dashboard_ask(cluster: LocalCluster, overlay: Get, tmp_path: Path) -> None:
    """Under load every signal and every query of the dashboard returns numbers, over what the PodMonitor keeps."""
    rules = overlay("gpu").one("PrometheusRule")["spec"]
    (endpoint,) = overlay("gpu").one("PodMonitor")["spec"]["podMetricsEndpoints"]
    wanted = {rule["record"] for group in rules["groups"] for rule in group["rules"] if "record" in rule}
    for panel in PANELS:
        wanted |= {query.replace("$__rate_interval", "10s").replace("$model", ".*") for query in panel.queries.values()}
    stop = threading.Event()

    def load() -> None:
        while not stop.is_set():
            body = {"model": "demo", "prompt": "One, two, three, one, two, three, one,", "max_tokens": 40}
            httpx.post(f"{cluster.root}/v1/completions", json=body | {"ignore_eos": True}, timeout=120)

    users = [threading.Thread(target=load) for _ in range(2)]
    with Prometheus(tmp_path / "prometheus", cluster.exporters(), rules, endpoint["metricRelabelings"]) as prometheus:
        for user in users:
            user.start()
        try:
            missing, deadline = set(wanted), time.monotonic() + 60
            while missing and time.monotonic() < deadline:
                missing.difference_update([query for query in missing if prometheus.query(query)])
                time.sleep(1)
            assert missing == set()
        finally:
            stop.set()
            for user in users:
                user.join(120)
        kept = {series["metric"]["__name__"] for series in prometheus.query('{__name__=~"ray_.+"}')}
        assert kept and all(name.startswith(("ray_racer_", "ray_serve_", "ray_node_")) for name in kept)
