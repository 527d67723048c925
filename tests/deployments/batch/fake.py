"""An answerer without a model: what it answers follows from the prompt, and some prompts end its process."""

from __future__ import annotations

import asyncio
import os
import time
from dataclasses import dataclass
from typing import Any

import orjson

from deployments.batch.answers import Reply, Result, answer
from deployments.batch.engine import EngineLostError
from deployments.batch.requests import Item
from deployments.calls import Call
from deployments.errors import ApiError


@dataclass(frozen=True)
class FakeSpec:
    """``delay_s``: of an answer; ``load_s``: until it can answer; ``log``: a file that gets a line for each answer."""

    delay_s: float = 0.0
    in_flight: int = 8
    load_s: float = 0.0
    log: str | None = None


class FakeAnswerer:
    """Says every prompt backwards.

    "die": the process ends; "dead": the engine is lost; "bug": an error of ours; "refuse": a 400.
    """

    def __init__(self, spec: FakeSpec) -> None:
        self._spec = spec
        self.in_flight = spec.in_flight
        time.sleep(spec.load_s)

    def healthy(self) -> bool:
        return True

    async def answer(self, item: Item) -> Result:
        return await answer(item, ("demo",), self._respond)

    async def _respond(self, call: Call) -> Reply:
        body = call.body
        prompt = body["prompt"] if call.kind == "completion" else body["messages"][-1]["content"]
        if self._spec.delay_s:
            await asyncio.sleep(self._spec.delay_s)
        if prompt == "die":
            os._exit(1)
        if prompt == "dead":
            raise EngineLostError("the engine has stopped")
        if prompt == "bug":
            raise RuntimeError("an error of ours")
        if prompt == "refuse":
            raise ApiError(400, "too long", code="context_length_exceeded")
        if self._spec.log is not None:
            with open(self._spec.log, "a") as log:
                log.write(f"{os.getpid()} {prompt}\n")
        return Reply(*self._reply(call, prompt[::-1]))

    def _reply(self, call: Call, text: str) -> tuple[bytes, dict[str, Any]]:
        usage = {"prompt_tokens": 3, "completion_tokens": 10, "total_tokens": 13}
        choice: dict[str, Any] = {"index": 0, "finish_reason": "stop"}
        choice |= {"text": text} if call.kind == "completion" else {"message": {"role": "assistant", "content": text}}
        body = orjson.dumps({"id": call.request_id, "choices": [choice], "usage": usage})
        return body, usage | {"racer": {"steps": 4, "mat": 2.25, "accepted": {"store": 2}}}
