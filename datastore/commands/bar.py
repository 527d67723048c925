"""How far an ingest is, on stderr: a bar on a terminal, else a line every few seconds."""

from __future__ import annotations

import sys
import time
from datetime import timedelta
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

from datastore.ingest import Progress as IngestProgress

LINE_S = 5.0
"""Time between two lines where stderr is no terminal."""


class Bar:
    """Shows the share of bytes read, tokens learned, their rate, and the time left."""

    def __init__(self) -> None:
        self._terminal = sys.stderr.isatty()
        self._progress = Progress(
            BarColumn(),
            TaskProgressColumn(),
            TextColumn("{task.fields[figures]}"),
            TimeRemainingColumn(),
            console=Console(stderr=True),
            transient=True,
            disable=not self._terminal,
        )
        self._task = self._progress.add_task("ingest", total=None, figures="")
        self._started_s = self._told_s = time.monotonic()
        self._first: tuple[float, int] | None = None

    def __enter__(self) -> Bar:
        self._progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._progress.stop()

    def show(self, now: IngestProgress) -> None:
        """Show the progress as it is ``now``."""
        elapsed_s = time.monotonic() - self._started_s
        self._first = self._first or (elapsed_s, now.bytes_done)
        figures = f"{now.tokens:,} tokens, {now.tokens / max(elapsed_s, 1e-9):,.0f} tokens/s"
        if self._terminal:
            self._progress.update(self._task, total=now.bytes_total, completed=now.bytes_done, figures=figures)
        elif time.monotonic() - self._told_s >= LINE_S:
            self._told_s = time.monotonic()
            share = now.bytes_done / max(now.bytes_total, 1)
            print(f"{share:.0%}: {figures}{self._left(now, elapsed_s)}", file=sys.stderr, flush=True)

    def _left(self, now: IngestProgress, elapsed_s: float) -> str:
        """Time left, by the bytes read since the first report: what an earlier run had read took this one no time."""
        first_s, first_bytes = self._first or (elapsed_s, now.bytes_done)
        if now.bytes_done <= first_bytes:
            return ""
        left_s = (now.bytes_total - now.bytes_done) * (elapsed_s - first_s) / (now.bytes_done - first_bytes)
        return f", {timedelta(seconds=round(left_s))} left"
