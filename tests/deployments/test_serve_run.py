"""Two models behind one endpoint, started by Ray's own ``serve run`` from a configuration file, on a real cluster."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
from filelock import FileLock

from deployments.commands.serve import RAY_ENVIRONMENT
from racer import Engine, EngineConfig
from tests.deployments.local import wait_until
from tests.deployments.serving import on_replicas, replica_pids
from tests.tiny import byte_tokenizer, tiny_model

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

PROMPT = "abcabcabc"
COMMON: dict[str, Any] = {"dtype": "float32", "compile": False, "budget": 4}
LONG: dict[str, Any] = {"prompt": PROMPT, "temperature": 0, "max_tokens": 400, "ignore_eos": True}


@dataclass
class Running:
    """What ``serve run`` started, the configuration it was given, and what keeps the second model from loading."""

    root: str
    values: dict[str, Any]
    loading: FileLock

    def post(self, model: str = "first", **changes: Any) -> dict[str, Any]:
        body = {"model": model} | LONG | {"max_tokens": 40} | changes
        answer = httpx.post(f"{self.root}/v1/completions", json=body, timeout=120)
        assert answer.status_code == 200, answer.text
        found: dict[str, Any] = answer.json()
        return found

    def text(self, model: str = "first", **changes: Any) -> str:
        return str(self.post(model, **changes)["choices"][0]["text"])

    def ready(self) -> tuple[int, dict[str, str]]:
        answer = httpx.get(f"{self.root}/ready", timeout=60)
        found = answer.json()
        return answer.status_code, found.get("models", found)

    def redeploy(self, values: dict[str, Any]) -> None:
        """As ``serve deploy`` does."""
        from ray.serve.context import _get_global_client
        from ray.serve.schema import ServeDeploySchema

        _get_global_client().deploy_apps(ServeDeploySchema.model_validate(values))


def other_model(folder: Path, cache: Path) -> Path:
    """A second tiny model. Its prior table has been computed in ``cache`` once and is missing again."""
    tokenizer = byte_tokenizer()
    model = tiny_model("llama", seed=7, vocab_size=len(tokenizer), eos_token_id=1)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RACER_CACHE", str(cache))
        Engine(EngineConfig(model=str(folder), **COMMON))
    next(cache.glob("prior-*.npz")).unlink()
    return folder


def configuration(first: Path, second: Path, cache: Path, port: int) -> dict[str, Any]:
    common = {"num_cpus": 0, "threads": 1, "drain_s": 5}
    models = [
        common
        | {
            "name": "first",
            "engine": COMMON | {"model": str(first), "prior": False, "max_running": 32},
            "autoscaling": {"min_replicas": 2, "max_replicas": 2},
        },
        common
        | {"name": "second", "engine": COMMON | {"model": str(second)}, "environment": {"RACER_CACHE": str(cache)}},
    ]
    args = {"models": models, "ingress_cpus": 0, "affinity_slack": 100}
    application = {"name": "racer", "route_prefix": "/", "import_path": "deployments.app:build_app", "args": args}
    return {"http_options": {"host": "127.0.0.1", "port": port}, "applications": [application]}


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory, tiny_folder: Path) -> Iterator[Running]:
    import ray
    from ray.cluster_utils import Cluster

    folder = tmp_path_factory.mktemp("run")
    second = other_model(folder / "second", folder / "cache")
    loading = FileLock(next((folder / "cache").glob("prior-*.lock")))
    loading.acquire()
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = int(free.getsockname()[1])
    values = configuration(tiny_folder, second, folder / "cache", port)
    (folder / "two.yaml").write_text(json.dumps(values))
    with pytest.MonkeyPatch.context() as patch:
        for name, value in (RAY_ENVIRONMENT | {"RACER_API_KEYS": ""}).items():
            patch.setenv(name, value)
        cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 2, "include_dashboard": False})
        command = [str(Path(sys.executable).with_name("serve")), "run", "--address", cluster.address]
        process = subprocess.Popen(
            [*command, str(folder / "two.yaml")],
            stdout=subprocess.DEVNULL,
            stderr=(folder / "run.log").open("wb"),
            start_new_session=True,
        )
        try:
            ray.init(address=cluster.address, log_to_driver=False, logging_level="ERROR")
            one = Running(f"http://127.0.0.1:{port}", values, loading)

            def answers() -> bool:
                assert process.poll() is None, (folder / "run.log").read_text()
                try:
                    return bool(one.text(max_tokens=1))
                except (httpx.HTTPError, AssertionError):
                    return False

            wait_until(answers, "the first model answers", 120)
            yield one
            process.send_signal(signal.SIGINT)
            assert process.wait(150) == 0, (folder / "run.log").read_text()
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
            loading.release()
            ray.shutdown()
            cluster.shutdown()


def test_a_model_that_loads_long_gets_nothing_before_it_is_ready(running: Running) -> None:  # fault 31
    """The other one answers meanwhile."""
    status, models = running.ready()
    assert status == 503 and models["first"] == "ready" and models["second"] != "ready"
    assert replica_pids("model-first") and len(running.text()) > 0

    async def asked_too_early() -> str:
        async with httpx.AsyncClient(base_url=running.root, timeout=120) as http:
            body = {"model": "second"} | LONG
            asked = asyncio.create_task(http.post("/v1/completions", json=body))
            await asyncio.sleep(2)
            assert not asked.done() or asked.result().status_code == 503
            running.loading.release()
            answer = await asked
            if answer.status_code == 503:
                assert answer.headers["retry-after"]
                await asyncio.to_thread(wait_until, lambda: running.ready()[0] == 200, "it is ready", 60)
                answer = await http.post("/v1/completions", json=body)
            return str(answer.json()["choices"][0]["text"])

    text = asyncio.run(asked_too_early())
    wait_until(lambda: running.ready()[0] == 200, "both are ready", 60)
    assert text == running.text("second", max_tokens=400, drafts="off")


@pytest.fixture
def both(running: Running) -> Running:
    """Both models are there."""
    running.loading.release()
    wait_until(lambda: running.ready()[0] == 200, "both are ready", 100)
    return running


def test_each_model_gives_its_own_tokens(both: Running) -> None:
    assert both.text("first") == both.text("first", drafts="off")
    assert both.text("first") != both.text("second")
    with openai.OpenAI(base_url=f"{both.root}/v1", api_key="none", max_retries=0) as client:
        assert [model.id for model in client.models.list().data] == ["first", "second"]
        with pytest.raises(openai.NotFoundError) as wrong:
            client.completions.create(model="third", prompt="x")
        assert wrong.value.code == "model_not_found"


def test_asynchronous_streams(both: Running) -> None:
    async def stream(model: str) -> str:
        async with openai.AsyncOpenAI(base_url=f"{both.root}/v1", api_key="none") as client:
            asked: dict[str, Any] = {"prompt": PROMPT, "max_tokens": 40, "temperature": 0}
            pieces = await client.completions.create(model=model, stream=True, extra_body={"ignore_eos": True}, **asked)
            return "".join([piece.choices[0].text async for piece in pieces])

    async def together() -> list[str]:
        return await asyncio.gather(*(stream(model) for model in ("first", "second") * 4))

    assert asyncio.run(together()) == [both.text("first"), both.text("second")] * 4


def test_a_conversation_stays_with_its_replica(running: Running) -> None:
    """Each conversation's requests are logged by one replica, and both replicas have some."""
    import ray

    node: Any = ray._private.worker._global_node
    folder = Path(node.get_session_dir_path()).resolve() / "logs" / "serve"
    said = {name: (f"{name} " * 130)[:260] for name in map(str, range(12))}  # a prompt's first 256 characters count
    for turn in range(4):
        for name, text in said.items():
            body = {"model": "first", "prompt": text, "max_tokens": 8, "temperature": 0, "ignore_eos": True}
            headers = {"X-Request-Id": f"talk-{name}-{turn}"}
            answer = httpx.post(f"{running.root}/v1/completions", json=body, headers=headers, timeout=60)
            said[name] = text + answer.json()["choices"][0]["text"]

    def homes() -> dict[str, set[str]]:
        found: dict[str, set[str]] = {name: set() for name in said}
        lines = 0
        for path in folder.glob("replica_*model-first*.log"):
            for line in path.read_text(errors="replace").splitlines():
                if '"request": "talk-' in line and json.loads(line)["message"] == "request":
                    found[json.loads(line)["request"].split("-")[1]].add(path.name)
                    lines += 1
        return found if lines == 4 * len(said) else {}

    wait_until(homes, "all requests are logged", 30)
    found = homes()
    assert {len(each) for each in found.values()} == {1}, found
    assert len(set.union(*found.values())) == 2


