"""What a store's URL says. Nothing is loaded for it and nothing connected: a mistake is told before anything is begun.

    redis://[user:password@]host[:port][/db]     a single server; rediss:// with TLS; valkey:// and valkeys:// alike
    redis+sentinel://[user:password@]host[:port],host[:port].../service[/db]     rediss+sentinel:// with TLS
    redis+cluster://[user:password@]host[:port],host[:port]...                   rediss+cluster:// with TLS
    memory://                                    in this process

Options follow "?": ``ssl_ca_certs``, ``ssl_certfile`` and ``ssl_keyfile`` are paths, ``ssl_cert_reqs`` is "required" or
"none"; Sentinel's own ``sentinel_username`` and ``sentinel_password``.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any
from urllib.parse import SplitResult, parse_qsl, unquote, urlsplit

from datastore.errors import StoreConfigError

_KINDS = {"redis": "redis", "rediss": "rediss", "valkey": "redis", "valkeys": "rediss"}
_TLS_OPTIONS = {"ssl_ca_certs", "ssl_certfile", "ssl_keyfile", "ssl_cert_reqs"}
_SENTINEL_OPTIONS = {"sentinel_username", "sentinel_password"}


@dataclass(frozen=True)
class Address:
    """Where servers are, and how one speaks to them.

    kind     "" for a single server, "sentinel", "cluster", or "memory": no server at all
    hosts    (host, port) of each server, or of each Sentinel
    db       number of the database
    service  the name under which Sentinels know the primary
    login    username and password
    tls_options, sentinel_login   what stood behind "?", by the names redis-py has for it
    """

    kind: str
    tls: bool = False
    hosts: tuple[tuple[str, int], ...] = ()
    db: int = 0
    service: str = ""
    login: dict[str, Any] = field(default_factory=dict)
    tls_options: dict[str, str] = field(default_factory=dict)
    sentinel_login: dict[str, str] = field(default_factory=dict)


def parse(url: str) -> Address:
    """The address that ``url`` names.

    Raises:
        StoreConfigError: it names none; the sentence shows no password.
    """
    try:
        parts = urlsplit(url)
    except ValueError as error:  # brackets around an address that is none; a password may stand beside them
        raise StoreConfigError(f"the store's URL cannot be read ({error}); write redis://host:port") from None
    if parts.scheme == "memory":
        return Address("memory")
    scheme, _, kind = parts.scheme.partition("+")
    if scheme not in _KINDS or kind not in ("", "sentinel", "cluster"):
        raise StoreConfigError(
            f"{_shown(parts)!r} is no URL of a store; use redis://, rediss://, valkey://, redis+sentinel://,"
            " redis+cluster:// or memory://"
        )
    tls = _KINDS[scheme] == "rediss"
    known = (_TLS_OPTIONS if tls else set()) | (_SENTINEL_OPTIONS if kind == "sentinel" else set())
    options = dict(parse_qsl(parts.query))
    if unknown := sorted(options.keys() - known):
        raise StoreConfigError(f"{_shown(parts)!r} does not know the option {unknown[0]!r}; it takes {sorted(known)}")
    login, _, hosts = parts.netloc.rpartition("@")
    user, _, password = login.partition(":")
    path = [part for part in parts.path.split("/") if part]
    if kind == "sentinel" and not path:
        raise StoreConfigError("a redis+sentinel:// URL names the service behind the hosts, as in host:26379/mymaster")
    service = path.pop(0) if kind == "sentinel" else ""
    return Address(
        kind,
        tls,
        tuple(_host(host, 26379 if kind == "sentinel" else 6379, parts) for host in hosts.split(",")),
        0 if kind == "cluster" else _db(path),
        service,
        {"username": unquote(user) or None, "password": unquote(password) or None} if login else {},
        {key: value for key, value in options.items() if key in _TLS_OPTIONS},
        {key.removeprefix("sentinel_"): value for key, value in options.items() if key in _SENTINEL_OPTIONS},
    )


def _host(text: str, default: int, parts: SplitResult) -> tuple[str, int]:
    try:
        one = urlsplit("//" + text)
        return one.hostname or "localhost", one.port or default
    except ValueError as error:
        raise StoreConfigError(f"{text!r} in {_shown(parts)!r} is not host or host:port") from error


def _db(path: list[str]) -> int:
    try:
        return int(path[0]) if path else 0
    except ValueError as error:
        raise StoreConfigError(f"the database {path[0]!r} in the store's URL is not a number") from error


def _shown(parts: SplitResult) -> str:
    """The URL without its password."""
    login, at, hosts = parts.netloc.rpartition("@")
    return f"{parts.scheme}://{login.partition(':')[0]}{':***' if ':' in login else ''}{at}{hosts}{parts.path}"
