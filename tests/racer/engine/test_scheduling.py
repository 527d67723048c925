"""Many requests at once: whole answers, exact books, no starvation, no memory that grows."""

import resource
from itertools import pairwise
from typing import Any, cast

import pytest
from torch import Tensor

from racer import Engine, Request, SamplingParams
from racer.errors import InvalidRequestError
from racer.model.layout import Segment
from tests.racer.engine.helpers import Answer, answer, decode, prompt, tiny_engine
from tests.racer.engine.test_stopping import engine_bytes

LONG: dict[str, Any] = {"max_tokens": 40, "ignore_eos": True}


def test_eight_parallel_requests_each_get_their_own_answer() -> None:
    """Fault 2."""
    engine = tiny_engine()
    seeds = [None, 1, None, 2, None, 3, None, 4]
    alone = [answer(engine, prompt(5 + 7 * i, i), seed=seed, **LONG).token_ids for i, seed in enumerate(seeds)]
    requests = [Request(prompt(5 + 7 * i, i), SamplingParams(seed=seed, **LONG)) for i, seed in enumerate(seeds)]
    assert [choices[0].token_ids for choices in decode(engine, requests)] == alone
    assert all(len(tokens) == 40 for tokens in alone)


def test_a_shared_prefix_outlives_a_dropped_request() -> None:
    """Fault 3: three requests share 300 tokens, one is dropped after its first tokens, 50 rounds."""
    engine = tiny_engine(prefill_chunk=256)
    shared = prompt(300, 7)
    params = SamplingParams(max_tokens=12, ignore_eos=True)
    expected = [answer(engine, (*shared, i), max_tokens=12, ignore_eos=True).token_ids for i in (10, 11)]
    for _ in range(50):
        requests = [Request((*shared, i), params) for i in (10, 12, 11)]
        for request in requests:
            engine.add(request)
        got: dict[str, list[int]] = {r.request_id: [] for r in requests}
        dropped = requests[1].request_id
        while engine.has_work:
            for output in engine.step():
                got[output.request_id] += output.token_ids
                if output.request_id == dropped and output.finish_reason is None:
                    engine.abort(dropped)
            engine.check_integrity()
        assert [got[requests[0].request_id], got[requests[2].request_id]] == expected
        assert len(got[dropped]) < 12
        assert engine.scheduler.regions.allocated == 0


def test_the_cache_holds_exactly_the_verified_tokens() -> None:
    """Fault 5: after every step, also one whose whole tree was rejected."""
    engine = tiny_engine(model={"vocab_size": 24})
    engine.add(Request(prompt(20, 1, 24), SamplingParams(max_tokens=40, temperature=2.0, seed=3, ignore_eos=True)))
    total, rejected_all, accepted_some = 0, 0, 0
    while engine.has_work:
        total += sum(len(output.token_ids) for output in engine.step())
        drafted = sum(engine.metrics.recent[-1].drafted.values())
        accepted = sum(engine.metrics.recent[-1].accepted.values())
        rejected_all += drafted > 0 and accepted == 0
        accepted_some += accepted > 0
        for sequence in engine.scheduler.running:
            region = engine.scheduler.regions[sequence]
            assert region.used == sequence.cached == 20 + total - 1
    assert rejected_all > 3 and accepted_some > 3


def finishing_order(engine: Engine, requests: list[Request]) -> tuple[list[str], dict[str, Answer]]:
    answers = {r.request_id: Answer() for r in requests}
    order = []
    for output in engine.generate(requests):
        answers[output.request_id].add(output)
        engine.check_integrity()
        order += [output.request_id] * output.finished
    return order, answers


def test_when_places_run_out_the_youngest_waits_and_all_answers_are_whole() -> None:
    long: dict[str, Any] = {"max_tokens": 200, "ignore_eos": True}
    requests = [Request(prompt(20, i), SamplingParams(**long)) for i in range(4)]
    roomy = {r.request_id: answer(tiny_engine(), r.prompt_token_ids, **long).token_ids for r in requests}
    engine = tiny_engine(cache_bytes=engine_bytes(320))
    order, answers = finishing_order(engine, requests)
    assert {request_id: one.token_ids for request_id, one in answers.items()} == roomy
    assert engine.scheduler.preemptions > 0, "the cache was large enough: nothing was tested"
    assert order.index(requests[0].request_id) == 0, "the oldest was not the first to finish"


def test_preempted_while_prefilling_a_prompt_is_learned_once() -> None:
    engine = tiny_engine(prefill_chunk=16)
    engine.add(Request(prompt(150, 2), SamplingParams(max_tokens=20, ignore_eos=True)))
    engine.step()
    (sequence,) = engine.scheduler.running
    assert 0 < sequence.cached < 150
    assert engine.scheduler._preempt_youngest() is sequence
    while not sequence.decoding:
        engine.step()
        engine.check_integrity()
    assert sequence.drafts is not None
    pairs = [(a, b) for a, b in pairwise(sequence.tokens)]
    assert all(sequence.drafts.automaton.count(pair) == pairs.count(pair) for pair in pairs)


def test_an_iterator_closed_early_or_refused_leaves_nothing_behind() -> None:
    engine = tiny_engine()
    stream = engine.generate([Request(prompt(20, i), SamplingParams(**LONG)) for i in range(3)])
    next(stream)
    stream.close()
    with pytest.raises(InvalidRequestError):
        list(engine.generate([Request(prompt(20, 1)), Request(())]))
    assert not engine.has_work and engine.scheduler.regions.allocated == 0
    engine.check_integrity()


