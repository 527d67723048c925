from __future__ import annotations

import pytest

from datastore.connect import open_store
from datastore.errors import StoreConfigError
from datastore.limits import Limits


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("http://localhost", "no URL of a store; use redis://"),
        ("redis+other://localhost", "no URL of a store"),
        ("localhost:6379", "no URL of a store"),
        ("redis://localhost:port", "not host or host:port"),
        ("redis://localhost/first", "'first' in the store's URL is not a number"),
        ("redis+sentinel://localhost:26379", "names the service behind the hosts"),
        ("redis://localhost?ssl_ca_certs=x", "does not know the option 'ssl_ca_certs'"),
        ("rediss://localhost?verify=no", "does not know the option 'verify'; it takes"),
    ],
)
def test_a_wrong_url_is_refused_in_a_sentence(url: str, says: str) -> None:
    with pytest.raises(StoreConfigError) as raised:
        open_store(url, namespace="default", fingerprint="abcd")
    assert says in str(raised.value)
    assert "\n" not in str(raised.value)


def test_a_password_is_never_shown() -> None:
    with pytest.raises(StoreConfigError) as raised:
        open_store("redis://me:s3cret@localhost?what=ever", namespace="default", fingerprint="abcd")
    assert "s3cret" not in str(raised.value)
    assert "me:***@localhost" in str(raised.value)


@pytest.mark.parametrize("namespace", ["", "a:b", "a{b", "a}", "a*", "ü", "a b", "x" * 65, "a\n"])
def test_a_namespace_that_could_reach_into_another_is_refused(namespace: str) -> None:
    with pytest.raises(StoreConfigError, match="is not a name"):
        open_store("memory://", namespace=namespace, fingerprint="abcd")


@pytest.mark.parametrize("fingerprint", ["", "abc", "ABCD", "ab:cd", "*" * 8])
def test_a_fingerprint_is_hexadecimal(fingerprint: str) -> None:
    with pytest.raises(StoreConfigError, match="fingerprint"):
        open_store("memory://", namespace="default", fingerprint=fingerprint)


@pytest.mark.parametrize("bad", [{"contexts": 0}, {"contexts": 1 << 40}, {"connections": 0}, {"write_s": -1.0}])
def test_limits_out_of_range_are_refused(bad: dict[str, float]) -> None:
    with pytest.raises(StoreConfigError, match=next(iter(bad))):
        Limits(**bad)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("contexts", "bits"), [(1 << 11, 4), (1 << 23, 16), ((1 << 23) + 1, 16), ((1 << 23) + 128, 17)]
)
def test_buckets_follow_from_contexts(contexts: int, bits: int) -> None:
    assert Limits(contexts=contexts).bucket_bits == bits