def test_abandoned_streams_leave_nothing(running: Running) -> None:  # fault 30
    async def abandon(http: httpx.AsyncClient, number: int) -> None:
        body = {"model": "first", "stream": True} | LONG
        try:
            async with asyncio.timeout(0.2 if number % 2 else None):
                async with http.stream("POST", "/v1/completions", json=body) as answer:
                    async for _ in answer.aiter_bytes():
                        return
        except (TimeoutError, httpx.HTTPError):
            pass

    async def all_of_them() -> None:
        async with httpx.AsyncClient(
            base_url=running.root, limits=httpx.Limits(max_connections=None), timeout=60
        ) as http:
            await asyncio.gather(*(abandon(http, number) for number in range(300)))

    def nothing_left() -> bool:
        each = on_replicas("model-first", lambda replica: dict(replica.record_autoscaling_stats()))
        return len(each) == 2 and not any(
            one[name] for one in each for name in ("open", "running", "waiting", "cache_use")
        )

    asyncio.run(all_of_them())
    wait_until(nothing_left, "nothing is in flight, all slots and the cache are free", 20.0)
    assert len(running.text()) > 0


def test_settings_of_a_deployment_change_without_a_restart(running: Running) -> None:
    pids = sorted(replica_pids("model-first"))
    assert sum(running.post(return_stats=True)["usage"]["racer"]["drafted"].values()) > 0
    values = json.loads(json.dumps(running.values))
    values["applications"][0]["deployments"] = [
        {"name": "model-first", "user_config": {"budget": 1, "stream_interval_ms": 0}}
    ]
    running.redeploy(values)

    def without_drafts() -> bool:
        each = [running.post(prompt=PROMPT + str(i), return_stats=True) for i in range(6)]
        return all(sum(one["usage"]["racer"]["drafted"].values()) == 0 for one in each)

    wait_until(without_drafts, "neither replica drafts", 60)
    assert sorted(replica_pids("model-first")) == pids
