"""``batch``: answer files of requests over a Ray cluster, each line once, however often it is interrupted."""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from deployments.commands import positive
from deployments.commands.serve import RAY_ENVIRONMENT, STORE_URL, check_store, start_ray, with_embedded_store
from deployments.config import AppConfig, ModelConfig, parse_config
from deployments.errors import ConfigError
from deployments.files import CONFIGS, read_args

if TYPE_CHECKING:
    from deployments.batch.run import Pool, Run
    from deployments.batch.worker import WorkerSettings

SUMMARY = "answer files of requests over a Ray cluster"
DESCRIPTION = (
    "Answer files of requests (OpenAI's batch form; JSON lines with prompt, messages or turns; texts; CSV; Parquet) "
    "with an autoscaling pool of engines. Each line gets one record. What is interrupted goes on with --resume."
)
INTERRUPTED = 130

_OBJECT_STORE_BYTES = 512 << 20


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of the command."""
    parser.add_argument(
        "--input", metavar="FILE", nargs="+", required=True, help="paths, globs or URIs such as s3://bucket/key"
    )
    parser.add_argument("--output", metavar="FILE_OR_DIR", required=True, help="where the records go")
    parser.add_argument("--config", metavar="FILE.yaml", type=Path, help="as serve takes it (default: the demo model)")
    parser.add_argument("--model", metavar="NAME", help="which of its models (default: the first)")
    parser.add_argument(
        "--replicas", metavar="MIN:MAX", type=_replicas, help="workers (default: the model's autoscaling)"
    )
    parser.add_argument("--resume", action="store_true", help="go on where an earlier run of the same was ended")
    parser.add_argument("--overwrite", action="store_true", help="replace an output that exists")
    parser.add_argument("--ordered", action="store_true", help="records in the order of the input's lines")
    parser.add_argument("--column", metavar="NAME", help="field or column with the prompt (default: prompt)")
    parser.add_argument("--chat", action="store_true", help="put plain prompts to the model as chat messages")
    parser.add_argument("--body", metavar="JSON", type=_body, default={}, help="fields of requests that lack them")
    parser.add_argument("--lines-per-task", metavar="N", type=positive, default=256, help="lines sent at once (256)")
    parser.add_argument("--progress-s", metavar="S", type=_seconds, default=10.0, help="time between JSON lines (10)")
    parser.add_argument("--price-per-hour", metavar="X", type=_seconds, help="of one worker, for the summary's cost")
    parser.add_argument("--address", metavar="HOST:PORT", help="a running Ray cluster (default: a new one)")


def execute(args: argparse.Namespace) -> int:
    """Answer everything; 130 if interrupted."""
    from deployments.batch.locations import expand
    from deployments.batch.outputs import Outputs
    from deployments.batch.plan import make_plan
    from deployments.batch.requests import Reading
    from deployments.batch.settings import unheeded
    from deployments.batch.summary import sentence, summarise

    if args.resume and args.overwrite:
        raise ConfigError("--resume and --overwrite contradict each other; give one of them")
    config = _config(args.config)
    check_store(config, args.address)
    model = _model(config, args.model)
    if names := unheeded(config):
        print(f"note: {args.config}: a batch does not use {', '.join(names)}", file=sys.stderr)
    places = expand(args.input)
    outputs = Outputs(args.output)
    for made in (outputs.answers, outputs.errors, outputs.summary):
        if any(place.path == made.path for place in places):
            raise ConfigError(f"--output {made.text}: is an input too; name another place")
    with tempfile.TemporaryDirectory(prefix="racer-batch-") as folder, ExitStack() as stack:
        reading = Reading(model=model.name, column=args.column, chat=args.chat, defaults=args.body)
        plan = make_plan(places, reading, args.lines_per_task, Path(folder))
        for text in plan.empty:
            print(f"note: {text} is empty", file=sys.stderr)
        if args.column and all(file.reading.form == "text" for file in plan.files):
            raise ConfigError(f"--column {args.column}: a line of a text file is a prompt as it is; leave --column out")
        job = describe(plan.fingerprint, plan.requests, model, args)
        opened = outputs.opened(job, plan.requests, resume=args.resume, overwrite=args.overwrite)
        journal = stack.enter_context(opened)
        if journal is None:
            print(f"{outputs.answers.text} is complete already", file=sys.stderr)
            return 0
        if not journal.done.all():
            config = with_embedded_store(config, stack)
            if not _answer(args, config, model, plan, journal, stack):
                print(
                    f"interrupted: {journal.totals.requests} of {plan.requests} done, kept in {outputs.parts.text}; "
                    "the same command with --resume goes on",
                    file=sys.stderr,
                )
                return INTERRUPTED
        summary = summarise(journal, job, args.price_per_hour)
        outputs.finish(journal, summary, ordered=args.ordered)
        told = f"{outputs.answers.text}" + (f", {outputs.errors.text}" if summary["errors"] else "")
        print(f"{sentence(summary)}; written to {told}", file=sys.stderr)
        print(json.dumps(summary))
    return 0


def describe(inputs: str, requests: int, model: ModelConfig, args: argparse.Namespace) -> dict[str, Any]:
    """What decides the answers: a run is only resumed with the same."""
    engine = model.engine_config()
    return {
        "inputs": inputs,
        "requests": requests,
        "model": model.name,
        "weights": engine.model,
        "dtype": engine.dtype,
        "max_context": engine.max_context,
        "seed": engine.seed,
        "column": args.column,
        "chat": args.chat,
        "body": args.body,
    }


def pool_of(model: ModelConfig, replicas: tuple[int, int] | None) -> Pool:
    """The workers of a model, as its configuration and the command line have them."""
    from deployments.batch.engine import in_flight
    from deployments.batch.run import Pool

    scaling = model.autoscaling
    smallest, largest = replicas or (max(1, scaling.min_replicas), scaling.max_replicas)
    # OpenMP reads its variable when torch loads it, and Ray sets another value: before the worker's first line.
    environment = {"OMP_NUM_THREADS": str(model.replica_threads)} | model.environment
    return Pool(
        smallest,
        largest,
        model.num_cpus,
        model.num_gpus,
        model.resources,
        in_flight(model.engine_config().max_running),
        environment,
    )


def _answer(
    args: argparse.Namespace, config: AppConfig, model: ModelConfig, plan: Any, journal: Any, stack: ExitStack
) -> bool:
    """Whether all was answered."""
    for name, value in RAY_ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    # Ray's core calls it an error how Ray Data starts its workers, whose arguments lie in the object store: it lives as
    # long as the run. The core writes to the terminal itself, whatever Python's logging says.
    os.environ.setdefault("RAY_BACKEND_LOG_LEVEL", "fatal")
    start_ray(args.address, stack, object_store_memory=_OBJECT_STORE_BYTES)
    from deployments.batch.engine import EngineAnswerer, EngineSpec
    from deployments.batch.progress import Reporter
    from deployments.batch.run import Run
    from deployments.batch.worker import WorkerSettings

    settings: WorkerSettings = WorkerSettings(
        plan.files, EngineAnswerer, EngineSpec(config.model_dump(mode="json"), model.name)
    )
    pool = pool_of(model, args.replicas)
    if config.store.url == f"${STORE_URL}" and STORE_URL in os.environ:  # a cluster that runs does not inherit it
        pool = replace(pool, environment=pool.environment | {STORE_URL: os.environ[STORE_URL]})
    run = Run(plan, journal, pool, settings, args.lines_per_task)
    with Reporter(journal, args.progress_s), _stoppable(run):
        run.execute()
    return bool(journal.done.all())


@contextmanager
def _stoppable(run: Run) -> Iterator[None]:
    """Ctrl-C lets what is under way finish; a second one ends at once. What is finished is kept in either case."""

    def stop(*_: object) -> None:
        if run.stopped:
            raise KeyboardInterrupt("interrupted; the same command with --resume goes on")
        run.stop()
        print("finishing what is under way; Ctrl-C again ends at once", file=sys.stderr, flush=True)

    numbers = (signal.SIGINT, signal.SIGTERM)
    before = {number: signal.signal(number, stop) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _config(path: Path | None) -> AppConfig:
    if path is not None:
        return parse_config(read_args(path), str(path))
    values = read_args(CONFIGS / "demo.yaml")
    values["models"][0] |= {"num_cpus": os.cpu_count() or 1}
    return parse_config(values, "demo configuration")


def _model(config: AppConfig, name: str | None) -> ModelConfig:
    for model in config.models:
        if name in (None, model.name):
            return model
    raise ConfigError(f"--model {name}: the configuration has {', '.join(model.name for model in config.models)} only")


def _replicas(text: str) -> tuple[int, int]:
    smallest, _, largest = text.partition(":")
    if (
        not smallest.isdigit()
        or not (largest or smallest).isdigit()
        or not 1 <= int(smallest) <= int(largest or smallest)
    ):
        raise argparse.ArgumentTypeError(f"{text!r} is not valid: MIN:MAX with 1 <= MIN <= MAX is expected, as 1:4")
    return int(smallest), int(largest or smallest)


def _body(text: str) -> dict[str, Any]:
    try:
        body = json.loads(text)
    except ValueError:
        body = None
    if not isinstance(body, dict):
        raise argparse.ArgumentTypeError(
            f"{text!r} is not valid: a JSON object is expected, as '{{\"max_tokens\": 200}}'"
        )
    return body


def _seconds(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0.0 < value < float("inf"):
        raise argparse.ArgumentTypeError(f"{text!r} is not valid: a number above 0 is expected")
    return value
