"""Which requests, tokens and readings belong to the window of a run."""

from __future__ import annotations

from loadtest.observe import Reading, read, store_results
from loadtest.sample import Sample
from loadtest.settings import RunSettings
from loadtest.summary import summarise

SETTINGS = RunSettings.model_validate({"url": "http://127.0.0.1/v1", "load": {"users": 1}})


def test_throughput_counts_what_ended_in_the_window_whenever_it_began() -> None:
    samples = [
        Sample("before", 0, 5.0, end_s=4.0),
        Sample("into", 0, 8.0, end_s=4.0),
        Sample("inside", 0, 12.0, end_s=4.0),
        Sample("failed", 0, 12.0, end_s=4.0, error="HTTP 503"),
        Sample("out of", 0, 18.0, end_s=4.0),
    ]
    found = summarise(SETTINGS, samples, 10.0, 20.0)
    assert found["throughput"]["requests_per_s"] == 0.2  # into, inside
    assert (found["requests"], found["failed"]) == (3, 1)  # those that were due in it


def test_mat_of_counters_leaves_out_what_was_before_and_after_the_window() -> None:
    told = ((0.0, 0, 0), (9.0, 1000, 0), (12.0, 1060, 40), (21.0, 1200, 150), (60.0, 9000, 150))
    readings = [Reading(at_s, generated=generated, accepted=accepted) for at_s, generated, accepted in told]
    assert summarise(SETTINGS, [], 10.0, 20.0, readings)["mat"] == 4.0  # 200 tokens in 50 steps, from 9 s to 21 s
    assert summarise(SETTINGS, [], 0.0, 60.0, readings)["mat"] == round(9000 / 8850, 4)
    assert summarise(SETTINGS, [], 10.0, 20.0, readings[2:4])["mat"] == round(140 / 30, 4)  # none before: the nearest


def test_contexts_of_the_store_are_counted_by_result() -> None:
    def page(hit: int, miss: int, late: int, refused: int) -> str:
        results = {"hit": hit, "miss": miss, "late": late, "refused": refused}
        kind = "# TYPE ray_racer_store_contexts_total counter\n"
        name = "ray_racer_store_contexts_total"
        return kind + "".join(f'{name}{{model="m",result="{result}"}} {n}\n' for result, n in results.items())

    readings = [read(page(1, 2, 3, 4), 0.0), read(page(5, 5, 5, 5), 5.0), read(page(11, 22, 33, 44), 10.0)]
    found = summarise(SETTINGS, [], 0.0, 10.0, readings)["store"]
    assert found == store_results(readings) == {"hits": 10, "misses": 20, "unanswered": 70}
    assert store_results([read("", 0.0), read("", 1.0)]) is None


def test_the_window_is_told_in_parts() -> None:
    early = Sample("early", 0, 10.5, first_s=0.5, end_s=2.0, chunks=[(0.5, 1), (1.9, 3)], completion_tokens=4)
    late = Sample("late", 0, 33.0, first_s=2.0, end_s=4.0, chunks=[(2.0, 4)], completion_tokens=2)
    failed = Sample("failed", 0, 33.5, end_s=1.0, error="HTTP 503")
    parts = summarise(SETTINGS, [early, late, failed], 10.0, 34.0)["over_time"]
    assert [part["at_s"] for part in parts] == [10.5 + second for second in range(24)]
    assert [part["output_tokens_per_s"] for part in parts] == [0.0, 1.0, 3.0, *[0.0] * 21]  # tokens count as they come
    assert (parts[0]["requests"], parts[0]["failed"], parts[0]["ttft_ms"]["p50"]) == (1, 0, 500.0)
    assert (parts[23]["requests"], parts[23]["failed"], parts[23]["ttft_ms"]["p50"]) == (2, 1, 2000.0)
    assert parts[5]["ttft_ms"] is None
