"""Reading prompts from JSON lines."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn

from racer.errors import InputError, UserError
from racer.types import SamplingParams

KINDS = ("prompt", "messages", "turns")
METADATA = ("category", "reference", "suite")
"""Fields of benchmark files that do not change how a line is decoded; ``generate`` hands them on."""

UNSUPPORTED_PARAMS = ("n", "logprobs", "prompt_logprobs")
"""Sampling parameters whose results an output line has no place for."""

Message = dict[str, Any]


@dataclass(frozen=True)
class Item:
    """One line of an input file: what to decode, and for which id.

    Exactly one of the three holds something: ``prompt`` plain text, ``messages`` a chat, ``turns`` the user's part of
    a conversation, in order. ``params`` are the line's own sampling parameters.
    """

    line: int
    id: Any
    prompt: str | None = None
    messages: tuple[Message, ...] = ()
    turns: tuple[str, ...] = ()
    params: dict[str, Any] = field(default_factory=dict)
    metadata: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class BadLine:
    """A line that cannot be decoded, with the reason in one sentence; ``id`` as far as it could be read."""

    line: int
    id: Any
    error: str


def read_items(path: str, *, strict: bool) -> list[Item | BadLine]:
    """The lines of a JSON-lines file in order, blank ones left out.

    ``strict``: a field that nothing here knows makes a bad line; otherwise it is passed over, as benchmark files carry
    fields of their own.

    Raises:
        InputError: the file cannot be read, or holds nothing.
    """
    try:
        lines = Path(path).read_bytes().removeprefix(b"\xef\xbb\xbf").split(b"\n")
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror}); correct the path") from error
    items = [_read(number, line, strict) for number, line in enumerate(lines, start=1) if line.strip()]
    if not items:
        raise InputError(f"{path}: the file is empty; give it one JSON object a line with prompt, messages or turns")
    return items


def _read(number: int, line: bytes, strict: bool) -> Item | BadLine:
    record: Any = None
    try:
        record = _parse(line)
        return _item(number, record, strict)
    except UserError as error:
        known = _id(record) if isinstance(record, dict) else None
        return BadLine(number, known if _is_text(known) else None, str(error))


def _parse(line: bytes) -> Any:
    try:
        return json.loads(line.decode("utf-8"), parse_constant=_no_constant)
    except UnicodeDecodeError as error:
        raise InputError("the line is not UTF-8; convert the file") from error
    except (ValueError, RecursionError) as error:
        reason = f"{error.msg}, column {error.colno}" if isinstance(error, json.JSONDecodeError) else str(error)
        raise InputError(f"the line is not JSON ({reason}); correct it") from error


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON value")


def _item(number: int, record: Any, strict: bool) -> Item:
    if not isinstance(record, dict):
        raise InputError(
            f"the line is no JSON object but {_kind(record)}; write {{...}} with prompt, messages or turns"
        )
    if not _is_text(record):
        raise InputError("the line holds half of a surrogate pair, which no text may; correct it")
    kinds = [kind for kind in KINDS if kind in record]
    if len(kinds) != 1:
        found = " and ".join(kinds) if kinds else "none of them"
        raise InputError(f"the line must hold one of prompt, messages and turns, but has {found}")
    params = _params(record, strict)
    content = record[kinds[0]]
    return Item(
        number,
        _id(record),
        prompt=valid_text("prompt", content) if kinds[0] == "prompt" else None,
        messages=_messages(content) if kinds[0] == "messages" else (),
        turns=_turns(content) if kinds[0] == "turns" else (),
        params=params,
        metadata={name: record[name] for name in METADATA if name in record},
    )


def _is_text(value: Any) -> bool:
    """All strings in a JSON value, names included, can be tokenised and written out again."""
    try:
        json.dumps(value, ensure_ascii=False).encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True


def _id(record: dict[str, Any]) -> Any:
    return record.get("id", record.get("question_id"))


def _params(record: dict[str, Any], strict: bool) -> dict[str, Any]:
    """The line's sampling parameters, checked, and if ``strict`` that nothing else is in it."""
    allowed = set(SamplingParams.model_fields) - set(UNSUPPORTED_PARAMS)
    for name in record if strict else ():
        if name not in {*KINDS, *METADATA, "id", "question_id", *allowed}:
            raise InputError(f"unknown field {name!r}; remove it or correct its name")
    params = {name: record[name] for name in record if name in allowed}
    SamplingParams(**params)
    return params


def _turns(value: Any) -> tuple[str, ...]:
    if not isinstance(value, list) or not value:
        raise InputError(f"turns must be a list of texts, not {_kind(value)}")
    return tuple(valid_text("turns", turn) for turn in value)


def _messages(value: Any) -> tuple[Message, ...]:
    if not isinstance(value, list) or not value:
        raise InputError(f"messages must be a list of objects with role and content, not {_kind(value)}")
    for message in value:
        if not isinstance(message, dict) or not isinstance(message.get("role"), str):
            raise InputError("each of messages must be an object with role and content")
        valid_text("content of a message", message.get("content"))
    return tuple(value)


def valid_text(name: str, value: Any) -> str:
    """``value`` if it is text that can be tokenised; raises InputError naming it ``name`` otherwise."""
    if not isinstance(value, str):
        raise InputError(f"{name} must be text, not {_kind(value)}")
    if not value:
        raise InputError(f"{name} must not be empty")
    if any("\ud800" <= character <= "\udfff" for character in value):
        raise InputError(f"{name} holds half of a surrogate pair, which no text may; correct it")
    return value


def _kind(value: Any) -> str:
    names = {bool: "true or false", int: "a number", float: "a number", str: "text", list: "a list", dict: "an object"}
    if value is None:
        return "null"
    if value in ([], {}):
        return f"an empty {names[type(value)].split()[1]}"
    return names[type(value)]