def test_logits_that_name_no_token_end_one_request_with_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """Logits that are not finite, for one sequence of two; greedy and sampled, in the prefill and later."""
    for params in ({}, {"temperature": 1.0, "seed": 1}):
        for fatal in (9, 14):  # tokens of the text when it happens: at once, and while decoding
            engine = tiny_engine(drafts="off")
            run = engine.runner.run

            def broken(segments: list[Segment], run: Any = run, fatal: int = fatal) -> Tensor:
                logits = run(segments).clone()
                row = 0
                for segment in segments:
                    row += len(segment.tokens) - segment.scored_from
                    if segment.cached + len(segment.tokens) == fatal:
                        logits[row - 1] = float("nan")
                return cast(Tensor, logits)

            monkeypatch.setattr(engine.runner, "run", broken)
            whole = answer(tiny_engine(), prompt(60, 2), max_tokens=20, ignore_eos=True)
            bad = Request(prompt(9, 1), SamplingParams(max_tokens=20, ignore_eos=True, **params))
            good = Request(prompt(60, 2), SamplingParams(max_tokens=20, ignore_eos=True))
            tokens: dict[str, list[int]] = {bad.request_id: [], good.request_id: []}
            errors = []
            for output in engine.generate([bad, good]):
                tokens[output.request_id] += output.token_ids
                if output.error is not None:
                    errors.append((output.request_id, output.finish_reason, str(output.error)))
                engine.check_integrity()
            ((failed, reason, sentence),) = errors
            assert (failed, reason) == (bad.request_id, "error") and "logits are not finite" in sentence
            assert len(tokens[bad.request_id]) == fatal - 9 and tokens[good.request_id] == whole.token_ids


def test_where_every_token_is_forbidden_the_request_ends_with_an_error() -> None:
    engine = tiny_engine(model={"vocab_size": 5})
    params = SamplingParams(stop_token_ids=tuple(range(5)), min_tokens=3, max_tokens=5)
    (output,) = engine.generate([Request((3, 4), params)])
    assert output.finish_reason == "error" and "every token is forbidden" in str(output.error)


def test_long_prompts_are_prefilled_in_chunks_beside_decoding() -> None:
    engine = tiny_engine(prefill_chunk=32)
    first = Request(prompt(5, 1), SamplingParams(**LONG))
    engine.add(first)
    engine.step()
    engine.add(Request(prompt(300, 2), SamplingParams(max_tokens=3, ignore_eos=True)))
    decided_beside = 0
    while engine.scheduler.waiting or any(not s.decoding for s in engine.scheduler.running):
        outputs = engine.step()
        assert engine.metrics.recent[-1].tokens <= 32 + 16
        decided_beside += sum(len(o.token_ids) for o in outputs if o.request_id == first.request_id)
    assert decided_beside >= 10, "decoding stood still while the long prompt was prefilled"


def test_max_running_bounds_the_batch() -> None:
    engine = tiny_engine(max_running=3)
    for i in range(8):
        engine.add(Request(prompt(5, i), SamplingParams(max_tokens=10)))
    while engine.has_work:
        engine.step()
        stats = engine.metrics.recent[-1]
        assert stats.decoding + stats.prefilling <= 3


def test_abort_at_any_time_frees_everything() -> None:
    engine = tiny_engine(prefill_chunk=16, max_running=2)
    requests = [Request(prompt(40, i), SamplingParams(**LONG), request_id=f"r{i}") for i in range(4)]
    for request in requests:
        engine.add(request)
    engine.abort("r3")  # waiting
    engine.step()
    engine.abort("r0")  # in the middle of its prefill
    for _ in range(6):
        engine.step()
    engine.abort("r1")  # decoding
    engine.abort("unknown")
    reasons = {o.request_id: o.finish_reason for o in engine.step() if o.finished}
    assert reasons == {"r1": "abort"}
    engine.abort("r2")
    engine.step()
    assert not engine.has_work and engine.scheduler.regions.allocated == 0
    engine.check_integrity()


def test_a_long_request_does_not_spoil_the_next() -> None:
    """Fault 16: acceptance of a request does not depend on what the engine decoded before."""
    short: dict[str, Any] = {"max_tokens": 40, "ignore_eos": True}
    fresh = answer(tiny_engine(), prompt(20, 1), **short)
    engine = tiny_engine()
    answer(engine, prompt(300, 2), max_tokens=200, ignore_eos=True)
    after = answer(engine, prompt(20, 1), **short)
    assert after.stats == fresh.stats and after.token_ids == fresh.token_ids


@pytest.mark.slow
def test_memory_levels_off() -> None:
    """Fault 17, the engine's part: thousands of distinct requests leave nothing behind."""
    engine = tiny_engine(max_running=32)

    def wave(start: int) -> int:
        requests = [Request(prompt(6, i), SamplingParams(max_tokens=3)) for i in range(start, start + 1500)]
        for _ in engine.generate(requests):
            pass
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss

    wave(0)
    before = wave(1500)
    after = wave(3000)
    assert after - before < 4_000, f"{after - before} KiB more after another 1,500 requests"
    engine.check_integrity()
    assert not engine._open
