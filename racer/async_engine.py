"""The engine on a thread of its own, with one asynchronous stream for each request."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections import deque
from collections.abc import AsyncGenerator, Callable
from concurrent.futures import Future
from dataclasses import dataclass

from racer.engine import Engine
from racer.errors import EngineDeadError, EngineDrainingError
from racer.types import Request, StepOutput


@dataclass
class _Stream:
    """Where one request's outputs go. ``queue`` is touched on ``loop``'s thread only."""

    request: Request
    loop: asyncio.AbstractEventLoop
    queue: asyncio.Queue[list[StepOutput] | BaseException]
    open_choices: int

    def fail(self, error: BaseException) -> None:
        """Hand an error over from the engine's thread."""
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody listens any more
            self.loop.call_soon_threadsafe(self.queue.put_nowait, error)


class AsyncEngine:
    """Runs an :class:`Engine` in a thread; any event loop may ask it to decode.

    The thread sleeps while there is nothing to do. ``close()`` ends it; ``drain()`` lets open requests finish first.

    Give it a function that makes the engine, and it is made in that thread: OpenMP keeps a pool of threads for each
    thread that computes, and with a second pool on the same cores its barriers sleep instead of waiting, which doubles
    a step's time (docs/log.md). The constructor then waits, and raises what the function raises.
    """

    engine: Engine

    def __init__(self, engine: Engine | Callable[[], Engine]) -> None:
        made: Future[Engine] = Future()
        if isinstance(engine, Engine):
            made.set_result(engine)
        self._make = None if isinstance(engine, Engine) else engine
        self._condition = threading.Condition()
        self._commands: deque[tuple[Callable[[_Stream], None], _Stream]] = deque()
        self._streams: dict[str, _Stream] = {}
        self._draining = False
        self._closed = False
        self._failure: BaseException | None = None
        self._progress_s = time.monotonic()
        self._busy = False
        self._thread = threading.Thread(target=self._run, args=(made,), name="racer-engine", daemon=True)
        self._thread.start()
        self.engine = made.result()

    # --- callers' side

    async def generate(self, request: Request) -> AsyncGenerator[StepOutput]:
        """Decode ``request`` and yield its outputs one by one; see :meth:`batches`."""
        async with contextlib.aclosing(self.batches(request)) as batches:
            async for batch in batches:
                for output in batch:
                    yield output

    async def batches(self, request: Request) -> AsyncGenerator[list[StepOutput]]:
        """Decode ``request`` and yield what is at hand, at least one step's outputs at a time.

        Leaving the iterator early (or being cancelled) aborts the request. Raises InvalidRequestError before the first
        output if it cannot be served, EngineDrainingError while draining, EngineDeadError if the engine's thread has
        failed.
        """
        stream = _Stream(request, asyncio.get_running_loop(), asyncio.Queue(), request.params.n)
        self._submit(stream)
        try:
            while stream.open_choices:
                batch: list[StepOutput] = []
                item = await stream.queue.get()
                while not isinstance(item, BaseException):
                    batch += item
                    if stream.queue.empty():
                        break
                    item = stream.queue.get_nowait()
                stream.open_choices -= sum(output.finished for output in batch)
                if batch:
                    yield batch
                if isinstance(item, BaseException):
                    stream.open_choices = 0
                    raise item
        finally:
            if stream.open_choices:
                self._leave(stream)

    def _submit(self, stream: _Stream) -> None:
        with self._condition:
            if self._failure is not None:
                raise EngineDeadError("the engine has stopped after an error") from self._failure
            if self._draining or self._closed:
                raise EngineDrainingError("the engine is shutting down and takes no new request")
            self._commands.append((self._open, stream))
            self._condition.notify()

    def _leave(self, stream: _Stream) -> None:
        with self._condition:
            if not self._closed:
                self._commands.append((self._drop, stream))
                self._condition.notify()

    def healthy(self, stall_s: float = 30.0) -> bool:
        """The thread lives, and while it has work no step takes longer than ``stall_s`` seconds."""
        if self._failure is not None or not self._thread.is_alive():
            return False
        return not self._busy or time.monotonic() - self._progress_s < stall_s

    @property
    def open_requests(self) -> int:
        """Requests that were accepted and are not finished."""
        with self._condition:  # which the thread holds while it turns a command into a stream
            return len(self._streams) + len(self._commands)

    async def drain(self, timeout_s: float | None = None) -> bool:
        """Refuse new requests and wait for the open ones; True if all finished within ``timeout_s`` seconds."""
        with self._condition:
            self._draining = True
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        while self.open_requests and self._thread.is_alive():
            if deadline is not None and time.monotonic() >= deadline:
                return False
            await asyncio.sleep(0.01)
        return not self.open_requests

    def close(self) -> None:
        """Abort what is open and end the thread. Streams still read get EngineDrainingError."""
        with self._condition:
            self._closed = True
            self._condition.notify()
        if threading.current_thread() is not self._thread:
            self._thread.join()

    # --- the engine's thread

    def _run(self, made: Future[Engine]) -> None:
        if self._make is not None:
            try:
                made.set_result(self._make())
            except BaseException as failure:
                made.set_exception(failure)
                return
        self.engine = made.result()
        error: BaseException = EngineDrainingError("the engine was closed")
        try:
            while self._wait_for_work():
                self._deliver(self.engine.step())
                self._progress_s = time.monotonic()
        except BaseException as failure:
            self._failure = failure
            error = EngineDeadError(f"the engine has stopped after an error: {failure}")
            error.__cause__ = failure
        with self._condition:
            self._closed = True
            streams = [*self._streams.values(), *(stream for action, stream in self._commands if action == self._open)]
            if self._failure is None:
                for request_id in self._streams:
                    self.engine.abort(request_id, announce=False)
            self._streams.clear()
            self._commands.clear()
        for stream in streams:
            stream.fail(error)

    def _wait_for_work(self) -> bool:
        """Take in commands; sleep while there is nothing to do; False when closed."""
        with self._condition:
            while not (self._closed or self._commands or self.engine.has_work):
                self._busy = False
                self._condition.wait()
            if not self._busy:
                self._busy, self._progress_s = True, time.monotonic()
            if self._closed:
                return False
            while self._commands:
                action, stream = self._commands.popleft()
                action(stream)
        return True

    def _open(self, stream: _Stream) -> None:
        try:
            self.engine.add(stream.request)
        except Exception as error:  # whatever is wrong with one request is that caller's alone
            stream.fail(error)
        else:
            self._streams[stream.request.request_id] = stream

    def _drop(self, stream: _Stream) -> None:
        """Abort what nobody reads any more, unless the id belongs to another stream: this one was refused or ended."""
        request_id = stream.request.request_id
        if self._streams.get(request_id) is stream:
            del self._streams[request_id]
            self.engine.abort(request_id, announce=False)

    def _deliver(self, outputs: list[StepOutput]) -> None:
        """Hand a step's outputs over, in one call for each event loop: waking one costs more than the rest."""
        grouped: dict[str, list[StepOutput]] = {}
        for output in outputs:
            grouped.setdefault(output.request_id, []).append(output)
        loops: dict[asyncio.AbstractEventLoop, list[tuple[_Stream, list[StepOutput]]]] = {}
        for request_id, items in grouped.items():
            stream = self._streams.get(request_id)
            if stream is not None:
                loops.setdefault(stream.loop, []).append((stream, items))
                if not self.engine.is_open(request_id):
                    del self._streams[request_id]
        for loop, parts in loops.items():
            with contextlib.suppress(RuntimeError):  # the loop is closed: nobody listens any more
                loop.call_soon_threadsafe(_put_all, parts)


def _put_all(parts: list[tuple[_Stream, list[StepOutput]]]) -> None:
    for stream, outputs in parts:
        stream.queue.put_nowait(outputs)
