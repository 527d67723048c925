"""When conversations are begun; the player notes them instead of asking a server."""

from __future__ import annotations

import time
from collections.abc import Callable

import gevent

from loadtest.arrivals import poisson
from loadtest.generator import Generator
from loadtest.player import Player
from loadtest.sample import Sample
from loadtest.settings import RunSettings
from loadtest.workloads import Conversation


class Noting(Player):
    """Answers every conversation after a moment."""

    def __init__(self, settings: RunSettings) -> None:
        super().__init__(settings, None, lambda sample: None)
        self.due: list[float] = []
        self.answered = 0

    def play(self, conversation: Conversation, due_s: float, going_on: Callable[[], bool]) -> None:
        sample = Sample(conversation.name, 0, due_s)
        self.due.append(due_s)
        self.open.add(sample)
        gevent.sleep(0.1)
        self.open.discard(sample)
        self.answered += 1


def test_arrivals_that_a_busy_process_reaches_after_the_end_are_begun_too() -> None:
    settings = RunSettings.model_validate(
        {"url": "http://127.0.0.1:9/v1", "workload": "prose", "load": {"rate": 50.0}, "duration_s": 0.5}
    )
    player = Noting(settings)
    generator = Generator(settings, player)
    busy = iter([0.6])  # the process stands still from its first moments until after the end
    user = gevent.spawn(generator.work, lambda: True)
    generator.run(lambda: time.sleep(next(busy, 0.0)))
    user.join(5)
    assert player.now() > 0.5 and user.dead
    expected = list(poisson(50.0, settings.seed, 0.5))
    assert player.due == expected and player.answered == len(expected) > 10
