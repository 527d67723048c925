"""What can go wrong, as one sees at a glance.

LoadTestError
├── UserError     a mistake in options or files; the sentence says what, where and how to mend it (exit code 2)
└── ServerError   a server that was to be measured does not start or does not answer (exit code 2)
"""

from __future__ import annotations


class LoadTestError(Exception):
    """Any of the errors below."""


class UserError(LoadTestError):
    """A mistake in what the user gave."""


class ServerError(LoadTestError):
    """A server does not start, or answers no request."""
