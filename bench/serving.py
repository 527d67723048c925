"""What the endpoint costs: tokens per second and time to first token over HTTP, beside the bare engine's.

    python bench/serving.py --data FILE.jsonl [--data ...] [--concurrency 1,16] [--rounds 2] [--max-tokens 100]
        [--url URL]

Starts ``python -m deployments serve`` with one replica and no store, unless ``--url`` names an endpoint of the demo
model, and an engine in this process; the two take turns over the first turns of the file's questions, N streams at a
time, greedily. The client shares the machine with the endpoint. The last line is one JSON object.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import aiohttp

from racer import AsyncEngine, Engine, EngineConfig, Request, SamplingParams
from racer.text import render_chat

CONFIG = f"""
applications:
  - name: racer
    route_prefix: /
    import_path: deployments.app:build_app
    args:
      models:
        - name: demo
          num_cpus: {os.cpu_count() or 1}
          engine: {{model: demo, max_running: 32}}
          autoscaling: {{min_replicas: 1, max_replicas: 1}}
"""
READY_S = 300.0
Stream = Callable[[str], AsyncIterator[int]]
"""Yields the number of tokens in each piece of an answer to a question."""


def make_engine() -> Engine:
    """An engine that has compiled everything."""
    engine = Engine(EngineConfig())
    engine.drafter.warm_up()
    return engine


def of_engine(engine: AsyncEngine, max_tokens: int) -> Stream:
    """Answers of the engine in this process."""

    async def stream(question: str) -> AsyncIterator[int]:
        prompt = render_chat(engine.engine.tokenizer, [{"role": "user", "content": question}])
        async for batch in engine.batches(Request(tuple(prompt), SamplingParams(max_tokens=max_tokens))):
            yield sum(len(output.token_ids) for output in batch)

    return stream


def of_endpoint(session: aiohttp.ClientSession, url: str, max_tokens: int) -> Stream:
    """Answers of the endpoint; all tokens count with the last piece, as the usage tells them."""

    async def stream(question: str) -> AsyncIterator[int]:
        body = {
            "model": "demo",
            "messages": [{"role": "user", "content": question}],
            "temperature": 0,
            "max_tokens": max_tokens,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        async with session.post(f"{url}/v1/chat/completions", json=body) as response:
            response.raise_for_status()
            async for line in response.content:
                if line.startswith(b"data: {"):
                    data = json.loads(line[6:])
                    if data["usage"]:
                        yield data["usage"]["completion_tokens"]
                    elif data["choices"][0]["delta"].get("content"):
                        yield 0

    return stream


async def measure(stream: Stream, questions: list[str], concurrency: int) -> tuple[float, list[float]]:
    """Tokens per second over all questions, and each one's seconds to its first piece."""
    permits = asyncio.Semaphore(concurrency)
    tokens, firsts = 0, []

    async def one(question: str) -> None:
        nonlocal tokens
        async with permits:
            started, first = time.perf_counter(), None
            async for piece in stream(question):
                if first is None:
                    first = time.perf_counter() - started
                tokens += piece
            if first is not None:
                firsts.append(first)

    started = time.perf_counter()
    await asyncio.gather(*map(one, questions))
    return tokens / (time.perf_counter() - started), firsts


async def until_ready(session: aiohttp.ClientSession, url: str, server: subprocess.Popen[bytes] | None) -> None:
    """Wait for the endpoint; raises RuntimeError if it ends, or takes too long."""
    end = time.monotonic() + READY_S
    while time.monotonic() < end:
        if server is not None and server.poll() is not None:
            break
        try:
            async with session.get(f"{url}/ready") as response:
                if response.status == 200:
                    return
        except aiohttp.ClientError:
            pass
        await asyncio.sleep(1)
    raise RuntimeError(f"{url} is not ready; start the server by hand to see why")


async def compare(arguments: argparse.Namespace, url: str, server: subprocess.Popen[bytes] | None) -> dict[str, Any]:
    """All rounds at all concurrencies."""
    lines = [line for path in arguments.data for line in Path(path).read_text().splitlines()]
    questions = [json.loads(line)["turns"][0] for line in lines]
    report: dict[str, Any] = {"questions": len(questions), "max_tokens": arguments.max_tokens}
    async with aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=0), timeout=aiohttp.ClientTimeout(total=None)
    ) as session:
        await until_ready(session, url, server)
        engine = await asyncio.to_thread(AsyncEngine, make_engine)
        ways = {
            "engine": of_engine(engine, arguments.max_tokens),
            "http": of_endpoint(session, url, arguments.max_tokens),
        }
        for way in ways.values():
            await measure(way, questions[:2], 2)
        for concurrency in map(int, arguments.concurrency.split(",")):
            rates: dict[str, list[float]] = {name: [] for name in ways}
            firsts: dict[str, list[float]] = {name: [] for name in ways}
            for _ in range(arguments.rounds):
                for name, way in ways.items():
                    rate, first = await measure(way, questions, concurrency)
                    rates[name].append(rate)
                    firsts[name] += first
            row: dict[str, float] = {}
            for name in ways:
                row[f"{name}_tok_per_s"] = statistics.fmean(rates[name])
                row[f"{name}_first_token_ms"] = 1e3 * statistics.median(firsts[name])
            row["ratio"] = row["http_tok_per_s"] / row["engine_tok_per_s"]
            row["first_token_ms_more"] = row["http_first_token_ms"] - row["engine_first_token_ms"]
            report[f"streams_{concurrency}"] = {name: round(value, 3) for name, value in row.items()}
            print(concurrency, *(f"{name} {value:.2f}" for name, value in row.items()), flush=True)
        await asyncio.to_thread(engine.close)
    return report


def main() -> None:
    """Start what is needed, compare, and stop it again."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", action="append", required=True, help="questions, one JSON object with turns a line")
    parser.add_argument("--concurrency", default="1,16", help="streams at a time (default 1,16)")
    parser.add_argument("--rounds", type=int, default=2, help="turns of each (default 2)")
    parser.add_argument("--max-tokens", type=int, default=100, help="tokens of an answer (default 100)")
    parser.add_argument("--url", help="an endpoint that runs already")
    parser.add_argument("--port", type=int, default=8199, help="port of the one started here (default 8199)")
    arguments = parser.parse_args()
    if arguments.url:
        print(json.dumps(asyncio.run(compare(arguments, arguments.url.rstrip("/"), None))))
        return
    with tempfile.TemporaryDirectory() as folder:
        config, log = Path(folder, "one.yaml"), Path(folder, "log")
        config.write_text(CONFIG)
        command = [sys.executable, "-m", "deployments", "serve", "--config", str(config), "--port", str(arguments.port)]
        with log.open("wb") as output:
            server = subprocess.Popen(command, stdout=output, stderr=output)
        try:
            print(json.dumps(asyncio.run(compare(arguments, f"http://127.0.0.1:{arguments.port}", server))))
        finally:
            server.send_signal(signal.SIGINT)
            server.wait(60)


if __name__ == "__main__":
    main()
