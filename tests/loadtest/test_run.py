"""``python -m loadtest run`` against a server whose every token is known."""

from __future__ import annotations

import itertools
import json
import os
import signal
import subprocess
import sys
import urllib.request
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from loadtest.arrivals import poisson
from tests.deployments.local import wait_until
from tests.loadtest.commands import here, last_line, loadtest
from tests.loadtest.scripted import ROLE, Body, Reply, Scripted, answer, event, piece, scripted


def run(server: Scripted, *args: str, **environment: Any) -> dict[str, Any]:
    done = loadtest("run", "--url", server.url, "--json", "--poll", "0", *args, **environment)
    assert done.returncode in (0, 1), done.stderr
    return last_line(done) | {"code": done.returncode}


def test_figures_are_those_of_the_server() -> None:
    with scripted(lambda number, body: answer(0.2, pieces=3, gap_s=0.1, tokens=6)) as server:
        told = run(server, "--users", "3", "--conversations", "9", "--workload", "support", "--price", "3.6")
    found = told["figures"]
    assert told["code"] == 0 and found["requests"] == len(server.seen) == 9 and found["failed"] == 0
    assert server.most_open == 3
    assert found["ttft_ms"]["p50"] >= 200 and found["gap_ms"]["p50"] >= 95
    assert found["time_per_token_ms"]["p50"] >= 200 / 5 and found["request_s"]["p50"] >= 0.4
    assert found["completion_tokens"]["mean"] == 6 and found["prompt_tokens"]["mean"] == 10
    assert found["throughput"]["output_tokens_per_s"] == pytest.approx(9 * 6 / found["window_s"], rel=0.01)
    assert found["mat"] == 2.5 and found["acceptance"] == {"logits": {"drafted": 72, "accepted": 27, "share": 0.375}}
    assert found["cost_per_million_tokens"] is None  # nobody said how many replicas there are


def test_settings_reach_the_server_and_the_figures(tmp_path: Path) -> None:
    settings = tmp_path / "s.yaml"
    settings.write_text("{workload: chat, max_conversations: 2, drafts: racer, replicas: 2, load: {users: 5}}")
    options = ["--settings", str(settings), "--drafts", "off", "--budget", "7", "--max-tokens", "11", "--price", "3.6"]
    options += ["--users", "1", "--first", "3", "--seed", "4", "--output", str(tmp_path / "out")]
    with scripted(lambda number, body: answer(), models=("a", "b")) as server:
        told = run(server, *options, "--model", "b", LOADTEST_API_KEY="sk-1")
    bodies = [body for _, body in server.seen]
    assert {(b["drafts"], b["budget"], b["max_tokens"], b["model"]) for b in bodies} == {("off", 7, 11, "b")}
    assert all(b["stream"] and b["stream_options"] == {"include_usage": True} and b["return_stats"] for b in bodies)
    assert {header["Authorization"] for header in server.headers} == {"Bearer sk-1"} and server.most_open == 1
    second = bodies[1]["messages"]
    assert second[: len(bodies[0]["messages"])] == bodies[0]["messages"]
    assert second[-2] == {"role": "assistant", "content": "w0 w1 w2 "}  # the answer goes into the conversation
    found = told["figures"]
    assert found["cost_per_million_tokens"] == pytest.approx(
        3.6 * 2 / 3600 / found["throughput"]["output_tokens_per_s"] * 1e6, rel=1e-3
    )
    kept = [json.loads(line) for line in (tmp_path / "out" / "samples.jsonl").read_text().splitlines()]
    assert len(kept) == len(bodies) and kept[0]["conversation"] == "chat-3" and kept[1]["turn"] == 1
    assert json.loads((tmp_path / "out" / "run.json").read_text())["figures"] == found


