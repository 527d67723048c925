"""Workloads from JSONL files: questions, whole requests, or a log that is replayed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from loadtest.errors import UserError
from loadtest.workloads.base import Conversation, Message, Turn, user

_KNOWN = {
    "prompt",
    "messages",
    "turns",
    "at_s",
    "id",
    "question_id",
    "category",
    "reference",
    "suite",
    "model",
    "stream",
}


class FromFile:
    """One line, one conversation; after the last line the first comes again.

    A line has ``messages`` (a chat), ``turns`` (the user's part of a conversation: texts, or objects with ``messages``
    and ``max_tokens``) or ``prompt`` (a plain text), perhaps ``at_s`` (seconds since the log began), and any field of a
    request's body (``max_tokens``, ``temperature``, …).
    ``model`` and ``stream`` are the run's to decide; ``id``, ``question_id``, ``category``, ``reference`` and ``suite``
    are not sent.

    Raises:
        UserError: the file cannot be read, is empty, or a line is no request; the sentence names the line.
    """

    def __init__(self, path: Path) -> None:
        self.name = path.stem
        try:
            lines = path.read_text(encoding="utf-8").split("\n")  # splitlines() splits at U+2028 too: valid in JSON
        except (OSError, UnicodeDecodeError) as error:
            reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
            raise UserError(f"{path} cannot be read ({reason}); give a JSONL file") from None
        self._lines = [_parse(line, f"{path}:{number}") for number, line in enumerate(lines, 1) if line.strip()]
        if not self._lines:
            raise UserError(f"{path} has no requests; give a file with one JSON object a line")
        self.length: int | None = len(self._lines)
        self.most_turns = max(len(line.turns) for line in self._lines)

    def conversation(self, number: int) -> Conversation:
        """See :class:`Workload`."""
        found = self._lines[number % len(self._lines)]
        return Conversation(f"{self.name}-{number}", found.turns, found.fields, found.prompt, found.at_s)

    def log(self) -> list[Conversation]:
        """All lines in order of their times, which begin at 0.

        Raises:
            UserError: a line has no time.
        """
        for number, line in enumerate(self._lines, 1):
            if line.at_s is None:
                raise UserError(
                    f"request {number} of {self.name} has no at_s (seconds); a replay needs one in each line"
                )
        ordered = sorted(self._lines, key=lambda line: line.at_s or 0.0)
        begin = ordered[0].at_s or 0.0
        return [
            Conversation(f"{self.name}-{number}", line.turns, line.fields, line.prompt, (line.at_s or 0.0) - begin)
            for number, line in enumerate(ordered)
        ]


def _parse(text: str, where: str) -> Conversation:
    try:
        line = json.loads(text)
    except ValueError as error:
        raise UserError(f"{where}: not JSON ({error}); each line must be one JSON object") from None
    if not isinstance(line, dict):
        raise UserError(f"{where}: a JSON object is expected, not {type(line).__name__}")
    forms = [name for name in ("prompt", "messages", "turns") if name in line]
    if len(forms) != 1:
        raise UserError(f"{where}: give exactly one of prompt, messages and turns")
    cap = line.pop("max_tokens", None)
    at_s = line.get("at_s")
    if at_s is not None and not isinstance(at_s, int | float):
        raise UserError(f"{where}: at_s must be a number of seconds, not {at_s!r}")
    fields: dict[str, Any] = {"temperature": 0} | {name: value for name, value in line.items() if name not in _KNOWN}
    turns, prompt = _turns(line, forms[0], cap, where)
    return Conversation("", turns, fields, prompt, at_s)


def _turns(line: dict[str, Any], form: str, cap: int | None, where: str) -> tuple[tuple[Turn, ...], str | None]:
    value = line[form]
    if form == "prompt":
        if not isinstance(value, str):
            raise UserError(f"{where}: prompt must be a text")
        return (Turn((), cap),), value
    if not isinstance(value, list) or not value:
        raise UserError(f"{where}: {form} must be a list that is not empty")
    if form == "messages":
        return (Turn(_messages(value, where), cap),), None
    return tuple(_turn(one, cap, where) for one in value), None


def _turn(value: Any, cap: int | None, where: str) -> Turn:
    if isinstance(value, str):
        return Turn((user(value),), cap)
    if isinstance(value, dict) and set(value) <= {"messages", "max_tokens"} and isinstance(value.get("messages"), list):
        return Turn(_messages(value["messages"], where), value.get("max_tokens", cap))
    raise UserError(f"{where}: turns must be texts, or objects with messages and max_tokens")


def _messages(value: list[Any], where: str) -> tuple[Message, ...]:
    if not all(isinstance(message, dict) and "role" in message for message in value):
        raise UserError(f"{where}: messages must be objects with role and content")
    return tuple(value)
