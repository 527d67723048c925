"""``run``: put one load on an endpoint, and say what came of it."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from loadtest.commands.values import whole_number
from loadtest.errors import UserError
from loadtest.files import make_folder, read_mapping
from loadtest.material import workload_of
from loadtest.settings import RunSettings, parse
from loadtest.summary import summarise
from loadtest.tables import run_table
from loadtest.workloads import is_file

SUMMARY = "put a load on an endpoint and measure it"
DESCRIPTION = (
    "Put one load on an OpenAI-compatible endpoint and print what came of it: percentiles, throughput, goodput, MAT, "
    "cost. The last line of stdout is a JSON object. Exit code 1 if the limits did not hold."
)

_DEFAULT_URL = "http://127.0.0.1:8000/v1"
# option, field, type, help
_OPTIONS: tuple[tuple[str, str, Any, str], ...] = (
    ("--url", "url", str, f"base URL with its /v1 (default: {_DEFAULT_URL})"),
    ("--model", "model", str, "model to ask (default: the first that the server lists)"),
    ("--server", "server", str, "racer, or openai: ask for nothing beyond OpenAI's API (default: racer)"),
    ("--workload", "workload", str, "name, or path of a JSONL file (default: chat)"),
    ("--seed", "seed", int, "of workload and arrivals (default: 1)"),
    ("--first", "first", int, "number of the conversation to begin with (default: 0)"),
    ("--duration", "duration_s", float, "seconds that are measured (default: 60; of a replay: its log's)"),
    ("--warmup", "warmup_s", float, "seconds of load before, not counted (default: 0)"),
    ("--drain", "drain_s", float, "seconds in which requests may finish afterwards (default: 60)"),
    ("--timeout", "timeout_s", float, "seconds a whole answer may take (default: 300)"),
    ("--think", "think_s", float, "seconds between the turns of a conversation (default: 0)"),
    ("--conversations", "max_conversations", int, "begin no more than so many"),
    ("--max-tokens", "max_tokens", int, "cap of every answer"),
    ("--drafts", "drafts", str, "field of every request: racer, retrieval, logits, off"),
    ("--budget", "budget", int, "field of every request: cap of the draft tree"),
    ("--price", "price_per_replica_hour", float, "price of a replica for an hour, for the cost per million tokens"),
    ("--replicas", "replicas", int, "replicas that are paid for (default: as /metrics shows)"),
    ("--poll", "poll_s", float, "seconds between looks at /metrics (default: 5; 0: before and after only)"),
    ("--watch-pid", "watch_pid", int, "record the memory of this process and its children"),
)
_LIMITS: tuple[tuple[str, str, str], ...] = (
    ("--max-ttft-ms", "ttft_ms", "limit of the time to first token"),
    ("--max-time-per-token-ms", "time_per_token_ms", "limit of the mean time of a token after the first"),
    ("--good-share", "good_share", "part of the requests that must keep these limits (default: 0.99)"),
    ("--error-share", "error_share", "part of the requests that may fail (default: 0)"),
)


_OF_A_WORKER = {"worker", "command", "execute"}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of the command."""
    parser.add_argument("--settings", metavar="FILE", type=Path, help="YAML or JSON of all settings; options go before")
    load = parser.add_mutually_exclusive_group()
    load.add_argument("--users", metavar="N", type=int, help="closed loop: N conversations at a time (default: 1)")
    load.add_argument(
        "--steps", metavar="UxS,...", type=_steps, help="closed loop: U users for S seconds, then the next"
    )
    load.add_argument("--rate", metavar="R", type=float, help="open loop: R conversations begun a second (Poisson)")
    load.add_argument("--replay", metavar="X", type=float, help="open loop: the workload's at_s times, X times as fast")
    for option, field, kind, text in _OPTIONS:
        parser.add_argument(option, dest=field, type=kind, metavar=field.split("_")[0].upper(), help=text)
    for option, field, text in _LIMITS:
        parser.add_argument(option, dest=f"limit_{field}", type=float, metavar="X", help=text)
    parser.add_argument("--output", metavar="DIR", type=Path, help="write run.json and samples.jsonl there")
    parser.add_argument("--json", action="store_true", help="print the JSON line only")
    parser.add_argument("--web", metavar="PORT", type=int, help="locust's page on this port while it runs")
    parser.add_argument("--master", metavar="HOST:PORT", help="let workers make the load; they call here")
    parser.add_argument("--workers", metavar="N", type=whole_number, help="how many the master waits for (default: 1)")
    parser.add_argument("--worker", metavar="HOST:PORT", help="be a worker of the master there; it has the settings")


