"""An S3 server in this process, for tests that need one but not a real one."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager

import boto3

BUCKET = "engine"
KEYS = {"access_key_id": "testing", "secret_access_key": "testing"}


@contextmanager
def running(bucket: str = BUCKET) -> Iterator[str]:
    """The endpoint of a server with one bucket."""
    from moto.server import ThreadedMotoServer

    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    server = ThreadedMotoServer("127.0.0.1", 0, verbose=False)
    server.start()
    try:
        host, port = server.get_host_and_port()
        endpoint = f"http://{host}:{port}"
        client = boto3.client(
            "s3",
            endpoint_url=endpoint,
            region_name="us-east-1",
            aws_access_key_id=KEYS["access_key_id"],
            aws_secret_access_key=KEYS["secret_access_key"],
        )
        client.create_bucket(Bucket=bucket)
        client.close()
        yield endpoint
    finally:
        server.stop()
