"""What a URL's options say is done: certificates of both sides, and a login of Sentinel's own."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from urllib.parse import quote

import pytest

from datastore.connect import open_store
from datastore.errors import StoreUnavailableError
from tests.datastore.faulty import LIMITS, TEXT, OwnRedis
from tests.datastore.servers import Server, certificate, free_ports


def continues(url: str) -> bool:
    """Teaches the store at ``url`` and asks it."""
    store = open_store(url, namespace="logins", fingerprint="abcd", limits=LIMITS)
    try:
        store.learn([TEXT])
        return store.lookup([TEXT[:50]], 5.0)[0][0].tokens[0] == 150
    finally:
        store.close()


@pytest.fixture
def own_tls(tmp_path: Path) -> Callable[..., Server]:
    """``own_tls(*options)``: a server with a certificate of its own, ``folder/cert.pem``, stopped by the caller."""

    def start(*options: str) -> Server:
        server = Server(tmp_path, free_ports(1)[0], *certificate(tmp_path), *options, tls=True)
        server.start()
        return server

    return start


def test_a_server_that_asks_clients_for_a_certificate(own_tls: Callable[..., Server]) -> None:
    server = own_tls("--tls-auth-clients", "yes")
    try:
        authority, key = (quote(str(server.folder / name)) for name in ("cert.pem", "key.pem"))
        trusted = f"{server.url}?ssl_ca_certs={authority}"
        assert continues(f"{trusted}&ssl_certfile={authority}&ssl_keyfile={key}")
        with pytest.raises(StoreUnavailableError):
            continues(trusted)
    finally:
        server.kill()


def test_an_unknown_authority_is_refused_unless_nobody_asks(own_tls: Callable[..., Server]) -> None:
    server = own_tls()
    try:
        with pytest.raises(StoreUnavailableError, match="certificate"):
            continues(server.url)
        with pytest.raises(StoreUnavailableError, match="certificate"):
            continues(f"{server.url}?ssl_cert_reqs=required")
        assert continues(f"{server.url}?ssl_cert_reqs=none")
    finally:
        server.kill()


@pytest.mark.parametrize(
    ("rights", "login"),
    [
        ("requirepass watch@1", "sentinel_password=watch%401"),
        (
            "user watcher on >watch allchannels +@all\nuser default off",
            "sentinel_username=watcher&sentinel_password=watch",
        ),
    ],
    ids=["password", "user"],
)
def test_sentinel_has_a_login_of_its_own(own_redis: OwnRedis, tmp_path: Path, rights: str, login: str) -> None:
    primary = own_redis("--requirepass", "main")
    watch = f"sentinel monitor mymaster 127.0.0.1 {primary.port} 1\nsentinel auth-pass mymaster main\n{rights}\n"
    sentinel = Server(tmp_path / "sentinel", free_ports(1)[0], sentinel_config=watch)
    sentinel.start()
    try:
        url = f"redis+sentinel://:main@127.0.0.1:{sentinel.port}/mymaster"
        assert continues(f"{url}?{login}")
        for wrong in (url, f"{url}?sentinel_password=other"):
            with pytest.raises(StoreUnavailableError):
                continues(wrong)
        with pytest.raises(StoreUnavailableError):
            continues(f"{url.replace(':main@', '')}?{login}")
    finally:
        sentinel.kill()
