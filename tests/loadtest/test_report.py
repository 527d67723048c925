"""From records to statements: what a report says is what the figures say."""

from __future__ import annotations

import json
import re
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest

from loadtest.curves import Measured, saturation, throughput_within
from loadtest.report.charts import Point, Series, line_chart
from loadtest.report.page import write_report
from loadtest.report.words import equal_latency, saving, sentences
from loadtest.runs import read_sweeps
from loadtest.statistics import estimate, ratio
from tests.loadtest.commands import here
from tests.loadtest.records import Record, record

NOISE = (0.99, 1.0, 1.01)


def runs(gain: float, *, workload: str = "support", variant: str = "racer") -> list[Record]:
    """Plain saturates at 100 tokens/s from 8 users; the variant gives ``gain`` times that at every load."""
    rates = {1: 25.0, 2: 50.0, 4: 80.0, 8: 98.0, 16: 100.0}
    return [
        record(name, users, rate * factor * noise, repeat=repeat, workload=workload, mat=mat)
        for users, rate in rates.items()
        for repeat, noise in enumerate(NOISE)
        for name, factor, mat in (("plain", 1.0, 1.0), (variant, gain, 2.0))
    ]


def test_intervals_are_students() -> None:
    found = estimate([9.0, 10.0, 11.0])
    assert found is not None and found.mean == 10
    assert found.high == pytest.approx(10 + 4.302653 / 3**0.5, rel=1e-5)  # t(0.975, 2) = 4.302653
    alone = estimate([3.0])
    assert alone is not None and alone.low is None and estimate([]) is None
    paired = ratio([(20.0, 10.0), (40.0, 20.0), (2.0, 1.0)])
    assert paired is not None and paired.mean == pytest.approx(2.0) and paired.low == pytest.approx(2.0)


def test_gains_are_taken_repeat_by_repeat() -> None:
    measured = Measured(runs(2.0))
    cells = measured.curve("support", "racer")
    assert [cell.level for cell in cells] == [1, 2, 4, 8, 16]
    gain = measured.speedup(cells[0])
    assert gain is not None and gain.mean == pytest.approx(2.0) and gain.high == pytest.approx(2.0)


def test_saturation_is_the_first_load_that_gives_nearly_all() -> None:
    measured = Measured(runs(2.0))
    full = saturation(measured.curve("support", "plain"))
    assert full is not None and full.level == 8


def test_throughput_within_a_latency_is_interpolated() -> None:
    points = [(10.0, 100.0), (20.0, 300.0), (40.0, 200.0)]
    assert throughput_within(points, 15.0) == pytest.approx(200.0)
    assert throughput_within(points, 100.0) == 300.0 and throughput_within(points, 5.0) is None


def test_equal_latency_saves_half_where_everything_is_twice_as_fast() -> None:
    gain = equal_latency(Measured(runs(2.0)), "support", "racer")
    assert gain is not None and gain.mean == pytest.approx(200.0 / 98.0, rel=0.01)  # plain is held to its 8 users
    saved = saving(gain)
    assert saved.mean == pytest.approx(0.51, abs=0.01)


def test_words_state_gains_losses_and_what_is_not_known() -> None:
    told = "\n".join(sentences(Measured(runs(2.0))))
    assert "racer gave 2.00 (2.00 to 2.00) times the tokens per second of plain at 1 user" in told
    assert "a token cost 51% (51% to 51%) less" in told and "At no measured load" in told
    told = "\n".join(sentences(Measured(runs(0.9, workload="prose"))))
    assert "It did not pay" in told and "prose at 16 users with racer: 0.90" in told and "a token cost more" in told
    assert "waited longer" in told and "prose at 16 users with racer: 1.11 (1.11 to 1.11) times its latency" in told
    late = [one | {"figures": one["figures"] | {"latency_per_token_ms": {"p90": 900.0}}} for one in runs(2.0)]
    late = [new if new["variant"] == "racer" else old for new, old in zip(late, runs(2.0), strict=True)]
    told_late = "\n".join(sentences(Measured(late)))
    assert "waited longer" in told_late and "did not pay" not in told_late and "At no measured load" not in told_late
    once = [one for one in runs(2.0) if one["repeat"] == 0]
    assert "made once" in "\n".join(sentences(Measured(once)))
    stores = [one | {"figures": one["figures"] | {"store": {"hits": 5, "misses": 5, "unanswered": 10}}} for one in once]
    assert "racer: the store did not answer 50% of what it was asked" in "\n".join(sentences(Measured(stores)))
    assert "the store did not answer" not in told
    broken = [*runs(2.0), {"id": "x", "baseline": "plain", "error": "no server"}]
    assert "1 runs could not be made: no server" in "\n".join(sentences(Measured(broken)))


