"""Sends conversations to an endpoint, request by request. gevent's sockets: many at a time in one process."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import Any
from urllib.parse import urlsplit

import gevent
from geventhttpclient import HTTPClient
from geventhttpclient.response import HTTPConnectionClosed, HTTPParseError

from loadtest.errors import ServerError
from loadtest.sample import Sample
from loadtest.settings import RunSettings
from loadtest.sse import StreamError, StreamReader, http_error
from loadtest.workloads import Conversation, Turn

_MOST_CONNECTIONS = 65_536
_CONNECT_S = 10.0


class Player:
    """One endpoint under load.

    ``finished`` is called with each sample as it ends, failed ones too. ``begun`` is the moment the load began.
    """

    def __init__(self, settings: RunSettings, api_key: str | None, finished: Callable[[Sample], None]) -> None:
        self.settings, self._finished = settings, finished
        self.begun = time.perf_counter()
        self.open: set[Sample] = set()  # not ended yet
        parts = urlsplit(settings.api)
        self._path = parts.path
        self._headers = {"Content-Type": "application/json", "Accept": "text/event-stream"}
        if api_key:
            self._headers["Authorization"] = f"Bearer {api_key}"
        self._http = HTTPClient.from_url(
            f"{parts.scheme}://{parts.netloc}",
            concurrency=_MOST_CONNECTIONS,
            connection_timeout=_CONNECT_S,
            network_timeout=settings.timeout_s,
        )
        self.model = settings.model or ""

    def now(self) -> float:
        """Seconds since the load began."""
        return time.perf_counter() - self.begun

    def find_model(self) -> None:
        """Ask the server for the name of its first model, where none is set; a server that does not answer is told.

        Raises:
            ServerError: it does not answer, or lists no model.
        """
        try:
            response = self._http.get(f"{self._path}/models", headers=self._headers)
            status, body = response.status_code, bytes(response.read())
        except Exception as error:
            raise ServerError(
                f"{self.settings.url} does not answer ({error or type(error).__name__}); "
                "start the server, or correct --url"
            ) from None
        if status != 200:
            raise ServerError(
                f"{self.settings.url}/models: {http_error(status, body)}; correct --url (it ends in /v1) or the API key"
            )
        try:
            listed = [model["id"] for model in json.loads(body)["data"]]
        except (ValueError, KeyError, TypeError):
            raise ServerError(f"{self.settings.url}/models lists no models; --url must end in /v1") from None
        if not listed:
            raise ServerError(f"{self.settings.url} serves no model")
        if self.model and self.model not in listed:
            raise ServerError(f"the server has no model {self.model!r}; it has {', '.join(listed)}")
        self.model = self.model or listed[0]

    def play(self, conversation: Conversation, due_s: float, going_on: Callable[[], bool]) -> None:
        """A conversation from its first turn to its last; it ends early where ``going_on`` says so or a turn fails."""
        history: list[dict[str, str]] = []
        for number, turn in enumerate(conversation.turns):
            if number and not going_on():
                return
            history += turn.messages
            sample = Sample(conversation.name, number, due_s, late_s=max(0.0, self.now() - due_s))
            answer = self._ask(sample, self._body(conversation, turn, history))
            if answer is None:
                return
            history.append({"role": "assistant", "content": answer})
            if number + 1 < len(conversation.turns):
                pause = self.settings.think_s
                if pause:
                    gevent.sleep(pause)
            due_s = self.now()

    def abandon(self) -> None:
        """Requests that have not ended count as failed."""
        for sample in list(self.open):
            sample.end_s = self.now() - sample.start_s
            sample.error = "not finished when the run ended"
            self._end(sample)

    # --- parts

    def _body(self, conversation: Conversation, turn: Turn, history: list[dict[str, str]]) -> dict[str, Any]:
        settings = self.settings
        body: dict[str, Any] = {"model": self.model, "stream": True, "stream_options": {"include_usage": True}}
        body |= conversation.fields
        caps = [cap for cap in (turn.max_tokens, settings.max_tokens) if cap is not None]
        if caps:
            body["max_tokens"] = min(caps)
        if settings.server == "racer":
            body["return_stats"] = True
            for name in ("drafts", "budget"):
                if (value := getattr(settings, name)) is not None:
                    body[name] = value
        if conversation.prompt is not None:
            return body | {"prompt": conversation.prompt}
        return body | {"messages": history}

    def _ask(self, sample: Sample, body: dict[str, Any]) -> str | None:
        """The answer's text; None if the request failed, which the sample then says."""
        path = "completions" if "prompt" in body else "chat/completions"
        reader = StreamReader(sample)
        origin = self.begun + sample.start_s
        self.open.add(sample)
        try:
            with gevent.Timeout(self.settings.timeout_s):
                self._exchange(f"{self._path}/{path}", json.dumps(body).encode(), reader, origin)
        except StreamError as error:
            sample.error = str(error)
        except gevent.Timeout:
            sample.error = f"no whole answer within {self.settings.timeout_s:g} s"
        except OSError as error:
            sample.error = f"{type(error).__name__}: {error.strerror or error}"
        except (HTTPConnectionClosed, HTTPParseError):
            sample.error = "the connection was closed in the middle of the answer"
        except Exception as error:  # whatever a server may send: a request fails, never the run
            sample.error = f"{type(error).__name__}: {error}"
        if sample not in self.open:  # abandoned meanwhile
            return None
        sample.end_s = time.perf_counter() - origin
        self._end(sample)
        return reader.text if sample.error is None else None

    def _exchange(self, path: str, body: bytes, reader: StreamReader, origin: float) -> None:
        response = self._http.post(path, body=body, headers=self._headers)
        try:
            if response.status_code != 200:
                raise StreamError(http_error(response.status_code, bytes(response.read())))
            while line := response.readline(b"\n"):
                reader.line(bytes(line), time.perf_counter() - origin)
            rest = bytes(response.read())  # a last line without an end
            if rest:
                reader.line(rest, time.perf_counter() - origin)
            reader.finish()
        finally:
            response.release()

    def _end(self, sample: Sample) -> None:
        self.open.discard(sample)
        self._finished(sample)
