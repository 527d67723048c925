"""The configuration with a Redis Cluster over TLS, keys and tenants, deployed on servers of this machine."""

from __future__ import annotations

import asyncio
import shutil
import socket
from collections.abc import Generator, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
import yaml

from deployments.commands.serve import RAY_ENVIRONMENT
from deployments.config import parse_config
from deployments.files import CONFIGS
from tests.datastore.servers import Server, certificate, free_ports, join_cluster
from tests.deployments.local import wait_until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

PASSWORD = "of-the-store"
RIGHTS = "~ng* resetchannels -@all +@read +@write +@connection +@scripting +info +memory|usage -@dangerous +info"
IN_A_CLUSTER = "+cluster|slots +cluster|shards +cluster|nodes"
KEY = "key-of-team-a"
BODY: dict[str, Any] = {"model": "qwen3-8b", "prompt": "abcabcabc", "temperature": 0, "ignore_eos": True}


@dataclass
class Deployed:
    """A running application and the nodes of its store."""

    root: str
    nodes: list[Server]

    def http(self, key: str = KEY) -> httpx.AsyncClient:
        return httpx.AsyncClient(base_url=self.root, headers={"Authorization": f"Bearer {key}"}, timeout=120)

    def client(self, **options: Any) -> openai.AsyncOpenAI:
        return openai.AsyncOpenAI(base_url=f"{self.root}/v1", api_key=KEY, **options)

    def post(self, **changes: Any) -> httpx.Response:
        headers = {"Authorization": f"Bearer {KEY}"}
        return httpx.post(f"{self.root}/v1/completions", json=BODY | changes, headers=headers, timeout=120)


@contextmanager
def tls_cluster(folder: Path) -> Generator[list[Server]]:
    """Three masters that speak TLS only, with docs/datastore.md's rights for the user racer, none for others."""
    options = [*certificate(folder), "--cluster-enabled", "yes", "--tls-cluster", "yes"]
    nodes = [Server(folder / str(port), port, *options, tls=True) for port in free_ports(3)]
    try:
        for node in nodes:
            for name in ("cert.pem", "key.pem"):
                shutil.copy(folder / name, node.folder)
            node.start()
        join_cluster(nodes)
        for node in nodes:
            with node.client() as admin:
                user = ["on", f">{PASSWORD}", *RIGHTS.split(), *IN_A_CLUSTER.split()]
                admin.execute_command("ACL", "SETUSER", "racer", *user)
                admin.execute_command("ACL", "SETUSER", "default", "off")
        yield nodes
    finally:
        for node in nodes:
            node.kill()


def configuration(folder: Path, model: Path, nodes: list[Server], port: int) -> dict[str, Any]:
    """What the file says that comes along, with a small model on the processor and the addresses of this machine."""
    text = (CONFIGS / "redis-cluster.yaml").read_text()
    keys = folder / "keys.yaml"
    keys.write_text(f"- {{key: {KEY}, namespace: team-a}}\n")
    for before, after in (
        ("redis-0.redis:6379,redis-1.redis:6379,redis-2.redis:6379", ",".join(f"127.0.0.1:{n.port}" for n in nodes)),
        ("/etc/redis/tls/ca.crt", str(nodes[0].folder / "cert.pem")),
        ("/etc/racer/keys.yaml", str(keys)),
    ):
        assert before in text
        text = text.replace(before, after)
    values: dict[str, Any] = yaml.safe_load(text)
    args = values["applications"][0]["args"]
    engine = {"model": str(model), "dtype": "float32", "prior": False, "compile": False, "budget": 4, "max_running": 1}
    args["models"][0] |= {"engine": engine | {"source_deadline_ms": 50.0}, "num_cpus": 0, "threads": 1}
    args["models"][0] |= {"autoscaling": {}, "max_queued": 1, "drain_s": 2}
    args |= {"ingress_cpus": 0}
    values["http_options"] = {"host": "127.0.0.1", "port": port}
    config = parse_config(args)
    assert config.models[0].num_gpus == 1 and config.ingress_replicas == 2 and config.store.learn == "answers"
    return values


