"""Carries a run out with locust: in this process, or as master of workers in other processes and on other machines.

Importing this module makes sockets and threads gevent's, as locust does: only processes that make load import it.
"""

from __future__ import annotations

import contextlib
import logging
import os
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, ClassVar
from urllib.parse import urlsplit

import gevent
from geventhttpclient import HTTPClient
from locust import User, task
from locust.env import Environment
from locust.runners import Runner, WorkerRunner

from loadtest.errors import ServerError
from loadtest.generator import Generator
from loadtest.observe import Reading, memory_of, read
from loadtest.player import Player
from loadtest.sample import Sample
from loadtest.settings import RunSettings, Step

API_KEY = "LOADTEST_API_KEY"
"""Environment variable with the key that requests bring; workers read their own."""
_BEGIN, _SAMPLES, _DONE = "loadtest_begin", "loadtest_samples", "loadtest_done"
_WORKER_WAIT_S = 60.0
_POLL_S = 0.1
_SCRAPE_S = 10.0


class LoadUser(User):
    """A user: does again and again what the process's generator has for it."""

    generator: ClassVar[Generator | None] = None

    @task
    def work(self) -> None:
        """One conversation, or all arrivals of an open loop."""
        if self.generator is None:
            gevent.sleep(_POLL_S)
        else:
            self.generator.work(lambda: self._state == "running")


@dataclass
class Outcome:
    """What came of a run. ``begin_s`` to ``end_s`` is the measured window, in seconds since the load began."""

    begin_s: float
    end_s: float
    samples: list[Sample] = field(default_factory=list)
    readings: list[Reading] = field(default_factory=list)
    interrupted: bool = False


class Observer:
    """Reads the server's metrics now and then, in a greenlet of its own."""

    def __init__(self, settings: RunSettings, player: Player) -> None:
        parts = urlsplit(settings.api)
        self._settings, self._player = settings, player
        self._path = parts.path.removesuffix("/v1") + "/metrics"
        self._http = HTTPClient.from_url(f"{parts.scheme}://{parts.netloc}", network_timeout=_SCRAPE_S)
        self.readings: list[Reading] = []
        self._greenlet: gevent.Greenlet | None = None

    def __enter__(self) -> Observer:
        self.look(0.0)
        if self._settings.poll_s:
            self._greenlet = gevent.spawn(self._poll)
        return self

    def __exit__(self, *error: object) -> None:
        if self._greenlet is not None:
            self._greenlet.kill()
        self.look()

    def look(self, at_s: float | None = None) -> None:
        """One reading; a server without metrics gives an empty one."""
        at_s = self._player.now() if at_s is None else at_s
        pid = self._settings.watch_pid
        try:
            response = self._http.get(self._path)
            page = bytes(response.read()).decode() if response.status_code == 200 else ""
            self.readings.append(read(page, at_s, None if pid is None else memory_of(pid)))
        except Exception:  # no metrics, or none that can be read: the run goes on without
            self.readings.append(read("", at_s, None if pid is None else memory_of(pid)))

    def _poll(self) -> None:
        while True:
            gevent.sleep(self._settings.poll_s)
            self.look()


def carry_out(settings: RunSettings, *, web_port: int | None = None) -> Outcome:
    """The whole load in this process; ``web_port``: locust's web page is there while it runs.

    Raises:
        UserError: the workload does not exist.
        ServerError: the endpoint does not answer.
    """
    outcome = Outcome(0.0, 0.0)
    environment = _environment(settings)
    player = Player(settings, os.environ.get(API_KEY), _to(outcome.samples, settings, environment))
    generator = Generator(settings, player)
    player.find_model()
    runner = environment.create_local_runner()
    LoadUser.generator = generator
    with _page(environment, web_port), Observer(settings, player) as observer:
        stepping = gevent.spawn(_follow_steps, settings, runner, 1)
        try:
            generator.run()
        except KeyboardInterrupt:
            generator.stop()
            outcome.interrupted = True
        stepping.kill()
        environment.stop_timeout = 1.0
        runner.quit()
    outcome.begin_s, outcome.end_s, outcome.readings = generator.begin_s, generator.end_s, observer.readings
    outcome.begin_s = min(outcome.begin_s, outcome.end_s)
    return outcome