def test_other_servers_are_asked_for_nothing_of_ours() -> None:
    with scripted(lambda number, body: answer()) as server:
        run(server, "--server", "openai", "--conversations", "1", "--workload", "prose")
    assert set(server.seen[0][1]) == {
        "model",
        "stream",
        "stream_options",
        "temperature",
        "seed",
        "max_tokens",
        "messages",
    }


def test_every_kind_of_failure_counts_and_the_run_goes_on() -> None:
    def script(number: int, body: Body) -> Reply:
        broken = {
            1: Reply([(0, ROLE), (0, piece("a")), (0, event({"error": {"message": "boom"}}))]),
            2: Reply([(0, ROLE), (0, piece("a"))], cut=True),
            3: Reply([(0, b'{"error": {"message": "the queue is full"}}')], status=503),
            4: Reply([(0, ROLE), (0, piece("a"))]),
            5: Reply([(0, ROLE), (30, piece("late"))]),
        }
        return broken.get(number, answer())

    with scripted(script) as server:
        told = run(server, "--users", "1", "--conversations", "8", "--workload", "support", "--timeout", "1")
        found = told["figures"]
        assert told["code"] == 1 and (found["requests"], found["failed"]) == (8, 5)
        assert found["errors"] == {
            "error in the stream: boom": 1,
            "the connection was closed in the middle of the answer": 1,
            "HTTP 503: the queue is full": 1,
            "the stream ended without [DONE]": 1,
            "no whole answer within 1 s": 1,
        }
        tolerant = ["--error-share", "0.9", "--conversations", "1"]
        assert run(server, *tolerant)["code"] == 0


@pytest.mark.parametrize(("limit", "code"), [("150", 1), ("5000", 0)])
def test_exit_code_says_whether_limits_held(limit: str, code: int) -> None:
    with scripted(lambda number, body: answer(0.2 if number % 2 else 0.0)) as server:
        told = run(
            server, "--max-ttft-ms", limit, "--good-share", "0.9", "--conversations", "6", "--workload", "summary"
        )
    good = told["figures"]["goodput"]
    assert told["code"] == code and good["held"] is (code == 0) and good["limits"]["ttft_ms"] == float(limit)
    assert good["good_share"] == (1.0 if code == 0 else 0.5)


def test_a_slow_server_does_not_slow_an_open_loop() -> None:
    with scripted(lambda number, body: answer(1.5)) as server:
        told = run(server, "--rate", "40", "--duration", "1", "--workload", "prose")
    times = [time for time, _ in server.seen]
    assert len(times) == told["figures"]["requests"] > 20 and told["figures"]["failed"] == 0
    assert server.most_open > 20  # a closed loop would have waited for answers


def test_a_log_is_replayed_with_its_times(tmp_path: Path) -> None:
    log = tmp_path / "log.jsonl"
    log.write_text("".join(json.dumps({"prompt": f"p{i}", "at_s": 100 + 2.0 * i}) + "\n" for i in range(4)))
    with scripted(lambda number, body: answer()) as server:
        run(server, "--workload", str(log), "--replay", "4", "--output", str(tmp_path / "out"))
    times = [time - server.seen[0][0] for time, _ in server.seen]
    assert [body["prompt"] for _, body in server.seen] == ["p0", "p1", "p2", "p3"]
    kept = [json.loads(line) for line in (tmp_path / "out" / "samples.jsonl").read_text().splitlines()]
    due = sorted(sample["start_s"] for sample in kept)
    assert due == [0.0, 0.5, 1.0, 1.5]  # half a second apart at four times the speed
    assert all(0.45 * number <= time < 2.0 * max(1, number) for number, time in enumerate(times))


def test_a_pause_lies_between_turns() -> None:
    with scripted(lambda number, body: answer()) as server:
        run(server, "--workload", "chat", "--conversations", "1", "--think", "0.5")
    times = [time for time, _ in server.seen]
    assert len(times) >= 2 and all(after - before >= 0.5 for before, after in itertools.pairwise(times))


