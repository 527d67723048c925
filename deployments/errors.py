"""Errors as the endpoint tells them: OpenAI's object and the right status.

DeploymentError
├── ConfigError    a configuration file or a setting is wrong; its text is one sentence
└── ApiError       one request cannot be served; becomes a response
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


class DeploymentError(Exception):
    """Base of every error this package raises on purpose."""


class ConfigError(DeploymentError):
    """A configuration cannot be used; ``str()`` is one sentence: what, where, how to fix it."""


_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    429: "rate_limit_error",
    499: "client_closed_request",
    500: "server_error",
    503: "service_unavailable",
    504: "timeout",
}


@dataclass
class ApiError(DeploymentError):
    """A request that is refused or fails.

    status   HTTP status
    message  one sentence for the caller
    code     a word programs can test for
    param    the field of the request that is at fault
    retry_after_s  seconds after which a retry may succeed, for the header of that name
    """

    status: int
    message: str
    code: str | None = None
    param: str | None = None
    retry_after_s: int | None = None

    def __str__(self) -> str:
        return self.message

    def body(self) -> dict[str, Any]:
        """OpenAI's error object."""
        kind = _TYPES.get(self.status, "invalid_request_error" if self.status < 500 else "server_error")
        return {"error": {"message": self.message, "type": kind, "param": self.param, "code": self.code}}

    def headers(self) -> dict[str, str]:
        """Headers beside the body."""
        found: dict[str, str] = {}
        if self.retry_after_s is not None:
            found["Retry-After"] = str(self.retry_after_s)
        if self.status == 401:
            found["WWW-Authenticate"] = "Bearer"
        return found

    def to_wire(self) -> dict[str, Any]:
        """As plain values: an error crosses processes as data, so that no library wraps it on its way."""
        return {"status": self.status, "message": self.message, "code": self.code, "param": self.param} | (
            {} if self.retry_after_s is None else {"retry_after_s": self.retry_after_s}
        )

    @classmethod
    def from_wire(cls, values: Mapping[str, Any]) -> ApiError:
        """The inverse of :meth:`to_wire`."""
        return cls(**values)
