"""``plan``: replicas and cost for a traffic, from measured runs."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np

from loadtest.commands.values import positive_number, share, whole_number
from loadtest.curves import Measured
from loadtest.errors import UserError
from loadtest.files import read_mapping
from loadtest.fleets import FleetResult, Scaling, SharedStore
from loadtest.plan import Json, ReplicaCurve, Slo, Traffic, curves, fixed_fleet
from loadtest.runs import RUNS, read_sweeps
from loadtest.settings import Section, parse
from loadtest.simulate import Fleet

SUMMARY = "replicas and cost for a traffic, from measured runs"
DESCRIPTION = (
    "Work out how many replicas a traffic needs and what they cost, for each variant that a sweep has measured, how "
    "wrong the curves are at loads held out from them, and, with --simulate, how a fleet with an autoscaler would do."
)


_MOST_REPLICAS = 1000
_START_S = 60.0
_WARM_REQUESTS = 500.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of the command."""
    parser.add_argument(
        "--measured", metavar="DIR", type=Path, nargs="+", required=True, help="folders of sweeps, put together"
    )
    parser.add_argument(
        "--traffic", required=True, metavar="R|FILE", help="requests a second for an hour, or a YAML file"
    )
    parser.add_argument(
        "--slo", default="", metavar="LIMITS", help="ttft_ms=500,time_per_token_ms=50 (90 in 100 keep it)"
    )
    parser.add_argument("--workload", help="which of the measured ones (default: the only one)")
    parser.add_argument("--price", type=positive_number, help="of a replica for an hour (default: the sweep's)")
    parser.add_argument("--headroom", type=share, default=0.2, help="part of each replica left free (default: 0.2)")
    parser.add_argument("--simulate", action="store_true", help="simulate the traffic on a fleet that scales")
    parser.add_argument("--max-replicas", type=whole_number, help="simulation: most replicas (default: 1000)")
    parser.add_argument("--start-s", type=positive_number, help="simulation: how long a replica loads (default: 60)")
    parser.add_argument(
        "--warm", metavar="VARIANT", help="simulation: what replicas become as their shared store fills"
    )
    parser.add_argument(
        "--warm-requests",
        type=positive_number,
        help="with --warm: requests until 63%% of the way is done (default: 500)",
    )
    parser.add_argument("--seed", type=int, default=1, help="of the simulation (default: 1)")
    parser.add_argument("--json", action="store_true", help="print the JSON line only")


def execute(args: argparse.Namespace) -> int:
    """Print the plan."""
    _refuse_useless(args)
    records = read_sweeps(args.measured)
    if not records:
        raise UserError(f"{args.measured[0] / RUNS} holds no runs; make some with: python -m loadtest sweep GRID.yaml")
    measured = Measured(records)
    workload = args.workload or _only(measured)
    known, slo, traffic = curves(measured, workload), _slo(args.slo), _traffic(args.traffic)
    prices = [r["figures"]["price_per_replica_hour"] for r in records if "figures" in r]
    price = args.price or next((found for found in prices if found), None)
    if args.warm is not None and args.warm not in known:
        raise UserError(f"--warm {args.warm!r} has no curve; measured are {', '.join(known)}")
    told: Json = {"workload": workload, "requests": round(traffic.requests), "hours": traffic.hours, "variants": {}}
    for variant, curve in known.items():
        row: Json = {"fleet": fixed_fleet(traffic, curve, slo, args.headroom, price)}
        row["held_out_errors"] = curve.held_out_errors()
        row["check_against_runs"] = check(measured, workload, variant, curve, args.seed)
        if args.simulate and row["fleet"] is not None:
            row["simulated"] = _simulated(args, curve, known, traffic, row["fleet"], price)
        told["variants"][variant] = row
    if not args.json:
        _print(told)
    print(json.dumps(told))
    return 0 if all(row["fleet"] is not None for row in told["variants"].values()) else 1


def _refuse_useless(args: argparse.Namespace) -> None:
    for option in ("max_replicas", "start_s", "warm", "warm_requests"):
        if getattr(args, option) is not None and not args.simulate:
            raise UserError(f"--{option.replace('_', '-')} is a setting of the simulation; give --simulate too")
    if args.warm_requests is not None and args.warm is None:
        raise UserError("--warm-requests says how fast --warm is reached; give --warm VARIANT too")


def check(measured: Measured, workload: str, variant: str, curve: ReplicaCurve, seed: int) -> list[Json]:
    """The simulation against measured open-loop runs: relative errors of what it says."""
    rows = []
    for cell in measured.curve(workload, variant, open_loop=True):
        window = cell.mean("window_s")
        count = cell.mean("replicas")
        replicas = max(1, round(count.mean)) if count is not None else 1
        seconds = max(600.0, 20 * (window.mean if window is not None else 60.0))
        rate = cell.mean("offered_per_s")
        if rate is None:
            continue
        fleet = Fleet(curve, Scaling(replicas, replicas), seed=seed)
        said = _figures(fleet.run(Traffic(((seconds, rate.mean),))))
        row: Json = {"load": cell.load}
        for name, path in (
            ("request_s_p50", ("request_s", "p50")),
            ("request_s_p90", ("request_s", "p90")),
            ("tokens_per_s", ("throughput", "output_tokens_per_s")),
        ):
            truth = cell.mean(*path)
            row[name] = round(said[name] / truth.mean - 1.0, 4) if truth is not None and truth.mean else None
        rows.append(row)
    return rows


