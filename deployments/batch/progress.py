"""How far a run is: a bar on a terminal, elsewhere a JSON line now and then."""

from __future__ import annotations

import json
import sys
import threading
import time
from collections import deque
from typing import Any, TextIO

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

from deployments.batch.journal import Journal

_WINDOW_S = 60.0
_BAR_S = 0.5


class Reporter:
    """Reports on a journal until the block ends, in a thread of its own. ``every_s``: time between JSON lines."""

    def __init__(self, journal: Journal, every_s: float, stream: TextIO | None = None) -> None:
        self._journal, self._stream = journal, stream or sys.stderr
        self._terminal = self._stream.isatty()
        self._every_s = _BAR_S if self._terminal else every_s
        self._started_s = time.monotonic()
        self._seen: deque[tuple[float, int, int]] = deque()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="batch-progress", daemon=True)

    def __enter__(self) -> Reporter:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._ended.set()
        self._thread.join()

    def state(self) -> dict[str, Any]:
        """Figures of this moment; rates are those of the last minute, times are seconds."""
        totals, now = self._journal.totals, time.monotonic()
        self._seen.append((now, totals.requests, totals.tally.completion_tokens))
        while len(self._seen) > 2 and now - self._seen[1][0] >= _WINDOW_S:
            self._seen.popleft()
        since_s, requests, tokens = self._seen[0]
        span_s = now - since_s
        rate = (totals.requests - requests) / span_s if span_s else 0.0
        left = len(self._journal.done) - totals.requests
        return {
            "done": totals.requests,
            "requests": len(self._journal.done),
            "errors": totals.errors,
            "requests_per_s": round(rate, 3),
            "tokens_per_s": round((totals.tally.completion_tokens - tokens) / span_s, 2) if span_s else 0.0,
            "mat": None if totals.mat is None else round(totals.mat, 3),
            "elapsed_s": round(now - self._started_s, 1),
            "left_s": round(left / rate, 1) if rate else None,
        }

    def _run(self) -> None:
        self.state()
        if self._terminal:
            self._bar()
            return
        while not self._ended.wait(self._every_s):
            print(json.dumps(self.state()), file=self._stream, flush=True)

    def _bar(self) -> None:
        columns = (BarColumn(), MofNCompleteColumn(), TextColumn("requests {task.fields[figures]}"))
        with Progress(*columns, console=Console(file=self._stream), transient=True) as progress:
            task = progress.add_task("requests", total=len(self._journal.done), figures="")
            while True:
                ended = self._ended.wait(self._every_s)
                state = self.state()
                progress.update(task, completed=state["done"], figures=figures(state))
                if ended:
                    return


def figures(state: dict[str, Any]) -> str:
    """Rate, MAT, errors and time left, for a line of a terminal."""
    parts = [f"{state['tokens_per_s']:.1f} tok/s"]
    if state["mat"] is not None:
        parts.append(f"MAT {state['mat']:.2f}")
    if state["errors"]:
        parts.append(f"{state['errors']} errors")
    if state["left_s"] is not None:
        seconds = round(state["left_s"])
        parts.append(f"{seconds // 3600}:{seconds // 60 % 60:02d}:{seconds % 60:02d} left")
    return ", ".join(parts)
