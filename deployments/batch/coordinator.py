"""What the workers of a run and its driver tell each other, in an actor beside the driver."""

from __future__ import annotations

import time
from dataclasses import dataclass

_SILENT_S = 10.0


@dataclass
class _Worker:
    first_s: float
    last_s: float
    begun: int = 0
    given: int = 0
    stopped: bool = False


class Coordinator:
    """Workers call :meth:`beat` every second; the driver calls the rest."""

    def __init__(self) -> None:
        self._workers: dict[str, _Worker] = {}
        self._stopping = False

    def beat(self, worker: str, stopped: bool, begun: int, given: int) -> bool:
        """A worker lives, has begun so many records and given so many away; True: begin no more."""
        now = time.monotonic()
        known = self._workers.setdefault(worker, _Worker(now, now))
        known.last_s, known.begun, known.given, known.stopped = now, begun, given, stopped
        return self._stopping

    def stop(self) -> None:
        """Let the workers finish what is under way, and begin nothing more."""
        self._stopping = True

    def at_rest(self) -> dict[str, int] | None:
        """Records that each living worker has given away; None while one of them has something under way."""
        now = time.monotonic()
        living = {name: worker for name, worker in self._workers.items() if now - worker.last_s < _SILENT_S}
        if all(worker.stopped and worker.begun == worker.given for worker in living.values()):
            return {name: worker.given for name, worker in living.items()}
        return None

    def replica_s(self) -> float:
        """Seconds that workers lived, all together."""
        return sum(worker.last_s - worker.first_s for worker in self._workers.values())
