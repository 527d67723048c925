"""From a call to an answer: renders prompts, decodes them, and writes what comes out as the client wants it."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from deployments.calls import Call, Piece
from deployments.errors import ApiError
from deployments.responses import TokenTexts, Writer, encode
from deployments.schema import ApiRequest, ChatRequest, CompletionRequest
from racer.errors import ContextLengthError, EngineDeadError, EngineDrainingError, InvalidRequestError, UserError
from racer.text import render_chat
from racer.types import Request, SamplingParams, StepOutput

if TYPE_CHECKING:
    from racer.async_engine import AsyncEngine
    from racer.draft.sources import NgramSource

_NO_ANSWER = ApiError(500, "the answer has no end", code="internal_error")


@dataclass
class Record:
    """What is known of a request, for the log and the metrics. Times are seconds from its arrival in the replica."""

    request_id: str
    kind: str
    namespace: str | None
    stream: bool = False
    user: str | None = None
    started_s: float = field(default_factory=time.monotonic)
    first_token_s: float | None = None
    elapsed_s: float = 0.0
    outcome: str = "ok"
    status: int = 200
    usage: dict[str, Any] = field(default_factory=dict)


class Answerer:
    """Answers calls with one engine. ``limits``: prompts and choices of a call."""

    def __init__(self, engine: AsyncEngine, max_prompts: int, max_choices: int) -> None:
        self._engine = engine
        self._tokenizer = engine.engine.tokenizer
        self._tokens = TokenTexts(self._tokenizer)
        self._max_prompts, self._max_choices = max_prompts, max_choices
        self.interval_s = 0.0

    async def answer(
        self, call: Call, source: NgramSource | None, done: Callable[[Record], None]
    ) -> AsyncGenerator[Piece]:
        """The pieces of an answer: events of a stream, or one body. An error is a piece too, and the last.

        ``done`` is told when it has ended, however that was. Leaving the generator early aborts the decoding.
        """
        record = Record(call.request_id, call.kind, call.namespace)
        last: Piece | None = None
        error: ApiError | None = None
        writer: Writer | None = None
        try:
            request = call.request()
            record.stream, record.user = request.stream, request.user
            prompts = self._prompts(request)
            params = self._params(request)
            writer = Writer(request, call.request_id, self._tokens, prompts, self._echoes(request, prompts))
            requests = [
                Request(tuple(prompt), params, f"{call.request_id}-{i}", source) for i, prompt in enumerate(prompts)
            ]
            async with contextlib.aclosing(self._decode(requests)) as outputs:
                timed = _with_deadlines(outputs, call, record)
                if request.stream:
                    async for data in self._stream(timed, writer):
                        yield Piece(data)
                    last = Piece(writer.end())
                else:
                    async for batch in timed:
                        for prompt, output in batch:
                            writer.take(prompt, output)
                            _raise_failure(output)
                    last = Piece(encode(writer.body()))
        except ApiError as failed:
            error = failed
        except UserError as failed:
            error = _as_api_error(failed)
        except EngineDrainingError:
            error = ApiError(503, "this replica is shutting down; try again", code="draining", retry_after_s=1)
        except EngineDeadError as failed:
            error = ApiError(500, str(failed), code="engine_dead")
        except (GeneratorExit, asyncio.CancelledError):
            record.outcome, record.status = "cancelled", 499
            raise
        finally:
            record.elapsed_s = time.monotonic() - record.started_s
            if writer is not None:
                record.usage = writer.tally.usage(with_stats=True)
            if error is not None:
                record.outcome, record.status = error.code or "error", error.status
            done(record)
        yield last if error is None and last is not None else Piece(error=(error or _NO_ANSWER).to_wire())

    # --- what goes in

    def _prompts(self, request: ApiRequest) -> list[list[int]]:
        if isinstance(request, ChatRequest):
            return [render_chat(self._tokenizer, [message.to_template() for message in request.messages])]
        given = request.prompts()
        for value, limit, name in (
            (len(given), self._max_prompts, "prompts"),
            (len(given) * request.n, self._max_choices, "choices (prompts times n)"),
        ):
            if value > limit:
                raise ApiError(
                    400, f"{value} {name} are more than the limit of {limit}; send fewer", "invalid_value", "prompt"
                )
        return [list(self._tokenizer(one).input_ids) if isinstance(one, str) else one for one in given]

    def _params(self, request: ApiRequest) -> SamplingParams:
        values = request.sampling()
        values["logit_bias"] = {_token_id(token): bias for token, bias in values["logit_bias"].items()}
        if isinstance(request, CompletionRequest) and request.echo:
            values["prompt_logprobs"] = request.logprobs
        if request.n > self._max_choices:
            raise ApiError(400, f"n={request.n} is more than the limit of {self._max_choices}", "invalid_value", "n")
        return SamplingParams(**values)

    def _echoes(self, request: ApiRequest, prompts: list[list[int]]) -> list[str]:
        if not isinstance(request, CompletionRequest) or not request.echo:
            return []
        return [
            given if isinstance(given, str) else str(self._tokenizer.decode(ids, clean_up_tokenization_spaces=False))
            for given, ids in zip(request.prompts(), prompts, strict=True)
        ]

    # --- what comes out

    async def _decode(self, requests: list[Request]) -> AsyncGenerator[list[tuple[int, StepOutput]]]:
        """Outputs of all prompts with the prompt's number, those at hand together."""
        if len(requests) == 1:
            async with contextlib.aclosing(self._engine.batches(requests[0])) as batches:
                async for batch in batches:
                    yield [(0, output) for output in batch]
            return
        queue: asyncio.Queue[list[tuple[int, StepOutput]] | BaseException | None] = asyncio.Queue()

        async def pump(prompt: int, request: Request) -> None:
            try:
                async with contextlib.aclosing(self._engine.batches(request)) as batches:
                    async for batch in batches:
                        queue.put_nowait([(prompt, output) for output in batch])
            except Exception as error:
                queue.put_nowait(error)
            else:
                queue.put_nowait(None)

        tasks = [asyncio.create_task(pump(i, request)) for i, request in enumerate(requests)]
        try:
            ended = 0
            while ended < len(tasks):
                item = await queue.get()
                if isinstance(item, BaseException):
                    raise item
                if item is None:
                    ended += 1
                else:
                    yield item
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _stream(
        self, batches: AsyncIterator[list[tuple[int, StepOutput]]], writer: Writer
    ) -> AsyncIterator[bytes]:
        """Events, those of a step together; at least ``interval_s`` apart, the first at once."""
        held: list[bytes] = []
        sent_s = 0.0
        failure: ApiError | None = None
        async for batch in batches:
            for prompt, output in batch:
                if output.error is not None:
                    failure = _output_error(output)
                    break
                held.append(writer.chunk(prompt, output))
            if failure is not None:
                break
            now = time.monotonic()
            if any(held) and now - sent_s >= self.interval_s:
                yield b"".join(held)
                held, sent_s = [], now
        if any(held):
            yield b"".join(held)
        if failure is not None:
            raise failure