def test_a_report_needs_no_other_file(tmp_path: Path) -> None:
    steps = {"steps": [{"users": 1, "seconds": 10}, {"users": 40, "seconds": 20}]}
    readings = [{"at_s": time, "replicas": count, "memory_bytes": 2**30} for time, count in ((0, 1), (15, 4), (30, 2))]
    scaling = record("scaling", 1, 100.0, load=steps, readings=readings)
    rates = [record(name, 1, 30.0 * rate, load={"rate": rate}) for name in ("plain", "racer") for rate in (0.2, 0.5)]
    runs_of_all = [*runs(2.0), *runs(1.1, workload="code-edit"), *rates, scaling]
    page = write_report(runs_of_all, tmp_path, "A & B").read_text()
    assert "A &amp; B" in page and "<script" not in page
    assert not re.findall(r'(?:src|href)="|url\(|@import', page)
    assert "prefers-color-scheme:dark" in page and "@media print" in page
    charts = {path.name for path in tmp_path.glob("*.svg")}
    assert charts >= {
        "support-throughput-latency.svg", "support-speedup.svg", "support-cost.svg", "support-cost-equal-latency.svg",
        "support-open-loop.svg", "mat.svg", "sources.svg",
        f"{scaling['id']}-replicas.svg", f"{scaling['id']}-memory.svg",
        f"{scaling['id']}-latency.svg", f"{scaling['id']}-throughput.svg",
    }  # fmt: skip
    for path in tmp_path.glob("*.svg"):
        ElementTree.parse(path)
    assert "1 to 4" in page  # replicas of the steps


def test_points_lie_where_their_values_are() -> None:
    series = Series("s", [Point(0, 0.0), Point(5, 50.0), Point(10, 100.0)])
    root = ElementTree.fromstring(line_chart("t", "x", "y", [series]))
    marks = [(float(c.get("cx", 0)), float(c.get("cy", 0))) for c in root.iter("{http://www.w3.org/2000/svg}circle")]
    assert marks[1] == pytest.approx(((marks[0][0] + marks[2][0]) / 2, (marks[0][1] + marks[2][1]) / 2), abs=0.2)
    assert marks[0][1] > marks[2][1] and line_chart("t", "x", "y", [Series("s")]) == ""


def test_several_folders_are_put_together(tmp_path: Path) -> None:
    for name, gain in (("a", 2.0), ("b", 3.0)):
        (tmp_path / name).mkdir()
        lines = [json.dumps(one) + "\n" for one in runs(gain, workload=name)]
        (tmp_path / name / "runs.jsonl").write_text("".join(lines))
    done = here("report", str(tmp_path / "a"), str(tmp_path / "b"), "--output", str(tmp_path / "c"), "--title", "both")
    page = (tmp_path / "c" / "report.html").read_text()
    assert done.returncode == 0 and "a: racer gave 2.00" in page and "b: racer gave 3.00" in page and "both" in page
    (tmp_path / "d").mkdir()
    (tmp_path / "d" / "runs.jsonl").write_text(lines[0])  # a run of folder b
    done = here("report", *(str(tmp_path / name) for name in "abd"), "--output", str(tmp_path / "c"))
    assert done.returncode == 2 and f"{tmp_path / 'b'} and {tmp_path / 'd'} both hold the run b_1 user_" in done.stderr


def test_the_baseline_is_the_first_folders(tmp_path: Path) -> None:
    for folder, variant in (("ours", "racer"), ("peer", "other")):
        (tmp_path / folder).mkdir()
        made = [one | {"baseline": one["variant"]} for one in runs(2.0, variant=variant) if one["variant"] != "plain"]
        made += [one for one in runs(2.0) if one["variant"] == "plain" and folder == "ours"]
        (tmp_path / folder / "runs.jsonl").write_text("".join(json.dumps(one) + "\n" for one in reversed(made)))
    measured = Measured(read_sweeps([tmp_path / "ours", tmp_path / "peer"]))
    assert measured.baseline == "plain" and set(measured.variants) == {"plain", "racer", "other"}
    gain = measured.speedup(measured.curve("support", "other")[0])
    assert gain is not None and gain.mean == pytest.approx(2.0)