def _figures(result: FleetResult) -> Json:
    times = [one.end_s for one in result.finished] or [0.0]
    return {
        "requests": len(result.finished),
        "ttft_s_p90": round(float(np.percentile([one.first_s for one in result.finished] or [0.0], 90)), 4),
        "request_s_p50": round(float(np.percentile(times, 50)), 4),
        "request_s_p90": round(float(np.percentile(times, 90)), 4),
        "tokens_per_s": round(sum(one.tokens for one in result.finished) / result.ended_s, 3)
        if result.ended_s
        else 0.0,
        "replica_hours": round(result.replica_hours, 4),
        "most_replicas": max(count for _, count in result.replicas),
    }


def _simulated(
    args: argparse.Namespace,
    curve: ReplicaCurve,
    known: dict[str, ReplicaCurve],
    traffic: Traffic,
    fleet: Json,
    price: float | None,
) -> Json:
    target = fleet["requests_per_s_per_replica"] * _seconds(curve, fleet["users_per_replica"]) * (1.0 - args.headroom)
    most = args.max_replicas or _MOST_REPLICAS
    first = min(most, fleet["replicas"][0])
    target = max(target, 0.5)
    slowdown = max(1.0, _seconds(curve, target) / _seconds(curve, 1.0))
    scaling = Scaling(
        1, most, target=target, start_s=args.start_s or _START_S, initial=first, slowdown=round(slowdown, 2)
    )
    store = None if args.warm is None else SharedStore(known[args.warm], args.warm_requests or _WARM_REQUESTS)
    found = _figures(Fleet(curve, scaling, seed=args.seed, store=store).run(traffic))
    cost = None if price is None else round(found["replica_hours"] * price, 4)
    return found | {"target_per_replica": round(target, 2), "slowdown": scaling.slowdown, "cost": cost}


def _seconds(curve: ReplicaCurve, users: float) -> float:
    """How long a request takes at so many users, those measured at least."""
    users = max(users, curve.levels[0].users)
    return users / curve.at(users, "requests_per_s")


def _only(measured: Measured) -> str:
    if len(measured.workloads) != 1:
        raise UserError(f"--workload is needed: measured are {', '.join(measured.workloads) or 'none'}")
    return measured.workloads[0]


def _slo(text: str) -> Slo:
    values: dict[str, float] = {}
    for part in filter(None, text.split(",")):
        name, _, value = part.partition("=")
        if name not in ("ttft_ms", "time_per_token_ms"):
            raise UserError(f"--slo {part!r} is not valid; give ttft_ms=500,time_per_token_ms=50")
        try:
            values[name] = float(value)
        except ValueError:
            raise UserError(f"--slo {part!r} is not valid: {value!r} is no number") from None
    return Slo(**values)


class _Part(Section):
    hours: float
    rate: float


class _TrafficFile(Section):
    traffic: tuple[_Part, ...]


def _traffic(text: str) -> Traffic:
    """A number, or a file: ``traffic: [{hours: 8, rate: 2.5}, {hours: 16, rate: 0.5}]``."""
    try:
        rate = float(text)
    except ValueError:
        found: Any = parse(_TrafficFile, read_mapping(Path(text)), text)
        parts = tuple((part.hours * 3600.0, part.rate) for part in found.traffic)
    else:
        parts = ((3600.0, rate),)
    if not parts or any(seconds <= 0 or rate < 0 for seconds, rate in parts):
        raise UserError(f"--traffic {text!r} is not valid: hours must be above 0, rates not below")
    return Traffic(parts)


def _print(told: Json) -> None:
    print(f"{told['workload']}: {told['requests']} requests in {told['hours']:g} h")
    for variant, row in told["variants"].items():
        fleet = row["fleet"]
        if fleet is None:
            print(f"{variant}: no measured load keeps the limits")
            continue
        cost = (
            ""
            if fleet["cost"] is None
            else f", cost {fleet['cost']:.4g} ({fleet['cost_per_million_tokens']:.4g} a million)"
        )
        print(
            f"{variant}: {fleet['requests_per_s_per_replica']:.3g} requests/s a replica "
            f"at {fleet['users_per_replica']:.3g} "
            f"at a time; {fleet['most_replicas']} replicas at most, {fleet['replica_hours']:.4g} replica-hours{cost}"
        )
        if (found := row.get("simulated")) is not None:
            print(
                f"  simulated with an autoscaler: {found['most_replicas']} replicas at most, "
                f"{found['replica_hours']:.4g} "
                f"replica-hours, first token p90 {found['ttft_s_p90']:.3g} s, answer p90 {found['request_s_p90']:.3g} s"
                f" (autoscaling: target_running {found['target_per_replica']:.3g}, slowdown {found['slowdown']:.3g})"
            )
        for error in row["held_out_errors"]:
            said = ", ".join(
                f"{name} {value:+.1%}" for name, value in error.items() if name != "users" and value is not None
            )
            print(f"  held out {error['users']:g} users: {said}")
        for error in row["check_against_runs"]:
            said = ", ".join(
                f"{name} {value:+.1%}" for name, value in error.items() if name != "load" and value is not None
            )
            print(f"  simulation against the run at {error['load']}: {said}")
