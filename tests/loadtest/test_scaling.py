"""A step from one user to many and back, on logical GPUs: replicas follow, and no request is lost."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from deployments.commands.serve import RAY_ENVIRONMENT
from tests.deployments.local import wait_until
from tests.loadtest.commands import last_line, loadtest

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]


@pytest.fixture
def scaling_url(tiny_folder: Path, free_port: int) -> Iterator[str]:
    """A tiny model on a cluster with three logical GPUs, one a replica, one to three replicas."""
    import ray
    from ray import serve
    from ray.cluster_utils import Cluster

    from deployments.app import build_app

    model = {
        "name": "tiny",
        "engine": {"model": str(tiny_folder), "compile": False, "prior": False, "max_running": 4},
        "num_cpus": 0,
        "num_gpus": 1,
        "threads": 1,
        "environment": {"CUDA_VISIBLE_DEVICES": ""},
        "autoscaling": {
            "min_replicas": 1,
            "max_replicas": 3,
            "target_running": 4,
            "upscale_delay_s": 1,
            "downscale_delay_s": 4,
        },
    }
    with pytest.MonkeyPatch.context() as patch:
        for name, value in (RAY_ENVIRONMENT | {"RAY_metrics_report_interval_ms": "1000", "RACER_API_KEYS": ""}).items():
            patch.setenv(name, value)
        cluster = Cluster(
            initialize_head=True, head_node_args={"num_cpus": 2, "num_gpus": 3, "include_dashboard": False}
        )
        try:
            ray.init(address=cluster.address, log_to_driver=False, logging_level="ERROR")
            serve.start(http_options={"host": "127.0.0.1", "port": free_port})
            serve.run_many([serve.RunTarget(build_app({"models": [model]}), "racer", "/")])
            root = f"http://127.0.0.1:{free_port}"
            wait_until(lambda: httpx.get(f"{root}/ready", timeout=30).status_code == 200, "ready", 120)
            yield f"{root}/v1"
        finally:
            serve.shutdown()
            ray.shutdown()
            cluster.shutdown()


def test_replicas_follow_the_users_and_no_request_is_lost(scaling_url: str, tmp_path: Path) -> None:
    texts = tmp_path / "texts.jsonl"
    lines = [{"prompt": f"{number} times ", "max_tokens": 200, "ignore_eos": True} for number in range(50)]
    texts.write_text("".join(json.dumps(line) + "\n" for line in lines))
    steps = ["--steps", "1x5,24x25,1x30", "--poll", "1"]
    done = loadtest("run", "--url", scaling_url, "--json", "--workload", str(texts), *steps, timeout_s=150)
    told = last_line(done)
    assert done.returncode == 0, told["figures"]["errors"]
    assert told["figures"]["failed"] == 0 and told["figures"]["requests"] > 30
    replicas = [(reading["at_s"], reading["replicas"]) for reading in told["readings"] if "replicas" in reading]
    assert replicas[0][1] == 1 and max(count for _, count in replicas) == 3
    assert replicas[-1][1] < 3
