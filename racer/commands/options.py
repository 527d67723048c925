"""Command-line options made from the fields of EngineConfig and SamplingParams.

A field's description is the option's help, its type and limits check the value: one place says what is allowed.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable, Iterable
from enum import StrEnum
from typing import Annotated, Any, get_args

from pydantic import TypeAdapter, ValidationError
from pydantic.fields import FieldInfo

from racer.config import EngineConfig, Validated
from racer.types import SamplingParams

_RENAMED = {"top_k": "--logits-top-k"}
ENGINE_FLAGS = {name: _RENAMED.get(name, "--" + name.replace("_", "-")) for name in EngineConfig.model_fields}
"""Flag of each engine setting. ``--top-k`` is sampling's."""

SAMPLING_FLAGS = {
    name: "--" + name.replace("_", "-")
    for name in (
        "max_tokens",
        "min_tokens",
        "temperature",
        "top_p",
        "top_k",
        "min_p",
        "repetition_penalty",
        "frequency_penalty",
        "presence_penalty",
        "stop",
        "ignore_eos",
    )
}
"""Flag of each sampling parameter. ``seed``, ``drafts`` and ``budget`` are the engine's flags."""

_FLAGS = ENGINE_FLAGS | SAMPLING_FLAGS
_SETTING = re.compile(rf"\b(?:({'|'.join(_FLAGS)})=|({'|'.join(name for name in _FLAGS if '_' in name)})\b)")


def with_flags(sentence: str) -> str:
    """An error with its settings named as on the command line: ``--cache-bytes 1`` instead of ``cache_bytes=1``.

    A name with an underscore is a setting wherever it stands, any other only before its value.
    """
    return _SETTING.sub(lambda match: f"{_FLAGS[match[1]]} " if match[1] else _FLAGS[match[2]], sentence)


def add_engine_options(
    parser: argparse.ArgumentParser, *, skip: Iterable[str] = (), aliases: dict[str, str] | None = None
) -> None:
    """Add a flag for each engine setting but ``skip``; ``aliases`` gives some a second flag."""
    group = parser.add_argument_group("engine")
    for name, flag in ENGINE_FLAGS.items():
        if name not in set(skip):
            alias = (aliases or {}).get(name)
            _add(group, EngineConfig, name, (alias, flag) if alias else (flag,), "engine")


def add_sampling_options(parser: argparse.ArgumentParser, *, skip: Iterable[str] = ()) -> None:
    """Add a flag for each sampling parameter but ``skip``."""
    group = parser.add_argument_group("sampling")
    for name, flag in SAMPLING_FLAGS.items():
        if name in set(skip):
            continue
        _add(group, SamplingParams, name, (flag,), "sampling")


def engine_config(args: argparse.Namespace, **changes: Any) -> EngineConfig:
    """The engine's settings: those given on the command line, ``changes`` on top."""
    return EngineConfig(**(_given(args, "engine") | changes))


def sampling_values(args: argparse.Namespace) -> dict[str, Any]:
    """The sampling parameters given on the command line."""
    return _given(args, "sampling")


def value_type(model: type[Validated], name: str) -> Callable[[str], Any]:
    """A converter for argparse that admits what field ``name`` of ``model`` admits."""
    return _converter(model.model_fields[name])


def comma_list(convert: Callable[[str], Any]) -> Callable[[str], list[Any]]:
    """A converter for ``a,b,c``; repeated values count once, empty ones are refused."""

    def parse(text: str) -> list[Any]:
        return list(dict.fromkeys(convert(part.strip()) for part in text.split(",")))

    return parse


def names_of(field_type: Any) -> list[str]:
    """The values an enumeration or a Literal admits; empty for other types."""
    if isinstance(field_type, type) and issubclass(field_type, StrEnum):
        return [member.value for member in field_type]
    options = get_args(field_type)
    return list(options) if options and all(isinstance(option, str) for option in options) else []


def _given(args: argparse.Namespace, prefix: str) -> dict[str, Any]:
    found = {}
    for dest, value in vars(args).items():
        owner, _, name = dest.partition(".")
        if owner == prefix and name:
            found[name] = tuple(value) if isinstance(value, list) else value
    return found


def _add(group: Any, model: type[Validated], name: str, flags: tuple[str, ...], prefix: str) -> None:
    field = model.model_fields[name]
    options: dict[str, Any] = {"dest": f"{prefix}.{name}", "default": argparse.SUPPRESS, "help": _help(field)}
    if field.annotation is bool:
        options["action"] = argparse.BooleanOptionalAction if field.default else "store_true"
    else:
        if field.annotation == tuple[str, ...]:
            options |= {"action": "append", "type": str, "metavar": "TEXT", "help": _help(field) + "; may be repeated"}
        else:
            names = names_of(field.annotation)
            options |= {"type": _converter(field), "metavar": "|".join(names) if names else _metavar(field)}
    group.add_argument(*flags, **options)


def _help(field: FieldInfo) -> str:
    text = (field.description or "").replace("%", "%%")
    if field.default in (None, False, ()) or field.annotation is bool:
        return text
    return f"{text} (default: {field.default})"


def _metavar(field: FieldInfo) -> str:
    kinds = {kind for kind in (field.annotation, *get_args(field.annotation)) if kind is not type(None)}
    words = [word for kind in kinds for word in names_of(kind)]
    return "|".join(["X" if float in kinds else "N" if int in kinds else "NAME", *words])


def _converter(field: FieldInfo) -> Callable[[str], Any]:
    allowed: Any = Annotated[field.annotation, field]  # made at run time, which a type checker cannot follow
    adapter: TypeAdapter[Any] = TypeAdapter(allowed)

    def convert(text: str) -> Any:
        try:
            return adapter.validate_python(text)
        except ValidationError as error:
            message = error.errors(include_url=False)[0]["msg"].removeprefix("Value error, ")
            raise argparse.ArgumentTypeError(f"{text!r} is not valid: {message[0].lower()}{message[1:]}") from None

    return convert
