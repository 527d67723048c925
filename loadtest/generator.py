"""Makes the load of one process: its share of the conversations, begun when they are due."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator

import gevent
from gevent.pool import Group

from loadtest.arrivals import poisson, shared
from loadtest.material import workload_of
from loadtest.player import Player
from loadtest.settings import RunSettings
from loadtest.workloads import Conversation, FromFile

_DEFAULT_S = 60.0
_POLL_S = 0.05


class Generator:
    """Generator ``index`` out of ``of``.

    Its users call :meth:`work` again and again. :meth:`run` begins and ends the load.

    Raises:
        UserError: the workload does not exist, cannot be replayed, or a setting has no effect on it.
    """

    def __init__(self, settings: RunSettings, player: Player, index: int = 0, of: int = 1) -> None:
        self.settings, self.player, self._index, self._of = settings, player, index, of
        self._workload = workload_of(settings)
        self._log: list[Conversation] = []
        if settings.load.replay is not None and isinstance(self._workload, FromFile):
            self._log = self._workload.log()
        self.measured_s = self._measured_s()
        self.begin_s = settings.warmup_s
        self.end_s = self.begin_s + self.measured_s
        self._numbers = self._limited(itertools.count(index, of))
        self._playing = Group()
        self._begun = False
        self._arriving = False
        self._arrived_all = False

    def run(self, interval: Callable[[], None] = lambda: None) -> None:
        """Begin now; returns once the load has ended and all requests have, or have been given up.

        ``interval`` is called now and then.
        """
        self.player.begun += self.player.now()
        self._begun = True
        while self.player.now() < self.end_s and not self._over:
            gevent.sleep(_POLL_S)
            interval()
        self.end_s = min(self.end_s, self.player.now())
        give_up = self.player.now() + self.settings.drain_s
        while (self.player.open or self._arriving) and self.player.now() < give_up:
            gevent.sleep(_POLL_S)
            interval()
        self.player.abandon()
        self._playing.kill()

    def stop(self) -> None:
        """End the load now: nothing more is begun, and what is under way is given up."""
        self._begun = False
        self.end_s = min(self.end_s, self.player.now())
        self.player.abandon()

    def work(self, wanted: Callable[[], bool]) -> None:
        """What a user does once. ``wanted`` says whether that user is still wanted."""
        if not self._accepting:
            gevent.sleep(_POLL_S)
        elif self.settings.load.open_loop:
            self._arrive(wanted)
        else:
            number = next(self._numbers, None)
            if number is None:
                self._arrived_all = True
                gevent.sleep(_POLL_S)
                return
            conversation = self._workload.conversation(self.settings.first + number)
            self._play(conversation, self.player.now(), lambda: wanted() and self._accepting).join()

    # --- parts

    @property
    def _accepting(self) -> bool:
        """Whether conversations, and further turns, are begun."""
        return self._begun and self.player.now() < self.end_s

    @property
    def _over(self) -> bool:
        return self._arrived_all and not self._playing

    def _measured_s(self) -> float:
        settings = self.settings
        if settings.load.steps is not None:
            return sum(step.seconds for step in settings.load.steps)
        if settings.duration_s is not None or settings.load.replay is None:
            return settings.duration_s or _DEFAULT_S
        return (self._log[-1].at_s or 0.0) / settings.load.replay + _POLL_S

    def _limited(self, numbers: Iterator[int]) -> Iterator[int]:
        most = self.settings.max_conversations
        return numbers if most is None else itertools.takewhile(lambda number: number < most, numbers)

    def _play(self, conversation: Conversation, due_s: float, going_on: Callable[[], bool]) -> gevent.Greenlet:
        """In a greenlet of its own, so that a user who is no longer wanted never tears a request apart."""
        return self._playing.spawn(self.player.play, conversation, due_s, going_on)

    def _arrive(self, wanted: Callable[[], bool]) -> None:
        """Begin conversations at their times, whatever has become of those before; later turns follow the answers.

        All that are due before the end are begun, also those that a busy process reaches after it.
        """
        self._arriving = True
        self._begin_due(wanted)
        gevent.sleep(0)  # lets those that were spawned last send their requests
        self._arriving = False
        while self._accepting and wanted():
            gevent.sleep(_POLL_S)

    def _begin_due(self, wanted: Callable[[], bool]) -> None:
        for number, due_s in self._due():
            while (ahead := due_s - self.player.now()) > 0:
                if not (wanted() and self._accepting):
                    return
                gevent.sleep(min(ahead, _POLL_S))
            if not self._begun or due_s >= self.end_s:
                return
            replayed = self._log[number] if self._log else None
            conversation = replayed or self._workload.conversation(self.settings.first + number)
            self._play(conversation, due_s, lambda: self._accepting)
        self._arrived_all = bool(self.settings.max_conversations) or bool(self._log)

    def _due(self) -> Iterator[tuple[int, float]]:
        load = self.settings.load
        if load.replay is not None:
            speed = load.replay
            times = iter([(conversation.at_s or 0.0) / speed for conversation in self._log])
            arrivals = shared(times, self._index, self._of)
        else:
            assert load.rate is not None
            arrivals = shared(poisson(load.rate, self.settings.seed, self.end_s), self._index, self._of)
        most = self.settings.max_conversations
        return arrivals if most is None else itertools.takewhile(lambda arrival: arrival[0] < most, arrivals)
