"""The batch overlay's job: its paths are mounted, its configuration is one, and its entrypoint runs as written."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path, PurePosixPath
from typing import Any

import pytest
import yaml

from deployments.files import read_config
from k8s.checks.references import mounted_files
from k8s.checks.world import World
from k8s.generate import ROOT
from tests.k8s.conftest import Overlay

Get = Callable[[str], Overlay]


@pytest.fixture
def job(overlay: Get) -> dict[str, Any]:
    spec: dict[str, Any] = overlay("batch").one("RayJob")["spec"]
    return spec


def options(entrypoint: str) -> dict[str, str]:
    """Options of the command by name."""
    words = shlex.split(entrypoint)
    assert words[:4] == ["python", "-m", "deployments", "batch"]
    given: dict[str, str] = {}
    for word, following in zip(words[4:], [*words[5:], ""], strict=True):
        if word.startswith("--"):
            given[word] = "" if following.startswith("--") else following
    return given


def test_paths_are_mounted_and_the_shell_leaves_the_command_alone(overlay: Get, job: dict[str, Any]) -> None:
    given = options(job["entrypoint"])
    world = World(overlay("batch").manifests, overlay("batch").external)
    ray_pods = [pod for pod in world.pods if pod.group is not None]
    assert len(ray_pods) == 2
    for pod in ray_pods:  # the driver runs on the head, what it starts on the workers
        container = pod.spec["containers"][0]
        mounts = {mount["mountPath"] for mount in container["volumeMounts"]}
        assert given["--config"] in mounted_files(world, pod, container)
        assert {str(PurePosixPath(given[name]).parent) for name in ("--input", "--output")} <= mounts
    # KubeRay puts it into the submitter's shell line: what a shell would expand there is not on that pod
    assert not set("*?[]$`~;&|<>\n\"'\\") & set(job["entrypoint"])


def test_replicas_fit_the_workers(overlay: Get, job: dict[str, Any], tmp_path: Path) -> None:
    (config,) = (m for m in overlay("batch").manifests if m["metadata"]["name"].startswith("racer-batch-"))
    path = tmp_path / "batch.yaml"
    path.write_text(config["data"]["batch.yaml"])
    (model,) = read_config(path).models
    (group,) = job["rayClusterSpec"]["workerGroupSpecs"]
    least, most = map(int, options(job["entrypoint"])["--replicas"].split(":"))
    assert 1 <= least <= most <= group["maxReplicas"]
    assert model.num_gpus <= float(group["resources"]["GPU"]) and model.num_cpus <= float(group["resources"]["CPU"])


def test_a_job_that_comes_before_its_input_says_so(job: dict[str, Any], tmp_path: Path) -> None:
    """Before anything is started, in one sentence, which KubeRay shows as the job's message."""
    (tmp_path / "config").mkdir()
    (tmp_path / "config" / "batch.yaml").write_text((ROOT / "overlays/batch/batch.yaml").read_text())
    done = subprocess.run(
        ["bash", "-c", local(job["entrypoint"], tmp_path, tmp_path / "config")],
        env=os.environ | {"PATH": python_first()},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 2
    told = done.stderr.splitlines()[-1]
    assert told == f"error: --input {tmp_path}/requests.jsonl: there is no such file; correct the path"


def local(entrypoint: str, data: Path, config: Path) -> str:
    """The entrypoint with folders of this machine in the place of the volumes."""
    return entrypoint.replace("/data/", f"{data}/").replace("/etc/racer/", f"{config}/")


def python_first() -> str:
    """A PATH on which `python` is this one, as in the image."""
    return f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"


def test_deleting_the_job_leaves_its_volume(overlay: Get, job: dict[str, Any]) -> None:
    """Namespace and claim are a folder of their own, applied before; serving's namespace is another one."""
    deleted, kept = overlay("batch").manifests, overlay("batch").external
    namespace = overlay("batch").one("RayJob")["metadata"]["namespace"]
    assert not {"Namespace", "PersistentVolumeClaim"} & {manifest["kind"] for manifest in deleted}
    assert {manifest["metadata"]["namespace"] for manifest in deleted} == {namespace}
    (claim,) = (manifest for manifest in kept if manifest["kind"] == "PersistentVolumeClaim")
    assert claim["metadata"]["namespace"] == namespace and claim["spec"]["accessModes"] == ["ReadWriteMany"]
    assert [manifest["metadata"]["name"] for manifest in kept if manifest["kind"] == "Namespace"] == [namespace]
    assert namespace != overlay("gpu").one("RayService")["metadata"]["namespace"]


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_entrypoint_runs_as_written(
    job: dict[str, Any], overlay: Get, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """The words of the manifest through a shell; /data and /etc/racer stand for folders of this machine, and the
    configuration's model is the demo on the processor, without a store."""
    data, config = tmp_path / "data", tmp_path / "config"
    data.mkdir()
    config.mkdir()
    requests = [
        {
            "custom_id": f"r{number}",
            "method": "POST",
            "url": "/v1/completions",
            "body": {"model": "qwen3-8b", "prompt": f"{number}, {number + 1},", "max_tokens": 4, "temperature": 0},
        }
        for number in range(3)
    ]
    (data / "requests.jsonl").write_text("".join(json.dumps(request) + "\n" for request in requests))
    (found,) = (m for m in overlay("batch").manifests if m["metadata"]["name"].startswith("racer-batch-"))
    values = yaml.safe_load(found["data"]["batch.yaml"])
    args = values["applications"][0]["args"]
    args["models"][0] |= {"num_gpus": 0, "num_cpus": 1, "resources": {"here": 1}}
    args["models"][0]["engine"] |= {"model": "demo", "device": "cpu", "prior": False, "compile": False, "budget": 8}
    args["store"] = {"url": None}
    (config / "batch.yaml").write_text(yaml.safe_dump(values))
    from ray.cluster_utils import Cluster

    # what the model needs is on this cluster alone, which the job finds by RAY_ADDRESS
    head = {"num_cpus": 2, "include_dashboard": False, "resources": {"here": 1}}
    cluster = Cluster(initialize_head=True, head_node_args=head)
    request.addfinalizer(cluster.shutdown)
    command = local(job["entrypoint"], data, config)
    environment = os.environ | {"RAY_USAGE_STATS_ENABLED": "0", "PATH": python_first(), "RAY_ADDRESS": cluster.address}
    for _ in range(2):  # the second time, as after an interruption: nothing is lost, nothing is answered twice
        done = subprocess.run(["bash", "-c", command], env=environment, capture_output=True, text=True, timeout=140)
        assert done.returncode == 0, done.stderr[-2000:]
        answers = [json.loads(line) for line in (data / "answers.jsonl").read_text().splitlines()]
        assert sorted(answer["custom_id"] for answer in answers) == ["r0", "r1", "r2"]
