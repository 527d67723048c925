"""One line of a batch file as a request: OpenAI's form, a plain prompt, or a conversation of several turns."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

import orjson

from deployments.errors import DeploymentError

URLS: dict[str, Literal["chat", "completion"]] = {
    "/v1/chat/completions": "chat",
    "/v1/completions": "completion",
}
"""The endpoints that a batch may ask, and the kind of request each takes."""

METADATA = ("category", "reference", "suite")
"""Fields of benchmark files that do not change how a line is answered; its record hands them on."""

_BATCH_FIELDS = ("custom_id", "method", "url", "body")
_ID_FIELDS = ("custom_id", "id", "question_id")
_CONTENTS = ("prompt", "messages", "turns")


@dataclass(frozen=True)
class Item:
    """One request of a batch.

    body   what ``POST`` to its endpoint would carry; checked when it is answered
    turns  the user's part of a conversation, in order; each answer goes back into it before the next turn
    """

    custom_id: str
    kind: Literal["chat", "completion"]
    body: dict[str, Any]
    turns: tuple[str, ...] = ()
    metadata: dict[str, Any] = field(default_factory=dict)


@dataclass
class LineError(DeploymentError):
    """A line that is no request; ``custom_id`` as far as it could be read."""

    code: str
    message: str
    custom_id: str | None = None
    param: str | None = None

    def __str__(self) -> str:
        return self.message


@dataclass(frozen=True)
class Reading:
    """How the lines of a file are understood.

    form      ``json``: an object a line; ``text``: a prompt a line
    name      the file's name, for the ids of lines that bring none
    model     what requests ask for that name no model
    column    field of a line that holds its prompt; other fields are then the data's own, and not read
    chat      plain prompts are put to the model as chat messages
    defaults  fields of a body that does not bring them itself
    url       the only endpoint that lines may name; None: either
    """

    form: Literal["json", "text"] = "json"
    name: str = "line"
    model: str = "demo"
    column: str | None = None
    chat: bool = False
    defaults: dict[str, Any] = field(default_factory=dict)
    url: str | None = None

    def read(self, raw: bytes, line: int) -> Item:
        """The request that line number ``line`` holds.

        Raises:
            LineError: it holds none.
        """
        own_id = f"{self.name}:{line}"
        if self.form == "text":
            return self._plain({"prompt": _text_of(raw)}, own_id, "prompt")
        record = _object(raw)
        if self.column is not None:
            if self.column not in record:
                raise LineError("missing_field", f"the line has no field {self.column!r}", _id(record), self.column)
            return self._plain(record, own_id, self.column)
        if "body" in record or "url" in record or "method" in record:
            return self._batch(record)
        return self._record(record, own_id)

    def read_batch(self, raw: bytes) -> Item:
        """The same for a line that may have OpenAI's form only."""
        return self._batch(_object(raw))

    def _batch(self, record: dict[str, Any]) -> Item:
        custom_id = record.get("custom_id")
        known = custom_id if isinstance(custom_id, str) and custom_id else None

        def refuse(code: str, message: str, param: str) -> LineError:
            return LineError(code, message, known, param)

        if known is None:
            raise refuse(
                "missing_required_parameter", "custom_id is missing, or no text; give each line one", "custom_id"
            )
        if record.get("method") != "POST":
            raise refuse("invalid_method", f"method is {_shown(record.get('method'))}; only POST is possible", "method")
        url = record.get("url")
        if not isinstance(url, str) or url not in URLS:
            raise refuse("invalid_url", f"url is {_shown(url)}; it must be one of {', '.join(URLS)}", "url")
        if self.url is not None and url != self.url:
            raise refuse("mismatched_url", f"url is {url!r}, but the batch was made for {self.url}", "url")
        if not isinstance(record.get("body"), dict):
            raise refuse("invalid_body", f"body is {_kind(record.get('body'))}, not an object", "body")
        for name in record:
            if name not in _BATCH_FIELDS:
                raise refuse("unsupported_field", f"the field {name!r} is not supported; leave it out", name)
        return Item(known, URLS[url], self._completed(record["body"]))

    def _record(self, record: dict[str, Any], own_id: str) -> Item:
        """A plain line: one of prompt, messages and turns; what else it has are fields of the body."""
        found = [name for name in _CONTENTS if name in record]
        if len(found) != 1:
            told = " and ".join(found) if found else "none of them"
            message = f"the line must hold one of {', '.join(_CONTENTS)} (or url and body), but has {told}"
            raise LineError("invalid_request", message, _id(record))
        if found == ["prompt"]:
            return self._plain(record, own_id, "prompt")
        body = {name: value for name, value in record.items() if name not in (*_ID_FIELDS, *METADATA, "turns")}
        turns = record.get("turns", ())
        if found == ["turns"] and not (
            isinstance(turns, list) and turns and all(isinstance(turn, str) and turn for turn in turns)
        ):
            raise LineError("invalid_request", "turns must be a list of texts", _id(record), "turns")
        return Item(_id(record) or own_id, "chat", self._completed(body), tuple(turns), _metadata(record))

    def _plain(self, record: dict[str, Any], own_id: str, column: str) -> Item:
        text = record[column]
        if not isinstance(text, str) or not text:
            raise LineError("invalid_request", f"{column} is {_kind(text)}, not a text", _id(record), column)
        body: dict[str, Any] = {}
        if self.column is None:
            body = {name: value for name, value in record.items() if name not in (*_ID_FIELDS, *METADATA, "prompt")}
        body |= {"messages": [{"role": "user", "content": text}]} if self.chat else {"prompt": text}
        kind: Literal["chat", "completion"] = "chat" if self.chat else "completion"
        return Item(_id(record) or own_id, kind, self._completed(body), (), _metadata(record))

    def _completed(self, body: dict[str, Any]) -> dict[str, Any]:
        return {"model": self.model} | self.defaults | body


def _object(raw: bytes) -> dict[str, Any]:
    try:
        record = orjson.loads(raw)
    except orjson.JSONDecodeError as error:
        raise LineError("invalid_json_line", f"the line is not JSON ({error.msg}); correct it") from None
    if not isinstance(record, dict):
        raise LineError("invalid_json_line", f"the line is {_kind(record)}, not a JSON object; write {{...}}")
    return record


def _text_of(raw: bytes) -> str:
    try:
        return raw.decode("utf-8").rstrip("\r\n")
    except UnicodeDecodeError:
        raise LineError("invalid_request", "the line is not UTF-8; convert the file") from None


def _id(record: dict[str, Any]) -> str | None:
    for name in _ID_FIELDS:
        value = record.get(name)
        if isinstance(value, str | int) and not isinstance(value, bool) and value != "":
            return str(value)
    return None


def _metadata(record: dict[str, Any]) -> dict[str, Any]:
    return {name: record[name] for name in METADATA if name in record}


def _kind(value: Any) -> str:
    names = {
        bool: "true or false",
        int: "a number",
        float: "a number",
        str: "a text",
        list: "a list",
        dict: "an object",
    }
    if value is None:
        return "null or missing"
    return "an empty text" if value == "" else names[type(value)]


def _shown(value: Any) -> str:
    return "missing" if value is None else repr(value)[:80]
