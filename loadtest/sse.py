"""Reads an OpenAI stream of server-sent events and notes when its content came."""

from __future__ import annotations

import json
from typing import Any

from loadtest.sample import Sample

_DONE = "[DONE]"


class StreamError(Exception):
    """A stream that is no whole answer; the sentence says why."""


class StreamReader:
    """Takes a stream line by line and writes what it tells into ``sample``.

    ``text`` is the answer so far. After the last line :meth:`finish` says whether the answer is whole.
    """

    def __init__(self, sample: Sample) -> None:
        self.sample = sample
        self.text = ""
        self._done = False

    def line(self, line: bytes, elapsed_s: float) -> None:
        """One line, ``elapsed_s`` after the request's start.

        Raises:
            StreamError: the server tells of an error, or the line is not of an OpenAI stream.
        """
        stripped = line.strip()
        if not stripped or not stripped.startswith(b"data:"):  # comments, event names and the lines between events
            return
        data = stripped[5:].strip().decode("utf-8", errors="replace")
        if data == _DONE:
            self._done = True
            return
        try:
            event = json.loads(data)
        except ValueError:
            raise StreamError(f"an event is not JSON: {data[:80]!r}") from None
        if not isinstance(event, dict):
            raise StreamError(f"an event is no object: {data[:80]!r}")
        if error := event.get("error"):
            told = error.get("message", error) if isinstance(error, dict) else error
            raise StreamError(f"error in the stream: {told}")
        self._event(event, elapsed_s)

    def finish(self) -> None:
        """The stream has ended.

        Raises:
            StreamError: it ended without saying so, or told no usage.
        """
        if not self._done:
            raise StreamError("the stream ended without [DONE]")
        if not self.sample.completion_tokens and self.text:
            raise StreamError("the stream told no usage; the server must support stream_options.include_usage")

    def _event(self, event: dict[str, Any], elapsed_s: float) -> None:
        characters = 0
        for choice in event.get("choices") or ():
            piece = (choice.get("delta") or {}).get("content") or choice.get("text") or ""
            self.text += piece
            characters += len(piece)
            self.sample.finish_reason = choice.get("finish_reason") or self.sample.finish_reason
        if characters:
            if self.sample.first_s is None:
                self.sample.first_s = elapsed_s
            self.sample.chunks.append((elapsed_s, characters))
        if usage := event.get("usage"):
            self._usage(usage)

    def _usage(self, usage: dict[str, Any]) -> None:
        sample = self.sample
        sample.prompt_tokens = usage.get("prompt_tokens", 0)
        sample.completion_tokens = usage.get("completion_tokens", 0)
        if told := usage.get("racer"):
            sample.steps, sample.mat = told["steps"], told["mat"]
            sample.drafted, sample.accepted = told["drafted"], told["accepted"]


def http_error(status: int, body: bytes) -> str:
    """A refusal in one sentence: ``HTTP 503: the queue is full``."""
    try:
        told = json.loads(body)["error"]["message"]
    except (ValueError, KeyError, TypeError):
        told = body.decode("utf-8", errors="replace").strip()[:120] or "no body"
    return f"HTTP {status}: {told}"
