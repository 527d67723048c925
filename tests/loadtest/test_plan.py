"""The capacity model, and the simulation against what queueing theory knows."""

from __future__ import annotations

import json
import statistics
from pathlib import Path

import pytest

from deployments.autoscaling import EnginePolicy
from loadtest.fleets import Scaling, SharedStore
from loadtest.plan import Json, Level, ReplicaCurve, Slo, Traffic, fixed_fleet, replicas_for
from loadtest.simulate import Fleet
from tests.loadtest.commands import here, last_line
from tests.loadtest.records import record


def law(speed: float = 1.0, most: int = 64, shared_ms: float = 0.5) -> ReplicaCurve:
    """A replica whose token takes 10 ms, and half a millisecond more for each request; answers of 100 tokens."""
    levels = []
    for users in (1, 2, 4, 8, 16, 32, 64):
        if users <= most:
            per_token_ms = (10.0 + shared_ms * users) / speed
            rate = users * 1e3 / per_token_ms
            levels.append(Level(users, rate / 100, rate, per_token_ms, per_token_ms, 100.0, 100.0, 100.0))
    return ReplicaCurve(levels)


def test_between_levels_a_law_that_is_linear_in_time_is_met() -> None:
    curve = law()
    assert curve.at(24, "time_per_token_ms") == pytest.approx(22.0)
    assert curve.at(24, "tokens_per_s") == pytest.approx(24e3 / 22.0)
    assert curve.at(500, "tokens_per_s") == pytest.approx(64e3 / 42.0)
    for row in curve.held_out_errors():
        assert row["tokens_per_s"] == pytest.approx(0, abs=1e-3) and row["time_per_token_ms"] == pytest.approx(
            0, abs=1e-3
        )
    bent = ReplicaCurve([*law().levels[:3], law(0.5).levels[3], *law().levels[4:]])
    assert max(abs(row["tokens_per_s"]) for row in bent.held_out_errors()) > 0.3


def test_capacity_is_the_most_that_keeps_the_limits() -> None:
    found = law().capacity(Slo(time_per_token_ms=20.0))
    assert found is not None and found[1] == pytest.approx(20, rel=0.02) and found[0] == pytest.approx(10.0, rel=0.02)
    assert law().capacity(Slo(time_per_token_ms=5.0)) is None
    assert replicas_for(10.0, 2.0, 0.0) == 5 and replicas_for(10.0, 2.0, 0.2) == 7 and replicas_for(0.0, 2.0, 0.2) == 1
    traffic = Traffic(((3600.0, 30.0), (7200.0, 9.0)))
    fleet = fixed_fleet(traffic, law(), Slo(time_per_token_ms=20.0), 0.0, 2.0)
    assert fleet is not None and fleet["replicas"] == [4, 1] and fleet["replica_hours"] == 6.0 and fleet["cost"] == 12.0


def test_one_replica_is_processor_sharing() -> None:
    """Constant total rate: mean time in an M/G/1 queue that shares its processor is service / (1 - load)."""
    levels = [Level(n, 1.0, 100.0, n * 10.0, n * 10.0, 100.0, 100.0, 100.0) for n in (1, 1024)]
    fleet = Fleet(ReplicaCurve(levels), Scaling(), seed=3, tokens=lambda rng: rng.expovariate(1 / 100.0))
    result = fleet.run(Traffic(((40_000.0, 0.6),)))
    assert len(result.finished) == pytest.approx(24_000, rel=0.03)
    assert statistics.fmean(one.end_s for one in result.finished) == pytest.approx(1.0 / 0.4, rel=0.06)


def test_a_closed_curve_is_met_again() -> None:
    """With so many requests open as a replica was measured with, it gives what was measured."""
    fleet = Fleet(law(most=16), Scaling(), tokens=lambda rng: 100.0)
    result = fleet.run(Traffic(((60.0, 50.0),)))  # far more than it can serve: always 16 at a time
    rate = sum(one.tokens for one in result.finished) / result.ended_s
    assert rate == pytest.approx(16e3 / 18.0, rel=0.03) and len(result.finished) > 2500


def test_options_of_the_simulation_have_their_effect(tmp_path: Path) -> None:
    runs = [
        record(variant, users, users * 1e3 * speed / (10.0 + 0.5 * users), ttft_ms=50.0)
        for variant, speed in (("plain", 1.0), ("racer", 2.0))
        for users in (1, 4, 16, 32)
    ]
    (tmp_path / "runs.jsonl").write_text("".join(json.dumps(one) + "\n" for one in runs))
    traffic = tmp_path / "traffic.yaml"
    traffic.write_text("traffic: [{hours: 0.01, rate: 20}, {hours: 0.03, rate: 80}]")

    def simulated(*options: str) -> Json:
        command = ["plan", "--measured", str(tmp_path), "--traffic", str(traffic), "--slo", "time_per_token_ms=21.6"]
        found: Json = last_line(here(*command, "--json", "--simulate", *options))["variants"]["plain"]["simulated"]
        return found

    cold, warm = simulated(), simulated("--warm", "racer", "--warm-requests", "100")
    assert warm["request_s_p50"] < 0.7 * cold["request_s_p50"]
    warmed_late = simulated("--warm", "racer", "--warm-requests", "1e9")
    assert warmed_late["request_s_p50"] == pytest.approx(cold["request_s_p50"], rel=0.01)
    few = simulated("--max-replicas", "4")
    assert few["most_replicas"] == 4 < cold["most_replicas"] and few["request_s_p90"] > cold["request_s_p90"]
    assert simulated("--start-s", "5")["request_s_p90"] < cold["request_s_p90"]


