"""Shards of an object store on a node's disk: fetched once, given up by age, safe between processes."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from s3 import s3_server

from sequifier_ray import storage
from sequifier_ray.data.node_cache import NodeCache
from sequifier_ray.errors import DataError


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    environment = pytest.MonkeyPatch()
    path = tmp_path_factory.mktemp("s3") / "requests"
    with s3_server(environment, "shards", path):
        yield path
    environment.undo()


def put(name: str, content: bytes) -> str:
    address = f"s3://shards/{name}"
    storage.write_atomic(address, content)
    return address


def files(folder: Path) -> list[Path]:
    return [path for path in folder.iterdir() if not path.suffix]


def test_many_processes_fetch_a_file_once(log: Path, tmp_path: Path) -> None:
    address = put("once", b"x" * 1000)
    script = (
        "import sys; from sequifier_ray.data.node_cache import NodeCache\n"
        "with NodeCache(sys.argv[1], 10**6).opened(sys.argv[2], 1000) as path:\n"
        "    assert len(open(path, 'rb').read()) == 1000"
    )
    words = [sys.executable, "-c", script, str(tmp_path), address]
    processes = [subprocess.Popen(words) for _ in range(4)]
    assert [process.wait(60) for process in processes] == [0] * 4
    assert log.read_text().count("GET /shards/once") == 1


def test_files_used_longest_ago_make_room(log: Path, tmp_path: Path) -> None:
    cache = NodeCache(str(tmp_path), 2500)
    for i, name in enumerate(("a", "b", "c")):
        with cache.opened(put(name, bytes([i]) * 1000), 1000) as path:
            os.utime(path, (time.time() - 100 + i, time.time() - 100 + i))
    assert sorted(Path(p).read_bytes()[0] for p in files(tmp_path)) == [1, 2]


def test_a_file_that_is_being_opened_stays(log: Path, tmp_path: Path) -> None:
    cache = NodeCache(str(tmp_path), 1500)
    with cache.opened(put("held", b"1" * 1000), 1000) as held:
        with cache.opened(put("other", b"2" * 1000), 1000):
            pass
        assert Path(held).read_bytes() == b"1" * 1000


def test_what_was_written_again_is_fetched_again(log: Path, tmp_path: Path) -> None:
    cache = NodeCache(str(tmp_path), 10**6)
    with cache.opened(put("again", b"1" * 10), 10) as path:
        assert Path(path).read_bytes() == b"1" * 10
    time.sleep(1.1)  # the store knows whole seconds
    with cache.opened(put("again", b"2" * 10), 10) as path:
        assert Path(path).read_bytes() == b"2" * 10


def test_another_size_than_the_table_says(log: Path, tmp_path: Path) -> None:
    address = put("short", b"1" * 10)
    message = r"s3://shards/short came with 10 bytes instead of 11; run again"
    with pytest.raises(DataError, match=message), NodeCache(str(tmp_path), 10**6).opened(address, 11):
        pass
    assert not files(tmp_path)


def test_a_full_disk_is_said(log: Path, tmp_path: Path) -> None:
    blocked = tmp_path / "full"
    blocked.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=16k", "tmpfs", blocked], check=False).returncode:
        pytest.skip("needs the right to mount a small disk")
    try:
        address = put("large", b"1" * 100_000)
        message = r"could not be fetched to .*full .*No space left.*shard_cache_path"
        with pytest.raises(DataError, match=message), NodeCache(str(blocked), 10**6).opened(address, 100_000):
            pass
    finally:
        subprocess.run(["umount", "-l", blocked], check=True)


def test_files_on_a_file_system_are_read_where_they_are(tmp_path: Path) -> None:
    (tmp_path / "here").write_bytes(b"1")
    with NodeCache(str(tmp_path / "cache"), 1).opened(str(tmp_path / "here"), 1) as path:
        assert path == str(tmp_path / "here")
    assert not (tmp_path / "cache").exists()
