"""API keys: who may call, under which namespace, and how much at once."""

from __future__ import annotations

import hashlib
import hmac
import json
import os
from collections import Counter
from pathlib import Path
from typing import Any

import yaml
from pydantic import TypeAdapter, ValidationError

from deployments.config import AppConfig, KeyConfig
from deployments.errors import ApiError, ConfigError

_KEYS: TypeAdapter[list[KeyConfig]] = TypeAdapter(list[KeyConfig])


def load_keys(config: AppConfig) -> list[KeyConfig]:
    """The keys of the configured file and environment variable; none at all means that everybody may call.

    Raises:
        ConfigError: the file cannot be read, or does not hold a list of keys.
    """
    keys: list[KeyConfig] = []
    if config.keys_file is not None:
        try:
            text = Path(config.keys_file).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"keys_file {config.keys_file}: cannot be read ({error})") from None
        keys += _parse(text, f"keys_file {config.keys_file}")
        if not keys:
            raise ConfigError(f"keys_file {config.keys_file}: holds no key, which would open the endpoint to everybody")
    if (text := os.environ.get(config.keys_env, "").strip()) != "":
        where = f"environment variable {config.keys_env}"
        keys += _parse(text, where) if text.startswith("[") else _plain(text, where)
    return keys


def _plain(text: str, where: str) -> list[KeyConfig]:
    return _validated([{"key": key.strip()} for key in text.split(",") if key.strip()], where)


def _parse(text: str, where: str) -> list[KeyConfig]:
    try:
        values = json.loads(text) if text.lstrip().startswith("[") else yaml.safe_load(text)
    except (ValueError, yaml.YAMLError):
        raise ConfigError(f"{where}: is neither YAML nor JSON") from None  # never with its text, which holds secrets
    return _validated(values or [], where)


def _validated(values: Any, where: str) -> list[KeyConfig]:
    try:
        return _KEYS.validate_python(values)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        field, message = ".".join(map(str, first["loc"])), first["msg"].removeprefix("Value error, ")
        raise ConfigError(f"{where}: key {field or 'list'}: {message[0].lower()}{message[1:]}") from None


class KeyRing:
    """Checks keys and counts the open requests of each."""

    def __init__(self, keys: list[KeyConfig]) -> None:
        self._keys = keys
        self._open: Counter[int] = Counter()

    def identify(self, authorization: str | None) -> KeyConfig | None:
        """The key that the header carries; None where no keys are configured.

        Every key is compared, each in constant time, so that timing tells nothing.

        Raises:
            ApiError: 401, the header carries no known key.
        """
        if not self._keys:
            return None
        scheme, _, secret = (authorization or "").partition(" ")
        found: KeyConfig | None = None
        for key in self._keys:
            if hmac.compare_digest(key.key.encode(), secret.strip().encode()):
                found = key
        if found is None or scheme.lower() != "bearer":
            said = "the API key is not known" if secret else "an API key is needed"
            raise ApiError(401, f"{said}; send it as 'Authorization: Bearer KEY'", code="invalid_api_key")
        return found

    def of_owner(self, owner: str) -> KeyConfig | None:
        """The key whose name :func:`owner_of` gives; None where no keys are configured.

        Raises:
            ApiError: 401, there is no such key any more.
        """
        for key in self._keys:
            if owner_of(key) == owner:
                return key
        if self._keys or owner:
            raise ApiError(401, "the API key that this belongs to is not known any more", code="invalid_api_key")
        return None

    def check_model(self, key: KeyConfig | None, model: str) -> bool:
        """Whether the key may see this model."""
        return key is None or key.models is None or model in key.models

    def enter(self, key: KeyConfig | None) -> None:
        """Count an open request.

        Raises:
            ApiError: 429, the key has as many as it may.
        """
        if key is None:
            return
        if key.max_concurrent is not None and self._open[id(key)] >= key.max_concurrent:
            raise ApiError(
                429,
                f"this key may have {key.max_concurrent} requests open at once; wait for one to end",
                code="rate_limit_exceeded",
                retry_after_s=1,
            )
        self._open[id(key)] += 1

    def leave(self, key: KeyConfig | None) -> None:
        """The request has ended."""
        if key is not None:
            self._open[id(key)] -= 1


def owner_of(key: KeyConfig | None) -> str:
    """A name for what belongs to a key, from which nobody can tell the key; empty where there are no keys."""
    return "" if key is None else hashlib.sha256(key.key.encode()).hexdigest()[:32]
