"""Tokens per second of a batch over those of the bare engine, and of a second epoch over the first.

    python bench/batch_speed.py --data FILE.jsonl [--data ...] [--requests 2000] [--max-tokens 32]

The same chats, greedy: by ``Engine.generate`` in a process of its own, by a batch of one worker without a store, and by
two batches, one after the other, with a store that was empty before the first. Times begin when the engine is ready.
Lines of ``--data`` have ``turns``, of which the first is asked; they are repeated, each time with a number before them,
until there are enough. The last line of stdout is one JSON object.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from deployments.batch.engine import EngineAnswerer, EngineSpec
from deployments.batch.locations import Location
from deployments.batch.outputs import Outputs
from deployments.batch.plan import make_plan
from deployments.batch.requests import Reading
from deployments.commands.batch import pool_of
from deployments.commands.serve import RAY_ENVIRONMENT, start_ray, with_embedded_store
from deployments.config import AppConfig


@dataclass(frozen=True)
class TimedSpec:
    """``ready``: a file that gets the time at which the engine was ready."""

    engine: EngineSpec
    ready: str


class TimedAnswerer(EngineAnswerer):
    """Notes when it is ready."""

    def __init__(self, spec: TimedSpec) -> None:
        super().__init__(spec.engine)
        Path(spec.ready).write_text(str(time.time()))


def conversations(paths: list[str], count: int) -> list[str]:
    """First turns."""
    turns = [json.loads(line)["turns"][0] for path in paths for line in Path(path).read_text().splitlines()]
    return [turns[i % len(turns)] if i < len(turns) else f"({i}) {turns[i % len(turns)]}" for i in range(count)]


def config_of(args: argparse.Namespace, store: str | None) -> AppConfig:
    """One worker on all cores."""
    engine: dict[str, Any] = {"model": "demo", "max_running": args.max_running, "max_context": 2048}
    models = [{"name": "demo", "engine": engine, "num_cpus": os.cpu_count()}]
    return AppConfig.model_validate({"models": models, "store": {"url": store}})


def bare(args: argparse.Namespace) -> dict[str, float]:
    """``Engine.generate`` over all chats."""
    import torch

    from racer.config import Drafts
    from racer.engine import Engine
    from racer.errors import UserError
    from racer.text import render_chat
    from racer.types import Request, SamplingParams

    model = config_of(args, None).models[0]
    torch.set_num_threads(model.replica_threads)
    engine = Engine(model.engine_config())
    assert engine.config.drafts is not Drafts.OFF
    engine.drafter.warm_up()
    started, tokens, steps, decided = time.perf_counter(), 0, 0, 0
    requests = []
    for text in conversations(args.data, args.requests):
        ids = render_chat(engine.tokenizer, [{"role": "user", "content": text}])
        if len(ids) + args.max_tokens <= engine.context_length:
            requests.append(Request(tuple(ids), SamplingParams(max_tokens=args.max_tokens)))
    try:
        for output in engine.generate(requests):
            if output.stats is not None:
                tokens += output.stats.completion_tokens
                steps += output.stats.steps
                decided += max(0, output.stats.decided - 1) if output.stats.steps else 0
    except UserError as error:
        raise SystemExit(str(error)) from error
    seconds = time.perf_counter() - started
    return {"tokens": tokens, "seconds": seconds, "tokens_per_s": tokens / seconds, "mat": decided / max(1, steps)}


def batch(args: argparse.Namespace, config: AppConfig, folder: Path) -> dict[str, float]:
    """One batch over all chats."""
    from deployments.batch.run import Run
    from deployments.batch.worker import WorkerSettings

    source, ready = folder / "in.jsonl", folder / "ready"
    with source.open("w") as file:
        for text in conversations(args.data, args.requests):
            file.write(json.dumps({"turns": [text]}) + "\n")
    body = {"max_tokens": args.max_tokens, "temperature": 0}
    plan = make_plan([Location.of(str(source))], Reading(defaults=body), args.lines_per_task, folder)
    outputs = Outputs(str(folder / "out.jsonl"))
    with outputs.opened({}, plan.requests, resume=False, overwrite=True) as journal:
        assert journal is not None
        spec = TimedSpec(EngineSpec(config.model_dump(mode="json"), "demo"), str(ready))
        settings = WorkerSettings(plan.files, TimedAnswerer, spec)
        run = Run(plan, journal, pool_of(config.models[0], (1, 1)), settings, args.lines_per_task)
        ended: list[float] = []

        def watch() -> None:
            while not journal.done.all():
                time.sleep(0.05)
            ended.append(time.time())

        threading.Thread(target=watch, daemon=True).start()
        run.execute()
        seconds = ended[0] - float(ready.read_text())
        tokens = journal.totals.tally.completion_tokens
        found = {
            "tokens": tokens,
            "seconds": seconds,
            "tokens_per_s": tokens / seconds,
            "mat": journal.totals.mat or 1.0,
        }
        return found | {"errors": journal.totals.errors}


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", action="append", required=True)
    parser.add_argument("--requests", type=int, default=2000)
    parser.add_argument("--max-tokens", type=int, default=32)
    parser.add_argument("--max-running", type=int, default=32)
    parser.add_argument("--lines-per-task", type=int, default=256)
    parser.add_argument("--no-bare", action="store_true", help="the two epochs only")
    parser.add_argument("--no-store", action="store_true", help="without the two epochs")
    parser.add_argument("--bare-only", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.bare_only:
        print(json.dumps(bare(args)))
        return
    os.environ.update(RAY_ENVIRONMENT)
    figures: dict[str, Any] = {"requests": args.requests, "max_tokens": args.max_tokens}
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        stored = config_of(args, None) if args.no_store else with_embedded_store(config_of(args, "embedded:"), stack)
        if not args.no_bare:
            done = subprocess.run(
                [sys.executable, *sys.argv, "--bare-only"], capture_output=True, text=True, check=True
            )
            figures["bare"] = json.loads(done.stdout.splitlines()[-1])
        start_ray(None, stack, object_store_memory=512 << 20)
        if not args.no_bare:
            figures["batch"] = batch(args, config_of(args, None), Path(folder))
            figures["batch_over_bare"] = round(figures["batch"]["tokens_per_s"] / figures["bare"]["tokens_per_s"], 3)
        if not args.no_store:
            for epoch in ("first_epoch", "second_epoch"):
                figures[epoch] = batch(args, stored, Path(folder))
            figures["second_over_first"] = round(
                figures["second_epoch"]["tokens_per_s"] / figures["first_epoch"]["tokens_per_s"], 3
            )
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
