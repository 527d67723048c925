"""Configuration: what is wrong is one sentence that names the field; the files that come along are right."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from deployments.commands.serve import fitting
from deployments.config import expand_environment, parse_config
from deployments.errors import ApiError, ConfigError
from deployments.files import CONFIGS, read_config
from deployments.keys import KeyRing, load_keys


@pytest.mark.parametrize("path", sorted(CONFIGS.glob("*.yaml")), ids=lambda path: path.stem)
def test_files_that_come_along_are_valid(path: Path) -> None:
    config = read_config(path)
    assert config.models and config.store.url


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"modles": []}, ["args", "'modles'"]),
        ({"models": []}, ["models"]),
        ({"models": [{"nmae": "x"}]}, ["models.0.nmae"]),
        ({"models": [{"name": "a b"}]}, ["models.0.name", "letters"]),
        ({"models": [{"name": "a"}, {"name": "a"}]}, ["'a'", "twice"]),
        ({"models": [{"engine": {"budgets": 3}}]}, ["models.0.engine", "budgets"]),
        ({"models": [{"engine": {"budget": 0}}]}, ["budget", "1024"]),
        ({"models": [{"autoscaling": {"min_replicas": 3, "max_replicas": 2}}]}, ["min_replicas=3", "max_replicas=2"]),
        ({"limits": {"timeout_s": 0}}, ["limits.timeout_s"]),
        ({"store": {"learn": "some"}}, ["store.learn"]),
        ({"store": {"url": "htp://x"}}, ["args: store.url: 'htp://x' is no URL of a store; use redis://"]),
        ({"store": {"url": "redis://u:$PASSWORD@$HOST:$PORT/$DB?x=1"}}, ["store.url", "the option 'x'"]),
        ({"store": {"url": "redis://h", "namespace": "a:b"}}, ["store.namespace='a:b'", "is not a name"]),
        ([], ["args", "mapping", "list"]),
    ],
)
def test_wrong_settings_are_one_sentence(values: Any, words: list[str]) -> None:
    with pytest.raises(ConfigError) as wrong:
        parse_config(values)
    text = str(wrong.value)
    assert "\n" not in text and all(word in text for word in words), text


@pytest.mark.parametrize(
    "url",
    ["$STORE", "${STORE}", "redis://u:$PASSWORD@$HOST:$PORT/$DB", "rediss+cluster://u:${P}@a:1,$B?ssl_ca_certs=$C"],
)
def test_an_address_may_hold_variables_anywhere(url: str) -> None:
    assert parse_config({"store": {"url": url}}).store.url == url


def test_a_wrong_address_shows_no_password() -> None:
    with pytest.raises(ConfigError) as wrong:
        parse_config({"store": {"url": "redis://me:hunter2@host:port"}})
    assert "hunter2" not in str(wrong.value) and "'host:port'" in str(wrong.value)


def test_a_key_with_a_wrong_namespace_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RACER_API_KEYS", '[{"key": "a-long-secret", "namespace": "a:b"}]')
    with pytest.raises(ConfigError, match=r"RACER_API_KEYS: key 0\.namespace: namespace 'a:b' is not a name") as wrong:
        load_keys(parse_config({}))
    assert "secret" not in str(wrong.value)


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("applications: [", "not YAML"),
        ("models: []", "applications"),
        ("applications: [{import_path: other:app}]", "import_path"),
        ("applications: [{import_path: 'deployments.app:build_app', args: 5}]", "args"),
        ("applications: [{import_path: 'deployments.app:build_app', args: {x: 1}}]", "'x'"),
    ],
)
def test_wrong_files_are_one_sentence(tmp_path: Path, text: str, word: str) -> None:
    path = tmp_path / "c.yaml"
    path.write_text(text)
    with pytest.raises(ConfigError) as wrong:
        read_config(path)
    assert str(path) in str(wrong.value) and word in str(wrong.value) and "\n" not in str(wrong.value)
    with pytest.raises(ConfigError, match="cannot be read"):
        read_config(tmp_path / "none.yaml")


def test_environment_is_put_in(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REDIS_PASSWORD", "pw")
    assert expand_environment("redis://u:$REDIS_PASSWORD@h") == expand_environment("redis://u:${REDIS_PASSWORD}@h")
    assert expand_environment("redis://u:${REDIS_PASSWORD}@h") == "redis://u:pw@h"
    with pytest.raises(ConfigError, match="NOT_THERE is not set"):
        expand_environment("redis://$NOT_THERE")


def test_keys_come_from_file_and_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "keys.yaml"
    path.write_text("- {key: secret-one, namespace: a}\n")
    monkeypatch.setenv("RACER_API_KEYS", "secret-two,secret-three")
    keys = load_keys(parse_config({"keys_file": str(path)}))
    assert [key.key for key in keys] == ["secret-one", "secret-two", "secret-three"]
    monkeypatch.setenv("RACER_API_KEYS", json.dumps([{"key": "secret-two", "max_concurrent": 2}]))
    assert load_keys(parse_config({}))[0].max_concurrent == 2
    monkeypatch.delenv("RACER_API_KEYS")
    assert load_keys(parse_config({})) == []
    assert KeyRing([]).identify(None) is None


@pytest.mark.parametrize("text", ["", "[]", "{", "- {key: short}", "- {key: long-enough, more: 1}", "- 5"])
def test_wrong_key_files_never_show_what_they_hold(tmp_path: Path, text: str) -> None:
    path = tmp_path / "keys.yaml"
    path.write_text(text)
    with pytest.raises(ConfigError) as wrong:
        load_keys(parse_config({"keys_file": str(path)}))
    assert str(path) in str(wrong.value) and "long-enough" not in str(wrong.value) and "short" not in str(wrong.value)


def test_every_key_is_compared_in_constant_time(monkeypatch: pytest.MonkeyPatch) -> None:
    compared: list[bytes] = []

    def compare(a: bytes, b: bytes) -> bool:
        compared.append(a)
        return a == b

    monkeypatch.setattr("deployments.keys.hmac.compare_digest", compare)
    keys = load_keys(parse_config({})) + [key for text in ("secret-one", "secret-two") for key in [_key(text)]]
    found = KeyRing(keys).identify("Bearer secret-one")
    assert found is not None and found.key == "secret-one" and len(compared) == 2
    with pytest.raises(ApiError):
        KeyRing(keys).identify("Bearer nothing")


def _key(text: str) -> Any:
    from deployments.config import KeyConfig

    return KeyConfig(key=text)


def test_demo_fits_the_machine() -> None:
    assert fitting(2, 24 << 30) == (1, 2)
    assert fitting(1, 24 << 30) == (1, 1)
    assert fitting(4, 24 << 30) == (2, 2)
    assert fitting(16, 4 << 30) == (1, 16)