def lead(settings: RunSettings, workers: int, host: str, port: int, *, web_port: int | None = None) -> Outcome:
    """The load made by ``workers`` that call at ``host:port``; samples come here.

    Raises:
        ServerError: the endpoint does not answer, or workers do not come or get lost.
    """
    outcome = Outcome(0.0, 0.0)
    environment = _environment(settings)
    keep = _to(outcome.samples, settings, None)
    player = Player(settings, os.environ.get(API_KEY), keep)  # asks for the model's name and keeps the clock
    player.find_model()
    settings = settings.model_copy(update={"model": player.model})
    runner = environment.create_master_runner(host, port)
    done: dict[str, tuple[float, float]] = {}
    runner.register_message(_SAMPLES, lambda msg, **_: [keep(Sample.from_json(one)) for one in msg.data])
    runner.register_message(_DONE, lambda msg, **_: done.update({msg.node_id: tuple(msg.data)}))
    with _page(environment, web_port):
        try:
            _wait(lambda: len(runner.clients.ready) >= workers, _WORKER_WAIT_S, f"{workers} workers have not come")
            names = [client.id for client in runner.clients.ready]
            for index, name in enumerate(names):
                data = {"settings": settings.model_dump(mode="json"), "index": index, "of": len(names)}
                runner.send_message(_BEGIN, data, name)
            player.begun += player.now()
            with Observer(settings, player) as observer:
                stepping = gevent.spawn(_follow_steps, settings, runner, len(names))
                try:
                    while set(done) < set(names):
                        gevent.sleep(_POLL_S)
                        there = {client.id for client in runner.clients.all if client.state != "missing"}
                        if lost := set(names) - there - set(done):
                            raise ServerError(f"{len(lost)} of {len(names)} workers are lost; begin the run again")
                except KeyboardInterrupt:
                    outcome.interrupted = True
                stepping.kill()
            outcome.readings = observer.readings
        finally:
            runner.quit()
    ends = list(done.values()) or [(settings.warmup_s, player.now())]
    outcome.begin_s, outcome.end_s = min(begin for begin, _ in ends), max(end for _, end in ends)
    return outcome


def follow(host: str, port: int) -> None:
    """One worker: waits for a master's word, makes its share of the load, and ends with the master."""
    environment = Environment(user_classes=[LoadUser])
    runner = environment.create_worker_runner(host, port)
    runner.register_message(_BEGIN, lambda msg, **_: runner.greenlet.spawn(_make_share, runner, environment, msg.data))
    runner.greenlet.join()


def _make_share(runner: WorkerRunner, environment: Environment, told: dict[str, Any]) -> None:
    settings = RunSettings.model_validate(told["settings"])
    ended: list[Sample] = []
    player = Player(settings, os.environ.get(API_KEY), _to(ended, settings, environment))
    player.model = settings.model or ""
    generator = Generator(settings, player, told["index"], told["of"])
    LoadUser.generator = generator
    last = time.monotonic()

    def report() -> None:
        nonlocal last
        if ended and time.monotonic() - last > 1.0:
            send()
            last = time.monotonic()

    def send() -> None:
        runner.send_message(_SAMPLES, [sample.to_json() for sample in ended])
        ended.clear()

    generator.run(report)
    send()
    runner.send_message(_DONE, [generator.begin_s, generator.end_s])


def _environment(settings: RunSettings) -> Environment:
    logging.getLogger("locust").setLevel(logging.ERROR)
    return Environment(user_classes=[LoadUser], host=settings.api, stop_timeout=settings.timeout_s)


def _to(samples: list[Sample], settings: RunSettings, environment: Environment | None) -> Callable[[Sample], None]:
    """Keeps samples, and tells locust's statistics, and so its web page, of them."""

    def keep(sample: Sample) -> None:
        samples.append(sample)
        if environment is None:
            return
        error = None if sample.error is None else RuntimeError(sample.error)
        size = sum(count for _, count in sample.chunks)
        fire = environment.events.request.fire
        if sample.ttft_ms is not None:
            fire(request_type="first token", name=settings.workload, response_time=sample.ttft_ms, response_length=0)
        fire(
            request_type="answer",
            name=settings.workload,
            response_time=sample.end_s * 1e3,
            response_length=size,
            exception=error,
        )

    return keep


def _follow_steps(settings: RunSettings, runner: Runner, generators: int) -> None:
    """Have as many users as the load wants; an open loop has one for each process, which begins all conversations."""
    load = settings.load
    users = generators if load.open_loop else load.users or 1
    steps = load.steps or (Step(users=users, seconds=1.0),)
    at_once = max(1, *(step.users for step in steps))  # in a second; locust lets users go as slowly as they came
    for step in steps:
        runner.start(step.users, at_once)
        if load.steps:
            gevent.sleep(step.seconds)


@contextlib.contextmanager
def _page(environment: Environment, port: int | None) -> Iterator[None]:
    """Locust's web page on the loopback, while the block runs."""
    if port is None:
        yield
        return
    del sys.argv[1:]  # the page reads them as locust's own options
    page = environment.create_web_ui("127.0.0.1", port)
    print(f"locust's page: http://127.0.0.1:{port}", file=sys.stderr, flush=True)
    try:
        yield
    finally:
        page.stop()


def _wait(condition: Callable[[], bool], most_s: float, otherwise: str) -> None:
    until = time.monotonic() + most_s
    while not condition():
        if time.monotonic() > until:
            raise ServerError(f"{otherwise} within {most_s:g} s; start them with --worker HOST:PORT")
        gevent.sleep(_POLL_S)
