"""The real service on a real Ray cluster with logical GPUs, whose replicas follow a script instead of a model."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import httpx
import pytest

from deployments.commands.serve import RAY_ENVIRONMENT
from tests.deployments.local import wait_until
from tests.loadtest.scripted_replica import ScriptedReplica


def running(name: str) -> int:
    """Replicas of a model's deployment that run."""
    from ray import serve

    states = serve.status().applications["racer"].deployments[name].replica_states
    return int(states.get("RUNNING", 0))


@contextmanager
def scaling_service(port: int, gpus: int, **autoscaling: Any) -> Iterator[str]:
    """The service for the model "scripted" on so many logical GPUs, one a replica; gives its URL."""
    import ray
    from ray import serve
    from ray.cluster_utils import Cluster

    from deployments import app

    model = {
        "name": "scripted",
        "engine": {"max_running": 32},
        "num_cpus": 0,
        "resources": {"gpu_like": 1},
        "autoscaling": {"max_replicas": gpus} | autoscaling,
    }
    head = {"num_cpus": 2, "include_dashboard": False, "resources": {"gpu_like": gpus}}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(app, "EngineReplica", ScriptedReplica)
        for name, value in (RAY_ENVIRONMENT | {"RAY_metrics_report_interval_ms": "1000", "RACER_API_KEYS": ""}).items():
            patch.setenv(name, value)
        cluster = Cluster(initialize_head=True, head_node_args=head)
        try:
            ray.init(address=cluster.address, log_to_driver=False, logging_level="ERROR")
            serve.start(http_options={"host": "127.0.0.1", "port": port})
            serve.run_many([serve.RunTarget(app.build_app({"models": [model]}), "racer", "/")])
            wait_until(lambda: _status(f"http://127.0.0.1:{port}/ready") == 200, "the service is ready", 120)
            yield f"http://127.0.0.1:{port}/v1"
        finally:
            serve.shutdown()
            ray.shutdown()
            cluster.shutdown()


def _status(url: str) -> int:
    try:
        return httpx.get(url, timeout=30).status_code
    except httpx.HTTPError:
        return 0
