"""The exceptions a user of the store can meet. The client that feeds an engine raises none of them.

StoreError
├── UserError                   the caller can fix it; its text is one sentence: what, where, how to fix it
│   ├── StoreConfigError        a setting or a URL is wrong, or settings contradict each other
│   └── InputError              a file is missing, empty or malformed, or was made for another tokenizer
├── StoreUnavailableError       the server cannot be reached, refuses us, or cannot take what was sent
│   └── StoreTimeoutError       it did not answer in time
└── StoreDataError              what the server holds, or was handed to load(), is not what this schema writes
"""

from __future__ import annotations


class StoreError(Exception):
    """Base of every error this package raises on purpose."""


class UserError(StoreError):
    """A mistake the caller can mend. ``str()`` is one sentence fit for a terminal."""


class StoreConfigError(UserError):
    """A setting or a URL is wrong, or settings contradict each other."""


class InputError(UserError):
    """An input or output file cannot be used; the message names the file and, where it has one, the line."""


class StoreUnavailableError(StoreError):
    """The server cannot be reached, refuses us (password, permission, read-only), or is out of memory."""


class StoreTimeoutError(StoreUnavailableError):
    """The server did not answer within the deadline. The connection that waited was closed."""


class StoreDataError(StoreError):
    """Bytes that this schema did not write."""