@pytest.fixture(scope="module")
def deployed(tmp_path_factory: pytest.TempPathFactory, tiny_folder: Path) -> Iterator[Deployed]:
    import ray
    from ray import serve
    from ray.cluster_utils import Cluster
    from ray.serve.context import _get_global_client
    from ray.serve.schema import ServeDeploySchema

    folder = tmp_path_factory.mktemp("deployed")
    port = free_port()
    with pytest.MonkeyPatch.context() as patch, ExitStack() as stack:
        nodes = stack.enter_context(tls_cluster(folder))
        for name, value in (RAY_ENVIRONMENT | {"REDIS_PASSWORD": PASSWORD, "RACER_API_KEYS": ""}).items():
            patch.setenv(name, value)
        head = {"num_cpus": 2, "num_gpus": 1, "include_dashboard": False}
        cluster = Cluster(initialize_head=True, head_node_args=head)
        stack.callback(cluster.shutdown)
        ray.init(address=cluster.address, log_to_driver=False, logging_level="ERROR")
        stack.callback(ray.shutdown)
        values = configuration(folder, tiny_folder, nodes, port)
        serve.start(http_options=values["http_options"])
        stack.callback(serve.shutdown)
        _get_global_client().deploy_apps(ServeDeploySchema.model_validate(values))  # as `serve deploy` does
        one = Deployed(f"http://127.0.0.1:{port}", nodes)
        wait_until(lambda: is_ready(one.root), "the application is ready", 120)
        yield one


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as free:
        return int(free.getsockname()[1])


def is_ready(root: str) -> bool:
    try:
        return httpx.get(f"{root}/ready", timeout=30).status_code == 200
    except httpx.HTTPError:
        return False


def test_store_over_tls_drafts(deployed: Deployed) -> None:
    plain = deployed.post(max_tokens=60, drafts="off").json()

    def foreseen() -> int:
        found = deployed.post(max_tokens=60, return_stats=True).json()
        assert found["choices"] == plain["choices"]
        return int(found["usage"]["racer"]["accepted"]["store"])

    wait_until(lambda: foreseen() > 0, "the store foresees tokens", 30)
    contents = []
    for node in deployed.nodes:
        with node.client(username="racer", password=PASSWORD) as client:
            contents.append(client.dbsize())
    assert sum(contents) > 0
    assert httpx.post(f"{deployed.root}/v1/completions", json=BODY).status_code == 401


def test_metrics_carry_the_namespace(deployed: Deployed) -> None:
    assert deployed.post(max_tokens=4).status_code == 200
    wanted = "ray_racer_requests_total{"

    def lines() -> list[str]:
        page = httpx.get(f"{deployed.root}/metrics", timeout=30).text
        return [line for line in page.splitlines() if line.startswith(wanted)]

    wait_until(lines, "the metrics come", 40)
    assert all('namespace="team-a"' in line and 'model="qwen3-8b"' in line for line in lines())


def test_full_queue_is_asked_again(deployed: Deployed) -> None:
    """The replica has a place and one behind it, the queue has one: more get 503, and clients come back."""
    body = BODY | {"max_tokens": 100, "drafts": "off"}

    async def at_once() -> list[httpx.Response]:
        async with deployed.http() as http:
            return await asyncio.gather(*(http.post("/v1/completions", json=body) for _ in range(24)))

    answers = asyncio.run(at_once())
    refused = [answer for answer in answers if answer.status_code == 503]
    assert refused and {answer.status_code for answer in answers} == {200, 503}
    assert {(answer.headers["retry-after"], answer.json()["error"]["code"]) for answer in refused} == {
        ("1", "overloaded")
    }

    async def patiently() -> list[Any]:
        async with deployed.client(max_retries=100) as client:
            asked = {"model": body["model"], "prompt": body["prompt"], "max_tokens": 100, "temperature": 0}
            return await asyncio.gather(*(client.completions.create(**asked) for _ in range(8)))

    texts = {answer.choices[0].text for answer in asyncio.run(patiently())}
    assert len(texts) == 1
