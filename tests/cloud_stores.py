"""Stand-ins for Google Cloud Storage and Azure on the loopback interface, for this and child processes."""

from __future__ import annotations

import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

# The account and key that Azurite has for everybody.
AZURITE_ACCOUNT = "devstoreaccount1"
AZURITE_KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="


@contextmanager
def google_server(environment: pytest.MonkeyPatch, bucket: str, log: Path) -> Iterator[str]:
    """The address of an empty bucket."""
    port = _free_port()
    words = ["start", "--host", "127.0.0.1", "--port", str(port), "--in-memory", "--default-bucket", bucket]
    with _serving([sys.executable, "-m", "gcp_storage_emulator", *words], port, log):
        environment.setenv("CLOUD_STORAGE_EMULATOR_ENDPOINT", f"http://127.0.0.1:{port}")
        yield f"gs://anonymous@{bucket}"


@contextmanager
def azure_server(environment: pytest.MonkeyPatch, container: str, log: Path) -> Iterator[str]:
    """The address of an empty container; skips where Azurite is not installed."""
    program = shutil.which("azurite-blob")
    if program is None:
        pytest.skip("no azurite-blob on the PATH (npm install -g azurite)")
    port = _free_port()
    options = ["--blobHost", "127.0.0.1", "--blobPort", str(port), "--location", str(log.parent / "azurite")]
    options += ["--skipApiVersionCheck", "--disableTelemetry"]
    with _serving([program, *options], port, log):
        environment.setenv("AZURE_STORAGE_SERVICE_ENDPOINT", f"http://127.0.0.1:{port}/{AZURITE_ACCOUNT}")
        environment.setenv("AZURE_STORAGE_KEY", AZURITE_KEY)
        yield f"abfss://{container}@{AZURITE_ACCOUNT}.dfs.core.windows.net"


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    return port


@contextmanager
def _serving(command: list[str], port: int, log: Path) -> Iterator[None]:
    with log.open("w") as out:
        server = subprocess.Popen(command, stdout=out, stderr=out)
    try:
        deadline_s = time.monotonic() + 60
        while True:
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", port)) == 0:
                    break
            assert server.poll() is None, log.read_text()
            assert time.monotonic() < deadline_s, log.read_text()
            time.sleep(0.1)
        yield
    finally:
        server.terminate()
        server.wait()