def test_users_follow_steps_and_no_request_is_torn_apart() -> None:
    with scripted(lambda number, body: answer(0.3)) as server:
        told = run(server, "--steps", "1x1,6x2,1x2", "--workload", "support")
    found, begun = told["figures"], server.seen[0][0]
    assert server.most_open == 6 and found["failed"] == 0 and found["window_s"] == pytest.approx(5.0, abs=0.1)
    seconds = Counter(int(time - begun) for time, _ in server.seen)
    assert seconds[0] < seconds[2] and seconds[4] <= seconds[2] / 2  # they go as they came: at once
    assert found["requests"] == len(server.seen)


def test_workers_share_the_load_and_locusts_page_shows_it(free_port: int, other_port: int) -> None:
    command = [sys.executable, "-m", "loadtest", "run", "--worker", f"127.0.0.1:{free_port}"]
    with scripted(lambda number, body: answer(0.1)) as server:
        workers = [subprocess.Popen(command, stderr=subprocess.PIPE, text=True) for _ in range(2)]
        options = ["--url", server.url, "--json", "--users", "4", "--duration", "5", "--workload", "support"]
        options += ["--master", f"127.0.0.1:{free_port}", "--workers", "2", "--web", str(other_port)]
        master = subprocess.Popen(
            [sys.executable, "-m", "loadtest", "run", *options],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        try:
            shown: dict[str, Any] = {}

            def look() -> bool:
                try:
                    with urllib.request.urlopen(f"http://127.0.0.1:{other_port}/stats/requests", timeout=5) as page:
                        shown.update(json.load(page))
                except OSError:
                    return False
                return bool(shown.get("user_count") == 4 and len(shown["stats"]) > 1)

            wait_until(look, "the page shows requests", 40)
            out, said = master.communicate(timeout=60)
            assert master.returncode == 0, said
            assert [worker.wait(20) for worker in workers] == [0, 0]
        finally:
            for process in (master, *workers):
                if process.poll() is None:
                    process.kill()
            said_by_workers = [worker.communicate()[1] for worker in workers]
    found = json.loads(out.splitlines()[-1])["figures"]
    assert found["requests"] == len(server.seen) and found["failed"] == 0, said_by_workers
    assert server.most_open == 4 and {row["name"] for row in shown["stats"]} >= {"support"}
    asked = Counter(body["messages"][-1]["content"] for _, body in server.seen)
    assert set(asked.values()) == {1}  # no conversation is played by both


def distributed(server: Scripted, port: int, *options: str) -> dict[str, Any]:
    """What a master with two workers tells of a load."""
    command = [sys.executable, "-m", "loadtest", "run", "--worker", f"127.0.0.1:{port}"]
    workers = [subprocess.Popen(command, stderr=subprocess.DEVNULL) for _ in range(2)]
    try:
        master = ["run", "--url", server.url, "--json", "--master", f"127.0.0.1:{port}", "--workers", "2", *options]
        done = loadtest(*master)
        assert done.returncode == 0, done.stderr
        assert [worker.wait(20) for worker in workers] == [0, 0]
    finally:
        for worker in workers:
            if worker.poll() is None:
                worker.kill()
    found: dict[str, Any] = last_line(done)["figures"]
    return found


def test_workers_share_the_arrivals_of_an_open_loop(free_port: int) -> None:
    with scripted(lambda number, body: answer(0.5)) as server:
        found = distributed(server, free_port, "--rate", "20", "--duration", "3", "--workload", "prose")
    assert found["failed"] == 0 and found["requests"] == len(server.seen) == len(list(poisson(20.0, 1, 3.0)))
    asked = Counter(str(body["messages"]) for _, body in server.seen)
    assert set(asked.values()) == {1}  # no arrival is played by both


def test_workers_share_a_replay(free_port: int, tmp_path: Path) -> None:
    log = tmp_path / "log.jsonl"
    log.write_text("".join(json.dumps({"prompt": f"p{i}", "at_s": 0.5 * i}) + "\n" for i in range(8)))
    with scripted(lambda number, body: answer()) as server:
        options = ["--workload", str(log), "--replay", "2", "--output", str(tmp_path / "out")]
        found = distributed(server, free_port, *options)
    assert found["failed"] == 0 and sorted(body["prompt"] for _, body in server.seen) == [f"p{i}" for i in range(8)]
    kept = [json.loads(line) for line in (tmp_path / "out" / "samples.jsonl").read_text().splitlines()]
    assert sorted(sample["start_s"] for sample in kept) == [0.25 * i for i in range(8)]


def test_ctrl_c_keeps_what_was_measured(tmp_path: Path) -> None:
    with scripted(lambda number, body: answer(0.1)) as server:
        command = [sys.executable, "-m", "loadtest", "run", "--url", server.url, "--json", "--output", str(tmp_path)]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=os.environ)
        wait_until(lambda: len(server.seen) > 3, "requests come", 30)
        process.send_signal(signal.SIGINT)
        out, said = process.communicate(timeout=30)
    told = json.loads(out.splitlines()[-1])
    assert process.returncode == 130 and told["interrupted"] and "Traceback" not in said
    assert told["figures"]["requests"] >= 3 and (tmp_path / "run.json").exists()


