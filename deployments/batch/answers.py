"""From a request of a batch to its record: OpenAI's output line, and what the answer took."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
from collections.abc import AsyncGenerator, Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import orjson
from fastapi.exceptions import RequestValidationError
from pydantic import ValidationError

from deployments.batch.requests import Item, LineError
from deployments.calls import Call, Piece
from deployments.error_responses import validation_error
from deployments.errors import ApiError
from deployments.schema import ApiRequest, ChatRequest, CompletionRequest

SOURCES = ("retrieval", "logits", "store")


class Reply(NamedTuple):
    """An answer's body as JSON, and its usage with the statistics of drafting, as far as they are known."""

    body: bytes
    usage: dict[str, Any]


Respond = Callable[[Call], Awaitable[Reply]]
"""Answers one call; raises ApiError where it cannot be answered."""


@dataclass
class Tally:
    """What answers took. ``accepted``: draft tokens by source; ``decided``: tokens decided in ``steps``."""

    prompt_tokens: int = 0
    completion_tokens: int = 0
    steps: int = 0
    decided: int = 0
    accepted: dict[str, int] = field(default_factory=lambda: dict.fromkeys(SOURCES, 0))

    def add_usage(self, usage: dict[str, Any]) -> None:
        """Count an answer's usage."""
        self.prompt_tokens += usage.get("prompt_tokens", 0)
        self.completion_tokens += usage.get("completion_tokens", 0)
        stats = usage.get("racer") or {}
        steps = stats.get("steps", 0)
        self.steps += steps
        self.decided += round(steps * (stats.get("mat") or 0.0))
        for source in SOURCES:
            self.accepted[source] += stats.get("accepted", {}).get(source, 0)


@dataclass
class Result:
    """The record of one request, as one line without its newline. ``failed``: it belongs to the errors."""

    record: bytes
    failed: bool
    tally: Tally = field(default_factory=Tally)


def refused(error: LineError, where: str) -> Result:
    """The record of a line that is no request; ``where`` names it."""
    told = {"code": error.code, "message": f"{where}: {error.message}", "param": error.param}
    return Result(_record(error.custom_id, None, told, {}), failed=True)


def unanswered(item: Item, code: str, message: str) -> Result:
    """The record of a request to which no answer can be had."""
    return Result(_record(item.custom_id, None, {"code": code, "message": message}, item.metadata), failed=True)


def checked(item: Item, body: dict[str, Any], models: tuple[str, ...]) -> ApiRequest:
    """``body`` as a request of the item's endpoint.

    Raises:
        ApiError: as the endpoint itself would refuse it, or it cannot be part of a batch.
    """
    model = ChatRequest if item.kind == "chat" else CompletionRequest
    try:
        request = model.model_validate(body)
    except ValidationError as error:
        raise validation_error(RequestValidationError(error.errors(include_url=False))) from None
    if request.stream:
        raise ApiError(400, "stream is not possible in a batch; leave it out", code="invalid_value", param="stream")
    if request.model not in models:
        raise ApiError(
            404, f"the model {request.model!r} is not served here; use {', '.join(models)}", "model_not_found", "model"
        )
    return request


async def answer(item: Item, models: tuple[str, ...], respond: Respond, **call: Any) -> Result:
    """Answer one request, turn by turn where it has turns, and write its record. ``call``: more fields of its calls."""
    request_id, tally = secrets.token_hex(12), Tally()
    try:
        body = await _turns(item, models, respond, request_id, tally, call)
    except ApiError as error:
        answered = _response(error.status, request_id, orjson.dumps(error.body()))
        return Result(_record(item.custom_id, answered, None, item.metadata), True, tally)
    return Result(_record(item.custom_id, _response(200, request_id, body), None, item.metadata), False, tally)


async def _turns(
    item: Item, models: tuple[str, ...], respond: Respond, request_id: str, tally: Tally, call: dict[str, Any]
) -> bytes:
    if not item.turns:
        reply = await respond(Call.of(checked(item, item.body, models), request_id, **call))
        tally.add_usage(reply.usage)
        return reply.body
    messages: list[dict[str, str]] = []
    texts: list[str] = []
    for number, turn in enumerate(item.turns):
        messages.append({"role": "user", "content": turn})
        request = checked(item, item.body | {"messages": messages}, models)
        reply = await respond(Call.of(request, f"{request_id}-{number}", **call))
        tally.add_usage(reply.usage)
        body = orjson.loads(reply.body)
        texts.append(body["choices"][0]["message"]["content"])
        messages.append({"role": "assistant", "content": texts[-1]})
    spent = {"prompt_tokens": tally.prompt_tokens, "completion_tokens": tally.completion_tokens}
    body["usage"] |= spent | {"total_tokens": sum(spent.values())}
    return orjson.dumps(body | {"turns": texts})


async def whole(pieces: AsyncGenerator[Piece]) -> bytes:
    """The body that ``pieces`` bring.

    Raises:
        ApiError: an error is among them.
    """
    data = b""
    async with contextlib.aclosing(pieces):
        async for piece in pieces:
            if piece.error is not None:
                raise ApiError.from_wire(piece.error)
            data += piece.data
    return data


def passing(error: ApiError) -> bool:
    """The same request may well be answered later: the queue was full, or its replica was lost."""
    return error.status in (502, 503)


async def patiently(respond: Respond, call: Call, pause_s: float, most_s: float) -> Reply:
    """Ask again, less and less often, while the error is a passing one; after ``most_s`` seconds it is raised."""
    loop = asyncio.get_running_loop()
    until = loop.time() + most_s
    while True:
        try:
            return await respond(call)
        except ApiError as error:
            if not passing(error) or loop.time() + pause_s > until:
                raise
        await asyncio.sleep(pause_s)
        pause_s = min(2 * pause_s, 10.0)


def _response(status: int, request_id: str, body: bytes) -> dict[str, Any]:
    return {"status_code": status, "request_id": request_id, "body": orjson.Fragment(body)}


def _record(
    custom_id: str | None, response: dict[str, Any] | None, error: dict[str, Any] | None, metadata: dict[str, Any]
) -> bytes:
    record: dict[str, Any] = {
        "id": f"batch_req_{secrets.token_hex(12)}",
        "custom_id": custom_id,
        "response": response,
        "error": error,
    }
    return one_line(record | ({"metadata": metadata} if metadata else {}))


_BREAKS = {character.encode(): f"\\u{ord(character):04x}".encode() for character in "\x85\u2028\u2029"}


def one_line(record: dict[str, Any]) -> bytes:
    """The record as JSON that every reader takes for one line: Python's ``str.splitlines`` ends one at these, too."""
    made = orjson.dumps(record)
    for character, escaped in _BREAKS.items():
        made = made.replace(character, escaped)
    return made
