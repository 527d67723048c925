"""An endpoint on a real Ray cluster, and what tests ask of it."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar

import httpx
import pytest

from datastore.embedded import EmbeddedServer
from deployments.commands.serve import RAY_ENVIRONMENT
from tests.deployments.local import wait_until

PORT = 18471
ROOT = f"http://127.0.0.1:{PORT}"
BODY: dict[str, Any] = {"model": "demo", "prompt": "The capital of France is", "temperature": 0, "max_tokens": 24}


Result = TypeVar("Result")


class Endpoint:
    """A running application, its cluster and its store."""

    def __init__(self, cluster: Any, store: EmbeddedServer) -> None:
        self.cluster, self.store = cluster, store

    def running(self) -> int:
        """Replicas of the model that run."""
        from ray import serve

        states = serve.status().applications["racer"].deployments["model-demo"].replica_states
        return int(states.get("RUNNING", 0))


def deploy(**changes: Any) -> None:
    """Deploy the application anew, with other arguments."""
    from ray import serve

    from deployments.app import build_app

    model: dict[str, Any] = {
        "name": "demo",
        "engine": {"model": "demo", "prior": False, "compile": False, "budget": 16, "max_running": 16},
        "num_cpus": 0,
        "threads": 1,
        "resources": {"gpu_like": 1},
        "autoscaling": {"min_replicas": 2, "max_replicas": 2},
        "drain_s": 20,
    } | changes.pop("model", {})
    args = {"models": [model], "store": {"url": "$TEST_STORE_URL"}, "metrics_by_namespace": True} | changes
    args["ingress_resources"] = {"stays": 0.1}
    args["batches"] = {"folder": os.environ["TEST_BATCHES"], "max_in_flight": 4}
    serve.run_many([serve.RunTarget(build_app(args), "racer", "/")])


@contextmanager
def running_endpoint(batches: Path) -> Iterator[Endpoint]:
    """Three nodes of which two have a (logical) GPU each, and a replica on each of the two."""
    import ray
    from ray import serve
    from ray.cluster_utils import Cluster

    with EmbeddedServer() as store, pytest.MonkeyPatch.context() as patch:
        patch.setenv("TEST_BATCHES", str(batches))
        for name, value in (RAY_ENVIRONMENT | {"TEST_STORE_URL": store.url, "RACER_API_KEYS": ""}).items():
            patch.setenv(name, value)
        cluster = Cluster(
            initialize_head=True, head_node_args={"num_cpus": 2, "include_dashboard": False, "resources": {"stays": 1}}
        )
        try:
            for _ in range(2):
                cluster.add_node(num_cpus=1, resources={"gpu_like": 1})
            ray.init(address=cluster.address, log_to_driver=False, logging_level="ERROR")
            serve.start(http_options={"host": "127.0.0.1", "port": PORT, "location": "HeadOnly"})
            deploy()
            wait_until(lambda: ready() == 200, "the endpoint is ready", 120)
            yield Endpoint(cluster, store)
        finally:
            serve.shutdown()
            ray.shutdown()
            cluster.shutdown()


def ready() -> int:
    try:
        return httpx.get(f"{ROOT}/ready", timeout=30).status_code
    except httpx.HTTPError:
        return 0


def ask(**changes: Any) -> str:
    answer = httpx.post(f"{ROOT}/v1/completions", json=BODY | changes, timeout=120)
    assert answer.status_code == 200, answer.text
    text: str = answer.json()["choices"][0]["text"]
    return text


def replica_pids(deployment: str = "model-demo") -> list[int]:
    """Processes of a deployment's replicas."""
    return on_replicas(deployment, lambda replica: os.getpid())


def on_replicas(deployment: str, ask: Callable[[Any], Result]) -> list[Result]:
    """What each of a deployment's replicas answers; ``ask`` gets the object that Serve made of our class."""
    import ray
    from ray.serve._private.constants import SERVE_NAMESPACE

    def there(actor: Any) -> Result:
        return ask(actor._replica_impl._user_callable_wrapper._callable)

    found = []
    for actor in ray.util.list_named_actors(all_namespaces=True):
        if actor["namespace"] == SERVE_NAMESPACE and deployment in actor["name"]:
            with suppress(ValueError, ray.exceptions.RayActorError):  # it has gone meanwhile
                handle = ray.get_actor(actor["name"], namespace=SERVE_NAMESPACE)
                found.append(ray.get(handle.__ray_call__.remote(there)))
    return found
