"""Reading a file of an object store in blocks."""

from __future__ import annotations

import io
import os
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

sys.path.append(str(Path(__file__).parents[1]))
from s3 import s3_server

from sequifier_ray import storage
from sequifier_ray.train import step_files


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("blocks") / "file"
    path.write_bytes(os.urandom(1000))
    return path


@settings(max_examples=50, deadline=None)
@given(
    st.lists(st.tuples(st.sampled_from([0, 1, 2]), st.integers(0, 1100), st.integers(0, 400)), max_size=20),
    st.sampled_from([1, 7, 100, 1000, 4096]),
)
def test_blocks_read_as_the_file_does(
    file: Path, reads: list[tuple[int, int, int]], block_bytes: int
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(step_files, "_BLOCK_BYTES", block_bytes)
        blocks, plain = step_files._Blocks(str(file)), io.BytesIO(file.read_bytes())
        for whence, offset, n_bytes in reads:
            if whence == os.SEEK_END:
                offset = -min(offset, 1000)
            if whence == os.SEEK_CUR:
                offset = min(offset, 50)
            assert blocks.seek(offset, whence) == plain.seek(offset, whence)
            wanted, found = plain.read(n_bytes), b""
            while len(found) < len(wanted):
                found += blocks.read(n_bytes - len(found)) or b""
            assert found == wanted
            assert blocks.tell() == plain.tell()


def write_half(stream: io.IOBase) -> None:
    stream.write(b"1" * 1000)  # type: ignore[attr-defined]
    raise RuntimeError("midway")


def test_a_part_that_fails_midway_is_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    with s3_server(monkeypatch, "steps"):
        system = step_files.writer("s3://steps/a").fs
        with (
            pytest.raises(RuntimeError, match="midway"),
            system.create_stream("s3://steps/a/part", "wb") as stream,
        ):
            write_half(stream)
        assert not storage.exists("s3://steps/a/part")