def test_mistakes_are_one_sentence_and_exit_2(tmp_path: Path) -> None:
    wrong = tmp_path / "wrong.yaml"
    wrong.write_text("{usres: 3}")
    log = tmp_path / "log.jsonl"
    log.write_text('{"prompt": "p", "at_s": 1}\n')
    cases: list[tuple[list[str], str]] = [
        (["run", "--users", "0"], "users"),
        (["run", "--users", "1", "--rate", "2"], "not allowed with"),
        (["run", "--steps", "1-60"], "1x60,40x120"),
        (["run", "--settings", str(wrong)], "usres"),
        (["run", "--server", "openai", "--drafts", "off"], "server=racer"),
        (["run", "--output", str(wrong)], "another folder"),
        (["run", "--workers", "2"], "--master"),
        (["run", "--worker", "127.0.0.1:9", "--users", "0"], "leave --users out"),
        (["run", "--worker", "127.0.0.1:9", "--max-ttft-ms", "3"], "leave --max-ttft-ms out"),
        (["run", "--good-share", "0.9"], "good_share needs a limit"),
        (["run", "--workload", "support", "--think", "1"], "have one turn"),
        (["run", "--workload", str(log), "--think", "1"], "have one turn"),
        (["run", "--workload", str(log), "--replay", "1", "--first", "2"], "leave first out"),
        (["run", "--workload", str(log), "--seed", "2"], "--seed"),
        (["run", "--replay", "1"], "needs a JSONL file"),
        (["workload", str(log), "--seed", "2"], "--seed"),
        (["workload", "nothing"], "code-edit"),
        (["plan", "--measured", str(tmp_path), "--traffic", "1"], "holds no runs"),
        (["sweep", str(wrong)], "servers"),
        ([], "COMMAND"),
    ]
    found = [(args, word, here(*args)) for args, word in cases]
    unanswered = ["run", "--url", "http://127.0.0.1:9/v1"]
    found.append((unanswered, "does not answer", loadtest(*unanswered)))
    for args, word, done in found:
        assert done.returncode == 2 and word in done.stderr, (args, done.stderr)
        assert done.stderr.count("\n") == 1 and "Traceback" not in done.stderr
    with scripted(lambda number, body: answer(), models=("a",)) as server:
        done = loadtest("run", "--url", server.url, "--model", "b")
        assert done.returncode == 2 and "it has a" in done.stderr
        done = loadtest("run", "--url", server.url.removesuffix("/v1"))
        assert done.returncode == 2 and "/models" in done.stderr
