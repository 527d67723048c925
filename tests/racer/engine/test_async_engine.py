"""The engine on its own thread: streams, aborts, drain, health."""

import asyncio
import threading
import time
from collections.abc import Iterator

import pytest

from racer import AsyncEngine, Request, SamplingParams
from racer.errors import ContextLengthError, EngineDeadError, EngineDrainingError, InvalidRequestError
from tests.racer.engine.helpers import answer, prompt, tiny_engine

LONG = SamplingParams(max_tokens=40, ignore_eos=True)


@pytest.fixture
def engine() -> Iterator[AsyncEngine]:
    engine = AsyncEngine(tiny_engine())
    yield engine
    engine.close()


async def collect(engine: AsyncEngine, request: Request) -> list[int]:
    tokens: list[int] = []
    async for output in engine.generate(request):
        tokens += output.token_ids
    return tokens


def test_concurrent_streams_equal_the_engines_answers(engine: AsyncEngine) -> None:
    expected = [answer(tiny_engine(), prompt(9, i), max_tokens=40, ignore_eos=True).token_ids for i in range(5)]

    async def main() -> list[list[int]]:
        return await asyncio.gather(*(collect(engine, Request(prompt(9, i), LONG)) for i in range(5)))

    assert asyncio.run(main()) == expected


def test_a_refused_request_raises_and_others_go_on(engine: AsyncEngine) -> None:
    async def main() -> None:
        good = asyncio.create_task(collect(engine, Request(prompt(9, 1), LONG)))
        with pytest.raises(ContextLengthError):
            await collect(engine, Request(prompt(600, 1)))
        assert len(await good) == 40

    asyncio.run(main())


def test_leaving_a_stream_early_aborts_the_request(engine: AsyncEngine) -> None:
    async def main() -> None:
        for _ in range(20):
            stream = engine.generate(Request(prompt(9, 1), SamplingParams(max_tokens=400, ignore_eos=True)))
            async for _ in stream:
                break
            await stream.aclose()
        task = asyncio.create_task(collect(engine, Request(prompt(9, 2), SamplingParams(max_tokens=400))))
        await asyncio.sleep(0.05)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        deadline = time.monotonic() + 5
        while engine.open_requests and time.monotonic() < deadline:
            await asyncio.sleep(0.01)

    asyncio.run(main())
    assert engine.open_requests == 0
    assert engine.engine.scheduler.regions.allocated == 0


def test_all_choices_of_a_request_are_streamed(engine: AsyncEngine) -> None:
    async def main() -> dict[int, int]:
        counts: dict[int, int] = {}
        params = SamplingParams(n=3, max_tokens=7, temperature=1.0, ignore_eos=True)
        async for output in engine.generate(Request(prompt(9, 1), params)):
            counts[output.choice] = counts.get(output.choice, 0) + len(output.token_ids)
        return counts

    assert asyncio.run(main()) == {0: 7, 1: 7, 2: 7}


def test_drain_finishes_what_is_open_and_refuses_the_rest(engine: AsyncEngine) -> None:
    async def main() -> None:
        running = asyncio.create_task(collect(engine, Request(prompt(9, 1), LONG)))
        await asyncio.sleep(0.02)
        drained = asyncio.create_task(engine.drain(timeout_s=30))
        await asyncio.sleep(0)
        with pytest.raises(EngineDrainingError):
            await collect(engine, Request(prompt(9, 2), LONG))
        assert await drained
        assert len(await running) == 40

    asyncio.run(main())


