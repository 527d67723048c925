"""A progress bar on stderr, on a terminal only."""

from __future__ import annotations

import sys
import time
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from racer.types import StepOutput


class Bar:
    """How many of ``total`` are done, with tokens per second and MAT; silent where stderr is no terminal."""

    def __init__(self, total: int, unit: str, shown: bool = True) -> None:
        self._progress = Progress(
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn(unit + " {task.fields[figures]}"),
            TimeRemainingColumn(),
            console=Console(stderr=True),
            transient=True,
            disable=not (shown and sys.stderr.isatty()),
        )
        self._task = self._progress.add_task(unit, total=total, figures="")
        self._started_s = time.perf_counter()
        self._tokens = 0
        self._decided = 0
        self._steps = 0

    def __enter__(self) -> Bar:
        self._progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._progress.stop()

    def watch(self, outputs: list[StepOutput]) -> None:
        """Count what a step delivered."""
        for output in outputs:
            self._tokens += len(output.token_ids)
            if output.stats is not None and output.stats.steps:
                self._decided += output.stats.decided - 1
                self._steps += output.stats.steps
        rate = self._tokens / (time.perf_counter() - self._started_s)
        mat = f", MAT {self._decided / self._steps:.2f}" if self._steps else ""
        self._progress.update(self._task, figures=f"{rate:.1f} tok/s{mat}")

    def advance(self, count: int = 1) -> None:
        """So many more are done."""
        self._progress.advance(self._task, count)
