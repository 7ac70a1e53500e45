"""A real S3 server on the loopback interface, for this and child processes."""

from __future__ import annotations

import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest


@contextmanager
def s3_server(environment: pytest.MonkeyPatch, bucket: str, log: Path | None = None) -> Iterator[Any]:
    """The server's file system with an empty bucket; requests go to ``log``."""
    from pyarrow.fs import S3FileSystem

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)]
    with open(log or "/dev/null", "w") as out:
        server = subprocess.Popen(command, stdout=out, stderr=out)
    try:
        for _ in range(300):
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", port)) == 0:
                    break
            time.sleep(0.1)
        for name, value in {
            "AWS_ENDPOINT_URL": f"http://127.0.0.1:{port}",
            "AWS_ACCESS_KEY_ID": "test",
            "AWS_SECRET_ACCESS_KEY": "test",
            "AWS_REGION": "us-east-1",
            "AWS_EC2_METADATA_DISABLED": "true",
        }.items():
            environment.setenv(name, value)
        # Made by hand it does not look at AWS_ENDPOINT_URL; made from an address, as by the program, it does.
        system = S3FileSystem(
            endpoint_override=f"127.0.0.1:{port}", scheme="http", allow_bucket_creation=True
        )
        system.create_dir(bucket)
        yield system
    finally:
        server.terminate()
        server.wait()