def test_a_failing_step_fails_every_stream_and_the_health_check(
    engine: AsyncEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> None:
        raise RuntimeError("device lost")

    monkeypatch.setattr(engine.engine.runner, "run", broken)

    async def main() -> None:
        assert engine.healthy()
        results = await asyncio.gather(
            *(collect(engine, Request(prompt(9, i), LONG)) for i in range(3)), return_exceptions=True
        )
        assert all(isinstance(result, EngineDeadError) and "device lost" in str(result) for result in results)
        with pytest.raises(EngineDeadError):
            await collect(engine, Request(prompt(9, 1), LONG))

    asyncio.run(main())
    assert not engine.healthy()


def test_a_frozen_step_fails_the_health_check_and_recovers(
    engine: AsyncEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Fault 31, the engine's part."""
    gate, entered, run = threading.Event(), threading.Event(), engine.engine.runner.run

    def frozen(*args: object) -> object:
        entered.set()
        gate.wait(20)
        return run(*args)  # type: ignore[arg-type]

    monkeypatch.setattr(engine.engine.runner, "run", frozen)

    async def main() -> None:
        task = asyncio.create_task(collect(engine, Request(prompt(9, 1), LONG)))
        await asyncio.to_thread(entered.wait, 10)
        await asyncio.sleep(0.2)
        assert not engine.healthy(stall_s=0.1)
        gate.set()
        await task
        assert engine.healthy(stall_s=5)

    asyncio.run(main())


def test_idle_is_healthy(engine: AsyncEngine) -> None:
    time.sleep(0.2)
    assert engine.healthy(stall_s=0.05)


def test_close_ends_open_streams() -> None:
    engine = AsyncEngine(tiny_engine())

    async def main() -> None:
        stream = engine.generate(Request(prompt(9, 1), SamplingParams(max_tokens=480, ignore_eos=True)))
        assert (await anext(stream)).token_ids
        await asyncio.to_thread(engine.close)
        with pytest.raises(EngineDrainingError):
            async for _ in stream:
                pass

    asyncio.run(main())


def test_a_duplicate_id_does_no_harm_to_the_first(engine: AsyncEngine) -> None:
    async def main() -> list[int]:
        # all are handed over in one go, so that the first cannot have finished before
        params = SamplingParams(max_tokens=400, ignore_eos=True)
        tasks = [asyncio.create_task(collect(engine, Request(prompt(9, i), params, "same"))) for i in range(1, 5)]
        await asyncio.sleep(0)
        for task in tasks[2:]:  # these give up before they are refused
            task.cancel()
        with pytest.raises(InvalidRequestError, match="'same'"):
            await tasks[1]
        return await tasks[0]

    assert asyncio.run(main()) == answer(tiny_engine(), prompt(9, 1), max_tokens=400, ignore_eos=True).token_ids


def test_an_id_may_be_used_again_at_once_after_its_stream_was_left(engine: AsyncEngine) -> None:
    async def main() -> list[int]:
        for i in range(10):
            stream = engine.generate(Request(prompt(9, i), SamplingParams(max_tokens=400, ignore_eos=True), "same"))
            await anext(stream)
            await stream.aclose()
        return await collect(engine, Request(prompt(9, 1), LONG, "same"))

    assert asyncio.run(main()) == answer(tiny_engine(), prompt(9, 1), max_tokens=40, ignore_eos=True).token_ids


def test_a_request_that_breaks_the_engines_checks_is_its_callers_alone(engine: AsyncEngine) -> None:
    async def main() -> None:
        running = asyncio.create_task(collect(engine, Request(prompt(9, 1), LONG)))
        with pytest.raises(TypeError):
            await collect(engine, Request(("a", None), LONG))  # type: ignore[arg-type]
        assert len(await running) == 40

    asyncio.run(main())
    assert engine.healthy()


def test_drain_waits_for_a_request_that_is_just_being_added(
    engine: AsyncEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    entered, add = threading.Event(), engine.engine.add

    def slow(request: Request) -> None:
        entered.set()
        time.sleep(0.3)
        add(request)

    monkeypatch.setattr(engine.engine, "add", slow)

    async def main() -> None:
        task = asyncio.create_task(collect(engine, Request(prompt(9, 1), LONG)))
        await asyncio.to_thread(entered.wait, 10)
        assert await engine.drain(timeout_s=30)
        assert engine.engine.metrics.decided == 40, "drained before the request was decoded"
        assert len(await task) == 40

    asyncio.run(main())


def test_close_leaves_the_engine_empty_and_nothing_open() -> None:
    engine = AsyncEngine(tiny_engine())

    async def main() -> None:
        params = SamplingParams(max_tokens=480, ignore_eos=True)
        left, read = engine.generate(Request(prompt(9, 1), params)), engine.generate(Request(prompt(9, 2), params))
        await anext(left)
        await anext(read)
        await asyncio.to_thread(engine.close)
        await left.aclose()
        with pytest.raises(EngineDrainingError):
            async for _ in read:
                pass

    asyncio.run(main())
    assert engine.open_requests == 0
    assert not engine.engine.has_work and engine.engine.scheduler.regions.allocated == 0