def execute(args: argparse.Namespace) -> int:
    """Carry the run out."""
    if args.worker:
        options = {name for name, value in vars(args).items() if value is not None and value is not False}
        if given := sorted(options - _OF_A_WORKER):
            raise UserError(f"--worker gets all settings from its master; leave {_option(given[0])} out")
        from loadtest.load import follow

        follow(*_address(args.worker, "--worker"))
        return 0
    if args.workers is not None and not args.master:
        raise UserError("--workers is how many a --master waits for; give --master HOST:PORT too, or leave it out")
    settings = settings_of(args)
    workload_of(settings)
    if args.output is not None:
        make_folder(args.output)
    from loadtest.load import carry_out, lead

    if args.master:
        host, port = _address(args.master, "--master")
        outcome = lead(settings, args.workers or 1, host, port, web_port=args.web)
    else:
        outcome = carry_out(settings, web_port=args.web)
    figures = summarise(settings, outcome.samples, outcome.begin_s, outcome.end_s, outcome.readings)
    told = {
        "settings": settings.model_dump(mode="json"),
        "interrupted": outcome.interrupted,
        "figures": figures,
        "readings": [reading.to_json() for reading in outcome.readings],
    }
    if args.output is not None:
        _write(args.output, told, outcome.samples)
    if not args.json:
        print(run_table(settings.workload, settings.load.label, figures))
    print(json.dumps(told, ensure_ascii=False), flush=True)
    if outcome.interrupted:
        print("interrupted: the figures are those until then", file=sys.stderr)
        return 130
    return 0 if figures["goodput"]["held"] else 1


def settings_of(args: argparse.Namespace) -> RunSettings:
    """The settings of a file, with the options over them.

    Raises:
        UserError: they are not valid.
    """
    values: dict[str, Any] = {"url": _DEFAULT_URL}
    if args.settings is not None:
        values |= read_mapping(args.settings)
    values |= {field: getattr(args, field) for _, field, _, _ in _OPTIONS if getattr(args, field) is not None}
    load = {
        name: getattr(args, name) for name in ("users", "steps", "rate", "replay") if getattr(args, name) is not None
    }
    if load:
        values["load"] = load
    values.setdefault("load", {"users": 1})
    limits = {field: getattr(args, f"limit_{field}") for _, field, _ in _LIMITS}
    given = {field: value for field, value in limits.items() if value is not None}
    if given:
        values["limits"] = dict(values.get("limits", {})) | given
    found: RunSettings = parse(RunSettings, values, str(args.settings or "options"))
    if args.seed is not None and is_file(found.workload) and found.load.rate is None:
        raise UserError("--seed changes nothing in a file's requests, only the arrivals of --rate; leave it out")
    return found


def _steps(text: str) -> list[dict[str, Any]]:
    try:
        pairs = [part.split("x") for part in text.split(",")]
        return [{"users": int(users), "seconds": float(seconds)} for users, seconds in pairs]
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not valid: give users and seconds as 1x60,40x120") from None


def _option(name: str) -> str:
    """The option that sets ``name`` of the parsed ones."""
    named = {field: option for option, field, _, _ in _OPTIONS} | {
        f"limit_{field}": option for option, field, _ in _LIMITS
    }
    return named.get(name, f"--{name}")


def _address(text: str, option: str) -> tuple[str, int]:
    host, _, port = text.rpartition(":")
    if not host or not port.isdigit() or not 1 <= int(port) <= 65535:
        raise UserError(f"{option} {text!r} is not valid; give HOST:PORT")
    return host, int(port)


def _write(folder: Path, told: dict[str, Any], samples: list[Any]) -> None:
    from loadtest.sample import write_samples

    try:
        (folder / "run.json").write_text(json.dumps(told, ensure_ascii=False) + "\n", encoding="utf-8")
        write_samples(folder / "samples.jsonl", samples)
    except OSError as error:
        print(f"warning: {folder} cannot be written ({error.strerror})", file=sys.stderr)
