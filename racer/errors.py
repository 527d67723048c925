"""The exceptions a user of the engine can meet.

RacerError
├── UserError                 the caller can fix it; its text is one sentence: what, where, how to fix it
│   ├── ConfigError           a setting is wrong, or settings contradict each other
│   ├── ModelError            the model cannot be found, loaded or verified
│   │   └── UnsupportedModelError   its state cannot be rolled back, or it bypasses the attention interface
│   ├── InputError            an input or output file is missing, empty or malformed
│   └── InvalidRequestError   one request is wrong; others go on
│       └── ContextLengthError     the prompt, or prompt and answer, exceed the context
├── LogitsError               no next token follows from what the model computed; the request ends, others go on
├── EngineDeadError           the engine's thread has died; no request can be served any more
└── EngineDrainingError       the engine is shutting down and takes no new request
"""


class RacerError(Exception):
    """Base of every error this package raises on purpose."""


class UserError(RacerError):
    """A mistake the caller can mend. ``str()`` is one sentence fit for a terminal or an HTTP body."""


class ConfigError(UserError):
    """A setting is out of range, unknown, or contradicts another one."""


class ModelError(UserError):
    """The model cannot be found or loaded."""


class UnsupportedModelError(ModelError):
    """The model keeps state that a rejected draft would leave behind, or bypasses the attention interface."""


class InputError(UserError):
    """An input or output file cannot be used; the message names the file and, where it has one, the line."""


class InvalidRequestError(UserError):
    """One request cannot be served as it stands.

    ``param`` names the offending field, so that an HTTP layer can report it.
    """

    def __init__(self, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.param = param


class ContextLengthError(InvalidRequestError):
    """Prompt, or prompt and requested answer, are longer than the context or than the cache can ever hold."""


class LogitsError(RacerError):
    """The logits name no next token: they are not finite, or every token is forbidden."""


class EngineDeadError(RacerError):
    """The engine's decode thread has ended with an error; every open request was failed with it."""


class EngineDrainingError(RacerError):
    """The engine is draining: open requests finish, new ones are refused."""
