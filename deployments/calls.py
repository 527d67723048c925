"""What an ingress hands to a replica, and what comes back: plain values, so that they cross processes cheaply."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

from deployments.schema import ApiRequest, ChatRequest, CompletionRequest

Learn = Literal["all", "answers", "none"]


@dataclass(frozen=True)
class Call:
    """One request on its way to a replica.

    conversation  what requests have in common that should go to the same replica
    namespace     of the store; None: the store's default
    deadline_s    seconds that the answer may take; first_token_s the same for its first token
    """

    request_id: str
    kind: Literal["chat", "completion"]
    body: dict[str, Any]
    conversation: str
    namespace: str | None = None
    learn: Learn | None = None
    deadline_s: float | None = None
    first_token_s: float | None = None

    @classmethod
    def of(cls, request: ApiRequest, request_id: str, **others: Any) -> Call:
        """The call for a request that was checked."""
        kind: Literal["chat", "completion"] = "chat" if isinstance(request, ChatRequest) else "completion"
        body = request.model_dump(mode="json", exclude_unset=True)
        return cls(request_id, kind, body, request.conversation(), **others)

    def request(self) -> ApiRequest:
        """The request again."""
        model = ChatRequest if self.kind == "chat" else CompletionRequest
        return model.model_validate(self.body)


class Piece(NamedTuple):
    """A part of an answer: bytes for the client, or the error that ends it.

    ``first``: the answer's first token is in it; ``tokens``: how many it brings.
    """

    data: bytes = b""
    error: dict[str, Any] | None = None
