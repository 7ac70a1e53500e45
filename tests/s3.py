"""A real S3 server on the loopback interface, for this and child processes."""

from __future__ import annotations

import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
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


class Relay(threading.Thread):
    """A way to the store over which answers break off after so many bytes."""

    def __init__(self, port: int, limit_bytes: int) -> None:
        super().__init__(daemon=True)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self._target = port
        self._left_bytes = limit_bytes

    def run(self) -> None:
        while True:
            near = self._listener.accept()[0]
            far = socket.create_connection(("127.0.0.1", self._target))
            for pair in ((near, far, False), (far, near, True)):
                threading.Thread(target=self._pump, args=pair, daemon=True).start()

    def _pump(self, source: socket.socket, target: socket.socket, is_answer: bool) -> None:
        with suppress(OSError):
            while block := source.recv(65536):
                if is_answer:
                    self._left_bytes -= len(block)
                    if self._left_bytes < 0:
                        break
                target.sendall(block)
        for end in (source, target):
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
