"""The real thing: Ray Serve on a cluster of several nodes, with the demo model and a real Redis, under real clients."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from tests.deployments.local import wait_until
from tests.deployments.serving import BODY, ROOT, Endpoint, ask, deploy, ready, replica_pids, running_endpoint

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def endpoint(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Endpoint]:
    with running_endpoint(tmp_path_factory.mktemp("batches")) as endpoint:
        yield endpoint


def test_clients_get_the_models_tokens(endpoint: Endpoint) -> None:
    expected = ask(drafts="off")
    assert ask() == expected
    with openai.OpenAI(base_url=f"{ROOT}/v1", api_key="none") as client:
        pieces = client.completions.create(**BODY, stream=True)
        assert "".join(piece.choices[0].text for piece in pieces) == expected
        with pytest.raises(openai.BadRequestError) as wrong:
            client.completions.create(**(BODY | {"max_tokens": 100_000}))
        assert wrong.value.code == "context_length_exceeded"
        listed = client.models.list().data
        assert [model.id for model in listed] == ["demo"]

    async def through_async() -> str:
        async with openai.AsyncOpenAI(base_url=f"{ROOT}/v1", api_key="none") as client:
            answer = await client.completions.create(**BODY)
            return str(answer.choices[0].text)

    assert asyncio.run(through_async()) == expected
    told = subprocess.run(
        ["curl", "-sS", f"{ROOT}/v1/completions", "-H", "Content-Type: application/json", "-d", json.dumps(BODY)],
        capture_output=True,
        text=True,
        check=True,
    )
    assert json.loads(told.stdout)["choices"][0]["text"] == expected


def test_langchain_works(endpoint: Endpoint) -> None:
    from langchain_openai import ChatOpenAI
    from pydantic import SecretStr

    chat = ChatOpenAI(
        model="demo", base_url=f"{ROOT}/v1", api_key=SecretStr("none"), temperature=0, max_completion_tokens=8
    )
    answer = chat.invoke("Say hello.")
    assert answer.content and answer.usage_metadata is not None and answer.usage_metadata["output_tokens"] <= 8
    assert "".join(str(chunk.content) for chunk in chat.stream("Say hello.")) == answer.content


def test_request_id_is_told_once_and_logged_without_text(endpoint: Endpoint) -> None:
    import ray

    body = BODY | {"prompt": "a prompt nobody may log", "user": "user-7"}
    answer = httpx.post(f"{ROOT}/v1/completions", json=body, headers={"X-Request-Id": "find-me-1"}, timeout=60)
    assert answer.headers.get_list("x-request-id") == ["find-me-1"]
    node: Any = ray._private.worker._global_node
    folder = Path(node.get_session_dir_path()).parent

    def lines() -> list[dict[str, Any]]:
        texts = [path.read_text(errors="replace") for path in folder.glob("session_*/logs/serve/*.log")]
        assert not any("nobody may log" in text for text in texts)
        return [
            json.loads(line) for text in texts for line in text.splitlines() if "find-me-1" in line and line[0] == "{"
        ]

    wait_until(lambda: any(line["message"] == "request" for line in lines()), "the request is logged")
    logged = next(line for line in lines() if line["message"] == "request")
    assert logged["user"] == "user-7" and logged["completion_tokens"] == 24 and logged["status"] == 200


def test_metrics_tell_of_requests_drafts_and_store(endpoint: Endpoint) -> None:
    from prometheus_client.parser import text_string_to_metric_families

    ask(seed=3)

    def samples() -> dict[str, float]:
        page = httpx.get(f"{ROOT}/metrics", timeout=30).text
        found: dict[str, float] = {}
        for family in text_string_to_metric_families(page):
            for sample in family.samples:
                assert sample.labels["model"] == "demo"
                found[sample.name] = found.get(sample.name, 0.0) + sample.value
        return found

    wanted = [
        "ray_racer_requests_total",
        "ray_racer_completion_tokens_total",
        "ray_racer_time_to_first_token_s_count",
        "ray_racer_time_per_token_s_count",
        "ray_racer_mat_count",
        "ray_racer_budget_count",
        "ray_racer_step_ms_count",
        "ray_racer_drafted_tokens_total",
        "ray_racer_accepted_tokens_total",
        "ray_racer_accepted_by_depth_total",
        "ray_racer_store_contexts_total",
        "ray_racer_store_learned_tokens_total",
    ]
    wait_until(lambda: all(samples().get(name, 0) > 0 for name in wanted), f"all of {wanted}", 40)
    found = samples()
    assert {"ray_racer_cache_use", "ray_racer_open_requests", "ray_racer_store_breaker"} <= set(found)


def test_batch_goes_on_when_the_http_side_is_killed(endpoint: Endpoint) -> None:
    """So do clients that ask again: what the only replica had is answered by the proxy, 503 or an error event."""
    lost: dict[bool, httpx.Response] = {}

    def ask_in_vain(stream: bool) -> None:
        long = BODY | {"max_tokens": 1500, "ignore_eos": True, "stream": stream}
        lost[stream] = httpx.post(f"{ROOT}/v1/completions", json=long, timeout=200)

    askers = [threading.Thread(target=ask_in_vain, args=(stream,)) for stream in (False, True)]
    body = BODY | {"max_tokens": 60, "ignore_eos": True}
    ids = [f"r{i}" for i in range(40)]
    target = {"method": "POST", "url": "/v1/completions"}
    lines = [target | {"custom_id": name, "body": body | {"prompt": f"{name}: the"}} for name in ids]
    data = "".join(json.dumps(line) + "\n" for line in lines).encode()
    with openai.OpenAI(base_url=f"{ROOT}/v1", api_key="none", max_retries=20) as client:
        for asker in askers:
            asker.start()
        file = client.files.create(file=("in.jsonl", data), purpose="batch")
        batch = client.batches.create(input_file_id=file.id, endpoint="/v1/completions", completion_window="24h")

        def completed() -> int:
            counts = client.batches.retrieve(batch.id).request_counts
            return 0 if counts is None else counts.completed

        wait_until(lambda: completed() > 4, "some are answered", 60)
        (pid,) = replica_pids("ingress")
        os.kill(pid, signal.SIGKILL)
        for asker in askers:
            asker.join(60)
        whole, streamed = lost[False], lost[True]
        assert whole.status_code == 503 and whole.headers["retry-after"] == "1", whole.text
        assert whole.json()["error"]["code"] == "replica_lost"
        assert streamed.status_code == 200 and streamed.text.count('"error"') == 1
        assert '"code":"replica_lost"' in streamed.text.rstrip().splitlines()[-1]
        assert completed() < 40
        wait_until(lambda: client.batches.retrieve(batch.id).status == "completed", "the batch ends", 120)
        assert completed() == 40 and replica_pids("ingress") != [pid]
        output = client.batches.retrieve(batch.id).output_file_id
        assert output is not None
        records = [json.loads(line) for line in client.files.content(output).text.splitlines()]
    assert sorted(record["custom_id"] for record in records) == sorted(ids)
    assert {record["response"]["body"]["usage"]["completion_tokens"] for record in records} == {60}


def test_replica_lost_under_load(endpoint: Endpoint) -> None:
    """One of two replicas is killed: its streams end with one error event, the others and new requests go on."""
    pids = replica_pids()
    assert len(pids) == 2
    outcomes: list[str] = []

    async def stream(http: httpx.AsyncClient, number: int) -> None:
        body = BODY | {
            "prompt": f"{number}: a long story about {number}",
            "max_tokens": 120,
            "ignore_eos": True,
            "stream": True,
        }
        async with http.stream("POST", "/v1/completions", json=body) as answer:
            assert answer.status_code == 200
            lines = [line async for line in answer.aiter_lines() if line]
        errors = [line for line in lines if '"error"' in line]
        assert len(errors) <= 1 and (not errors or lines[-1] == errors[0])
        outcomes.append("lost" if errors else "whole" if lines[-1] == "data: [DONE]" else "cut")

    async def load() -> None:
        async with httpx.AsyncClient(base_url=ROOT, timeout=200) as http:
            tasks = [asyncio.create_task(stream(http, i)) for i in range(12)]
            await asyncio.sleep(3)
            os.kill(pids[0], signal.SIGKILL)
            late = [asyncio.create_task(stream(http, i)) for i in range(12, 16)]
            await asyncio.gather(*tasks, *late)

    asyncio.run(load())
    assert len(outcomes) == 16 and "cut" not in outcomes
    assert outcomes.count("lost") >= 1 and outcomes.count("whole") >= 4
    wait_until(lambda: endpoint.running() == 2 and ready() == 200, "the replica is replaced", 120)
    assert pids[0] not in replica_pids()


def test_redis_killed_under_load(endpoint: Endpoint) -> None:
    expected = ask(drafts="off", max_tokens=60)

    async def load() -> list[httpx.Response]:
        async with httpx.AsyncClient(base_url=ROOT, timeout=200) as http:
            tasks = [
                asyncio.create_task(http.post("/v1/completions", json=BODY | {"max_tokens": 60})) for _ in range(8)
            ]
            await asyncio.sleep(1)
            endpoint.store.close()
            tasks += [
                asyncio.create_task(http.post("/v1/completions", json=BODY | {"max_tokens": 60})) for _ in range(4)
            ]
            return await asyncio.gather(*tasks)

    answers = asyncio.run(load())
    assert [answer.status_code for answer in answers] == [200] * 12
    assert {answer.json()["choices"][0]["text"] for answer in answers} == {expected}


def test_change_of_the_engine_loses_no_request(endpoint: Endpoint) -> None:
    """Replicas are replaced one after the other, and let their answers finish."""
    before, expected = set(replica_pids()), ask(drafts="off")
    stop = asyncio.Event()

    async def keep_asking(http: httpx.AsyncClient, stream: bool) -> list[tuple[int, str]]:
        answers = []
        while not stop.is_set():
            answer = await http.post("/v1/completions", json=BODY | {"stream": stream})
            if stream:
                lines = [line for line in answer.text.splitlines() if line]
                assert lines[-1] == "data: [DONE]", lines[-1]
                bodies = [json.loads(line.removeprefix("data: ")) for line in lines[:-1]]
            else:
                bodies = [answer.json()]
            answers.append((answer.status_code, "".join(body["choices"][0]["text"] for body in bodies)))
        return answers

    async def load() -> list[tuple[int, str]]:
        async with httpx.AsyncClient(base_url=ROOT, timeout=200) as http:
            tasks = [asyncio.create_task(keep_asking(http, stream)) for stream in (False, True, True)]
            engine = {"model": "demo", "prior": False, "compile": False, "budget": 8, "max_running": 16}
            await asyncio.to_thread(deploy, model={"engine": engine})
            await asyncio.to_thread(wait_until, lambda: before.isdisjoint(replica_pids()), "all are new", 120)
            stop.set()
            return [one for part in await asyncio.gather(*tasks) for one in part]

    assert set(asyncio.run(load())) == {(200, expected)}


def test_node_lost_and_found(endpoint: Endpoint) -> None:
    """Losing a node with a replica loses nothing that is asked afterwards; a new node gets a replica again."""
    endpoint.cluster.remove_node(endpoint.cluster.worker_nodes.copy().pop(), allow_graceful=False)
    expected = ask(drafts="off")
    assert {ask() for _ in range(5)} == {expected}
    endpoint.cluster.add_node(num_cpus=1, resources={"gpu_like": 1})
    wait_until(lambda: endpoint.running() == 2 and ready() == 200, "the new node has a replica", 120)


def test_scales_with_load_from_zero_and_back(endpoint: Endpoint) -> None:
    scaling = {
        "min_replicas": 0,
        "max_replicas": 2,
        "target_running": 2,
        "upscale_delay_s": 1,
        "downscale_delay_s": 3,
    }
    deploy(model={"autoscaling": scaling})
    wait_until(lambda: endpoint.running() == 0, "nobody asks, none runs", 90)
    assert httpx.get(f"{ROOT}/ready", timeout=30).json()["models"] == {"demo": "asleep"}
    assert ask(max_tokens=4)
    seen: list[int] = []

    async def keep_asking(http: httpx.AsyncClient, seed: int) -> list[int]:
        statuses = []
        while max(seen, default=0) < 2:
            body = BODY | {"max_tokens": 60, "ignore_eos": True, "seed": seed}
            statuses.append((await http.post("/v1/completions", json=body)).status_code)
        return statuses

    async def load() -> list[int]:
        async with httpx.AsyncClient(base_url=ROOT, timeout=200) as http:
            tasks = [asyncio.create_task(keep_asking(http, seed)) for seed in range(24)]
            deadline = time.monotonic() + 120
            while not all(task.done() for task in tasks):
                seen.append(await asyncio.to_thread(endpoint.running))
                assert time.monotonic() < deadline, "a second replica does not come"
                await asyncio.sleep(0.5)
            return [status for statuses in await asyncio.gather(*tasks) for status in statuses]

    assert set(asyncio.run(load())) == {200}
    assert max(seen) == 2
    wait_until(lambda: endpoint.running() == 0, "idle, none runs", 90)