def test_hundreds_of_replicas_scale_with_the_traffic_and_back() -> None:
    scaling = Scaling(1, 500, target=8.0, upscale_delay_s=2.0, downscale_delay_s=20.0, start_s=10.0)
    traffic = Traffic(((60.0, 1.0), (120.0, 1000.0), (300.0, 1.0)))
    result = Fleet(law(), scaling).run(traffic)
    counts = [count for _, count in result.replicas]
    assert counts[0] == 1 and 150 <= max(counts) <= 500 and counts[-1] <= 3
    assert len(result.finished) == pytest.approx(traffic.requests, rel=0.02)
    calm = [one.end_s for one in result.finished if 120 < one.arrived_s < 180]
    assert statistics.median(calm) < 3.0  # after the start, requests take what 8 to 20 at a time take


def test_under_even_traffic_the_number_of_replicas_settles() -> None:
    """A request takes 3.5 times as long among 16 as alone: told so, the autoscaler leaves the number where it is."""

    def late_changes(slowdown: float) -> int:
        scaling = Scaling(1, 100, target=16.0, start_s=30.0, initial=3, slowdown=slowdown)
        result = Fleet(law(shared_ms=2.0), scaling, seed=2).run(Traffic(((2700.0, 20.0),)))
        times = [time for time, _ in result.replicas if 1200 < time < 2700]
        return len(times)

    assert late_changes(5.0) <= 10 < 100 < late_changes(1.0)


def test_the_autoscaler_is_the_services_own() -> None:
    for slowdown in (1.0, 2.5):
        scaling = Scaling(1, 10_000, target=8.0, slowdown=slowdown)
        policy = EnginePolicy(8, 10**9, 1.0, slowdown=slowdown)
        for replicas in (1, 2, 7, 50):
            for requests in (1, 3, 8, 9, 100, 399, 1000):
                assert scaling.wanted(requests, replicas) == policy.wanted(replicas, requests, {})


def test_a_shared_store_makes_the_fleet_faster() -> None:
    cold = Fleet(law(), Scaling(4, 4), seed=5).run(Traffic(((600.0, 20.0),)))
    store = SharedStore(law(2.0), requests=500.0)
    warm = Fleet(law(), Scaling(4, 4), seed=5, store=store).run(Traffic(((600.0, 20.0),)))
    late = [statistics.fmean(o.end_s for o in r.finished if o.arrived_s > 300) for r in (cold, warm)]
    early = [statistics.fmean(o.end_s for o in r.finished if o.arrived_s < 5) for r in (cold, warm)]
    assert late[1] < 0.6 * late[0] and early[1] > 0.8 * early[0]


def test_the_command_plans_checks_and_says_when_limits_cannot_be_kept(tmp_path: Path) -> None:
    runs = []
    for variant, speed in (("plain", 1.0), ("racer", 2.0)):
        for users in (1, 4, 16, 32):
            rate = users * 1e3 * speed / (10.0 + 0.5 * users)
            runs.append(record(variant, users, rate, price=3.0, ttft_ms=50.0))
    (tmp_path / "runs.jsonl").write_text("".join(json.dumps(one) + "\n" for one in runs))
    (tmp_path / "open").mkdir()
    opened = record("plain", 5, 500.0, load={"rate": 5.0})
    (tmp_path / "open" / "runs.jsonl").write_text(json.dumps(opened) + "\n")
    base = ["plan", "--measured", str(tmp_path), str(tmp_path / "open"), "--headroom", "0"]
    slo = ["--slo", "time_per_token_ms=21.6,ttft_ms=100"]  # records' p90 is 1.2 times the mean: 18 ms, so 16 users
    short = tmp_path / "short.yaml"
    short.write_text("traffic: [{hours: 0.1, rate: 100}]")
    done = here(*base, "--traffic", str(short), *slo, "--simulate")
    told = last_line(done)["variants"]
    assert done.returncode == 0, done.stderr
    assert told["plain"]["fleet"]["most_replicas"] == 12  # 100 requests/s over 16 users' 8.89
    assert told["plain"]["fleet"]["cost"] == 3.6 and told["racer"]["fleet"]["replicas"][0] < 6
    assert [row["users"] for row in told["plain"]["held_out_errors"]] == [4, 16]
    assert abs(told["plain"]["held_out_errors"][0]["tokens_per_s"]) < 0.05
    assert told["plain"]["check_against_runs"][0]["load"] == "5/s"
    assert told["plain"]["simulated"]["requests"] > 30_000 and "held out 16 users" in done.stdout
    traffic = tmp_path / "traffic.yaml"
    traffic.write_text("traffic: [{hours: 1, rate: 100}, {hours: 3, rate: 10}]")
    told = last_line(here(*base, "--traffic", str(traffic), *slo, "--price", "1"))["variants"]
    assert told["plain"]["fleet"]["replicas"] == [12, 2] and told["plain"]["fleet"]["cost"] == 18.0
    assert here(*base, "--traffic", "1", "--slo", "ttft_ms=1").returncode == 1
    for args, word in (
        (["--traffic", "1", "--slo", "latency=3"], "latency=3"),
        (["--traffic", "1", "--workload", "chat"], "was not measured"),
        (["--traffic", "1", "--simulate", "--warm", "hot"], "no curve"),
        (["--traffic", "1", "--warm", "racer"], "--warm is a setting of the simulation"),
        (["--traffic", "1", "--start-s", "5"], "--start-s is a setting of the simulation"),
        (["--traffic", "1", "--max-replicas", "5"], "--max-replicas is a setting of the simulation"),
        (["--traffic", "1", "--simulate", "--warm-requests", "5"], "give --warm VARIANT too"),
        (["--traffic", "-1"], "--traffic"),
    ):
        done = here(*base, *args)
        assert done.returncode == 2 and word in done.stderr, done.stderr
