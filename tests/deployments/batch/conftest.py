"""An object store on this machine."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from deployments.batch.locations import Location


@pytest.fixture(scope="module")
def bucket() -> Iterator[str]:
    """A bucket on an S3-compatible server of this machine; the place of a URI's settings is marked."""
    from moto.server import ThreadedMotoServer

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("AWS_ACCESS_KEY_ID", "test")
        patch.setenv("AWS_SECRET_ACCESS_KEY", "test")
        server = ThreadedMotoServer("127.0.0.1", 0, verbose=False)
        server.start()
        host, port = server.get_host_and_port()
        settings = f"?scheme=http&endpoint_override={host}:{port}&region=us-east-1&allow_bucket_creation=true"
        Location.of(f"s3://bucket{settings}").filesystem.create_dir("bucket")
        yield f"s3://bucket/{{}}{settings}"
        server.stop()
