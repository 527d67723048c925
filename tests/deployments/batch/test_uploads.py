"""What may be uploaded, by whom, how much of it, and what is left of uploads that were cut off."""

from __future__ import annotations

import os
import shutil
import socket
import time
from pathlib import Path

import httpx
import openai
import pytest

from deployments.config import KeyConfig
from tests.deployments.batch.test_http import client_of, served, upload
from tests.deployments.local import wait_until

FORM = (
    b'--x\r\nContent-Disposition: form-data; name="purpose"\r\n\r\nbatch\r\n'
    b'--x\r\nContent-Disposition: form-data; name="file"; filename="a.jsonl"\r\n\r\n'
)


def test_quota(tmp_path: Path) -> None:
    keys = [KeyConfig(key="key-of-one"), KeyConfig(key="key-of-two")]
    with (
        served(tmp_path, keys, quota_bytes=20_000) as server,
        client_of(server, "key-of-one") as one,
        client_of(server, "key-of-two") as two,
    ):
        large = one.files.create(file=("a.jsonl", b"x" * 12_000), purpose="batch")
        small = upload(one, ["{}"])  # counts as 4096 bytes
        for size in (1, 12_000):
            with pytest.raises(openai.APIStatusError) as full:
                one.files.create(file=("a.jsonl", b"x" * size), purpose="batch")
            assert full.value.status_code == 413 and full.value.code == "quota_exceeded"
            assert f"{size} bytes" in full.value.message and "16096 of 20000" in full.value.message
        assert two.files.create(file=("a.jsonl", b"x" * 12_000), purpose="batch").id  # its own quota
        assert sorted(found.id for found in one.files.list()) == sorted([large.id, small])
        assert one.files.delete(large.id).deleted
        assert one.files.create(file=("a.jsonl", b"x" * 12_000), purpose="batch").id


def test_key_comes_before_the_body(tmp_path: Path) -> None:
    """Refused while most of the body has not been sent: nothing of it is kept anywhere."""
    with served(tmp_path, [KeyConfig(key="key-of-one")]) as server:
        host, port = server.root.removeprefix("http://").split(":")
        for key, status in (("wrong-key", b"401"), ("key-of-one", b"200")):
            end = b"\r\n--x--\r\n"
            length = len(FORM) + 200_000 + len(end)
            head = (
                f"POST /v1/files HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {key}\r\nConnection: close\r\n"
                f"Content-Type: multipart/form-data; boundary=x\r\nContent-Length: {length}\r\n\r\n"
            )
            with socket.create_connection((host, int(port)), timeout=20) as connection:
                connection.sendall(head.encode() + FORM + b"{}")
                if status == b"200":
                    connection.sendall(b" " * 199_998 + end)
                answer = connection.recv(100_000)
            assert answer.startswith(b"HTTP/1.1 " + status), answer
        with client_of(server, "wrong-key") as client, pytest.raises(openai.AuthenticationError):
            client.files.create(file=("a.jsonl", b"x" * (8 << 20)), purpose="batch")
        assert len(list((tmp_path / "files").glob("*.data"))) == 1


def test_cut_off_uploads_go(tmp_path: Path) -> None:
    folder = tmp_path / "files"
    folder.mkdir()
    hour_ago = time.time() - 3600
    for name in ("file-old.data", "tmp-old.json.tmp", "file-now.data", "file-whole.data", "file-whole.json"):
        (folder / name).write_text('{"owner": "", "expires_at": null, "created_at": 0, "id": "file-whole", "bytes": 1}')
        if "now" not in name:
            os.utime(folder / name, (hour_ago, hour_ago))
    with served(tmp_path):
        wait_until(lambda: not any("old" in path.name for path in folder.iterdir()), "they are deleted")
        left = {path.name for path in folder.iterdir()}
    assert left == {"file-now.data", "file-whole.data", "file-whole.json"}  # another process may be writing the first


def test_upload_to_a_full_disk_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(source: object, target: object) -> None:
        raise OSError("No space left on device")

    with served(tmp_path) as server:
        with monkeypatch.context() as patch:
            patch.setattr(shutil, "copyfileobj", full)
            answer = httpx.post(f"{server.url}/files", data={"purpose": "batch"}, files={"file": b"{}"})
        assert answer.status_code == 500 and answer.json()["error"]["code"] == "internal_error"
        assert not list((tmp_path / "files").iterdir())