async def _with_deadlines(
    batches: AsyncGenerator[list[tuple[int, StepOutput]]], call: Call, record: Record
) -> AsyncIterator[list[tuple[int, StepOutput]]]:
    """The same batches; an ApiError where the first token, or the end, takes too long."""
    while True:
        limit, name = call.deadline_s, "answer"
        if record.first_token_s is None and call.first_token_s is not None:
            limit, name = min(call.first_token_s, limit or call.first_token_s), "first token"
        try:
            async with asyncio.timeout(
                None if limit is None else max(0.0, record.started_s + limit - time.monotonic())
            ):
                batch = await anext(batches)
        except StopAsyncIteration:
            return
        except TimeoutError:
            raise ApiError(
                504, f"the {name} took longer than {limit:g} s; ask for less, or try later", code="timeout"
            ) from None
        if record.first_token_s is None and any(output.token_ids or output.finished for _, output in batch):
            record.first_token_s = time.monotonic() - record.started_s
        yield batch


def _raise_failure(output: StepOutput) -> None:
    if output.error is not None:
        raise _output_error(output)


def _output_error(output: StepOutput) -> ApiError:
    error = output.error
    return _as_api_error(error) if isinstance(error, UserError) else ApiError(500, str(error), code="decoding_failed")


def _as_api_error(error: UserError) -> ApiError:
    param = error.param if isinstance(error, InvalidRequestError) else None
    code = "context_length_exceeded" if isinstance(error, ContextLengthError) else None
    return ApiError(400, str(error), code=code or "invalid_value", param=param)


def _token_id(text: str) -> int:
    if not text.isdecimal():
        raise ApiError(
            400, f"logit_bias: {text!r} is not a token id; use integers as keys", "invalid_value", "logit_bias"
        )
    return int(text)
