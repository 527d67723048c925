"""What an engine reports while it loads: from its replica, by way of Serve's log, to the terminal of ``serve``."""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

from deployments.logs import LOGGER
from racer.commands.opening import reports_to

_POLL_S = 0.5
_FIELD = "loading"
"""Field of such a record in the log: the model's name."""


class _Forward(logging.Handler):
    def __init__(self, model: str) -> None:
        super().__init__(logging.INFO)
        self._model = model

    def emit(self, record: logging.LogRecord) -> None:
        logging.getLogger(LOGGER).log(record.levelno, "%s", record.getMessage(), extra={_FIELD: self._model})


def reporting(model: str) -> AbstractContextManager[None]:
    """Inside the block, what the engine reports goes to Serve's log."""
    return reports_to(_Forward(model))


class Reports:
    """Reads what is new in the logs of the replicas of this machine; elsewhere there is nothing to read."""

    def __init__(self, folder: Path) -> None:
        """``folder``: Serve's logs; what they hold already is of others."""
        self._folder = folder
        self._read = {path: path.stat().st_size for path in self._logs()}

    def hand_on(self, logger: logging.Logger) -> None:
        """Log what has been reported since the last call."""
        for path in self._logs():
            with path.open("rb") as file:
                file.seek(self._read.get(path, 0))
                lines = file.read().splitlines(keepends=True)
            for line in lines:
                if not line.endswith(b"\n"):  # still being written
                    break
                self._read[path] = self._read.get(path, 0) + len(line)
                record = json.loads(line) if _FIELD.encode() in line else {}
                if _FIELD in record:
                    level = logging.getLevelNamesMapping()[record["levelname"]]
                    logger.log(level, "%s: %s", record[_FIELD], record["message"])

    @contextmanager
    def shown(self, logger: logging.Logger) -> Iterator[None]:
        """Hand on as it comes, inside the block: who waits for an answer meanwhile need not look."""
        ended = threading.Event()

        def show() -> None:
            while not ended.wait(_POLL_S):
                self.hand_on(logger)

        thread = threading.Thread(target=show, name="reports", daemon=True)
        thread.start()
        try:
            yield
        finally:
            ended.set()
            thread.join()

    def _logs(self) -> list[Path]:
        return sorted(self._folder.glob("replica_*.log"))
