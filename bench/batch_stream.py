"""How fast lines go through a batch where answers cost nothing, and whether memory stays level.

    python bench/batch_stream.py [--lines 1000000] [--workers 2] [--lines-per-task 4000]

Each line is parsed, checked as the endpoint checks it, answered by a function, and written as a record; ``lines_per_s``
counts from the first line of the plan to the last of the merged output. ``rss_mib``: the largest resident memory of
the driver and of a worker while each tenth of the records came in. The last line of stdout is one JSON object.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import threading
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import orjson

from deployments.batch.answers import Reply, Result, answer
from deployments.batch.locations import Location
from deployments.batch.outputs import Outputs
from deployments.batch.plan import make_plan
from deployments.batch.requests import Item, Reading
from deployments.calls import Call

TENTHS = 10


class FreeAnswerer:
    """Answers at once."""

    in_flight = 64

    def __init__(self, spec: Any) -> None:
        self._usage = {"prompt_tokens": 9, "completion_tokens": 5, "total_tokens": 14}

    def healthy(self) -> bool:
        """Always."""
        return True

    async def answer(self, item: Item) -> Result:
        """The record that says the prompt again."""
        return await answer(item, ("demo",), self._respond)

    async def _respond(self, call: Call) -> Reply:
        choice = {"index": 0, "text": call.body["prompt"], "logprobs": None, "finish_reason": "stop"}
        return Reply(orjson.dumps({"id": call.request_id, "choices": [choice], "usage": self._usage}), self._usage)


class Memory:
    """Samples resident memory, MiB, of this process and of the workers."""

    def __init__(self, journal: Any) -> None:
        self.driver, self.worker = [0.0] * TENTHS, [0.0] * TENTHS
        self._journal, self._ended = journal, threading.Event()
        threading.Thread(target=self._run, daemon=True).start()

    def _run(self) -> None:
        while not self._ended.wait(0.5):
            tenth = min(TENTHS - 1, TENTHS * self._journal.totals.requests // len(self._journal.done))
            self.driver[tenth] = max(self.driver[tenth], _resident_mib("self"))
            workers = [pid for pid in os.listdir("/proc") if pid.isdigit() and "MapWorker" in _name(pid)]
            self.worker[tenth] = max([self.worker[tenth], *map(_resident_mib, workers)])

    def end(self) -> None:
        """Sample no more."""
        self._ended.set()


def _name(pid: str) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_text()
    except OSError:
        return ""


def _resident_mib(pid: str) -> float:
    """Without what is shared: the object store's pages count in every process that has read them."""
    try:
        values = [int(value) for value in Path(f"/proc/{pid}/statm").read_text().split()]
    except OSError:
        return 0.0
    return round((values[1] - values[2]) * os.sysconf("SC_PAGE_SIZE") / 2**20, 1)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lines", type=int, default=1_000_000)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--lines-per-task", type=int, default=4000)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        source = Path(folder) / "in.jsonl"
        with source.open("w") as file:
            for i in range(args.lines):
                body = {"model": "demo", "prompt": f"prompt {i} " + "words " * 20, "max_tokens": 16}
                line = {"custom_id": f"r{i}", "method": "POST", "url": "/v1/completions", "body": body}
                file.write(json.dumps(line) + "\n")

        from deployments.batch.run import Pool, Run
        from deployments.batch.worker import WorkerSettings
        from deployments.commands.serve import RAY_ENVIRONMENT, start_ray

        os.environ.update(RAY_ENVIRONMENT)
        start_ray(None, stack, object_store_memory=512 << 20)
        started = time.monotonic()
        plan = make_plan([Location.of(str(source))], Reading(), args.lines_per_task, Path(folder))
        planned_s = time.monotonic() - started
        outputs = Outputs(f"{folder}/out.jsonl")
        journal = stack.enter_context(outputs.opened({}, plan.requests, resume=False, overwrite=False))
        assert journal is not None
        memory = Memory(journal)
        pool = Pool(args.workers, args.workers, num_cpus=0.5, in_flight=FreeAnswerer.in_flight)
        Run(plan, journal, pool, WorkerSettings(plan.files, FreeAnswerer, None), args.lines_per_task).execute()
        answered_s = time.monotonic() - started - planned_s
        memory.end()
        outputs.finish(journal, {}, ordered=True)
        whole_s = time.monotonic() - started
        with (Path(folder) / "out.jsonl").open("rb") as file:
            assert sum(1 for _ in file) == args.lines
        figures = {
            "lines": args.lines,
            "plan_s": round(planned_s, 2),
            "answer_s": round(answered_s, 2),
            "merge_s": round(whole_s - planned_s - answered_s, 2),
            "lines_per_s": round(args.lines / whole_s),
            "rss_mib": {"driver": memory.driver, "worker": memory.worker},
        }
        print(json.dumps(figures))


if __name__ == "__main__":
    main()
