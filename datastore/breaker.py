"""Keeps a store that fails off the path of a step."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from enum import IntEnum

_log = logging.getLogger(__name__)


class BreakerState(IntEnum):
    """What a breaker lets through: all, one attempt to see whether it works again, nothing."""

    CLOSED = 0
    HALF_OPEN = 1
    OPEN = 2


class Breaker:
    """Opens after so many failures in a row; then lets one attempt through every so often, until one succeeds.

    Each failed attempt doubles the wait, up to ``max_wait_s``. ``clock`` gives seconds. The first time that it opens is
    a warning in the log, which calls what fails ``name``.
    """

    def __init__(
        self,
        failures: int = 5,
        wait_s: float = 1.0,
        max_wait_s: float = 15.0,
        clock: Callable[[], float] = time.monotonic,
        name: str = "attempts",
    ) -> None:
        self._name = name
        self._threshold = failures
        self._first_wait_s = wait_s
        self._max_wait_s = max_wait_s
        self._clock = clock
        self._lock = threading.Lock()
        self._failures = 0
        self._wait_s = wait_s
        self._opened_at: float | None = None
        self._trying = False
        self.opened = 0
        """Times that it opened from closed."""

    @property
    def state(self) -> BreakerState:
        """What the next attempt meets."""
        with self._lock:
            return self._state()

    def _state(self) -> BreakerState:
        if self._opened_at is None:
            return BreakerState.CLOSED
        due = self._trying or self._clock() - self._opened_at >= self._wait_s
        return BreakerState.HALF_OPEN if due else BreakerState.OPEN

    def allow(self) -> bool:
        """Whether to attempt; who is told yes says afterwards how it went."""
        with self._lock:
            state = self._state()
            if state is BreakerState.HALF_OPEN and not self._trying:
                self._trying = True
                return True
            return state is BreakerState.CLOSED

    def succeeded(self) -> None:
        """The attempt worked: all is let through again."""
        with self._lock:
            self._failures, self._opened_at, self._trying = 0, None, False
            self._wait_s = self._first_wait_s

    def failed(self) -> None:
        """The attempt failed, or was too late to be of use."""
        with self._lock:
            self._failures += 1
            if self._opened_at is not None:
                if self._trying:
                    self._wait_s = min(2 * self._wait_s, self._max_wait_s)
                    self._opened_at, self._trying = self._clock(), False
            elif self._failures >= self._threshold:
                self._opened_at = self._clock()
                self.opened += 1
                level = logging.WARNING if self.opened == 1 else logging.DEBUG
                _log.log(level, "%s fail or come too late; going on without them until they do not", self._name)
