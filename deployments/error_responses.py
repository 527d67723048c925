"""Errors as the API answers them: OpenAI's object, one sentence that names the field."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel
from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse, Response

from deployments.errors import ApiError

_TYPE_NAMES = {"str", "int", "float", "bool", "list", "dict"}


class ErrorDetail(BaseModel):
    """What went wrong."""

    message: str
    type: str
    param: str | None
    code: str | None


class ErrorBody(BaseModel):
    """OpenAI's error object."""

    error: ErrorDetail


def add_error_handlers(api: FastAPI) -> None:
    """Answer whatever a route raises in OpenAI's form."""

    async def on_api_error(request: Request, error: Exception) -> Response:
        assert isinstance(error, ApiError)
        return _error_response(error)

    async def on_invalid(request: Request, error: Exception) -> Response:
        assert isinstance(error, RequestValidationError)
        return _error_response(validation_error(error))

    async def on_http(request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        known = {
            404: ("there is nothing at this path", "not_found"),
            405: ("this path does not take this method", "method_not_allowed"),
            413: (str(error.detail), "too_large"),
        }
        message, code = known.get(error.status_code, (str(error.detail), "invalid_request"))
        return _error_response(ApiError(error.status_code, message, code=code), dict(error.headers or {}))

    async def on_other(request: Request, error: Exception) -> Response:
        return _error_response(ApiError(500, "an error of the server; see its log", code="internal_error"))

    handlers: dict[type[Exception], Callable[[Request, Exception], Awaitable[Response]]] = {
        ApiError: on_api_error,
        RequestValidationError: on_invalid,
        HTTPException: on_http,
        Exception: on_other,
    }
    for kind, handler in handlers.items():
        api.add_exception_handler(kind, handler)


def _error_response(error: ApiError, headers: dict[str, str] | None = None) -> Response:
    return JSONResponse(error.body(), error.status, headers=(headers or {}) | error.headers())


def validation_error(error: RequestValidationError) -> ApiError:
    """The first of a body's problems, in one sentence that names the field."""
    first = error.errors()[0]
    where = [part for part in first["loc"] if part not in ("body", "header", "query", "path")]
    param = _param(where)
    kind, message = first["type"], str(first["msg"]).removeprefix("Value error, ")
    if kind == "json_invalid":
        return ApiError(400, f"the body is not JSON: {first.get('ctx', {}).get('error', message)}", code="invalid_json")
    if kind == "extra_forbidden":
        return ApiError(
            400, f"the field {param!r} is not supported; leave it out", code="unsupported_field", param=param
        )
    if kind == "missing":
        said = f"the field {param!r} is missing" if param else "a JSON object is expected as body"
        return ApiError(400, said, code="missing_field", param=param)
    said = message[:1].lower() + message[1:]
    return ApiError(400, f"{param}: {said}" if param else said, code="invalid_value", param=param)


def _param(where: list[Any]) -> str | None:
    """The field's path as a client writes it: ``messages[0].role``. Names of union members are no part of it."""
    path = ""
    for part in where:
        if isinstance(part, int):
            path += f"[{part}]"
        elif part.isidentifier() and part not in _TYPE_NAMES and not part[0].isupper():
            path += f".{part}" if path else part
        elif path:
            break
    return path or None
