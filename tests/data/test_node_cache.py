"""Shards of an object store on a node's disk: fetched once, given up by age, safe between processes."""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from s3 import Relay, s3_server

from sequifier_ray import storage
from sequifier_ray.data.node_cache import NodeCache
from sequifier_ray.errors import ConfigError, DataError


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


@pytest.mark.parametrize(("there_bytes", "n_bytes"), [(0, 100_000), (12_288, 6_000)])
def test_a_full_disk_is_said(there_bytes: int, n_bytes: int, log: Path, tmp_path: Path) -> None:
    blocked = tmp_path / "full"
    blocked.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=16k", "tmpfs", blocked], check=False).returncode:
        pytest.skip("needs the right to mount a small disk")
    try:
        (blocked / "there").write_bytes(b"1" * there_bytes)
        address = put("large", b"1" * n_bytes)
        message = r"could not be fetched to .*full .*No space left.*shard_cache_path"
        with pytest.raises(DataError, match=message), NodeCache(str(blocked), 10**6).opened(address, n_bytes):
            pass
    finally:
        subprocess.run(["umount", "-l", blocked], check=True)


def test_a_store_that_breaks_off_is_not_the_disks_fault(
    log: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    address = put("breaks", bytes(20 << 20))
    relay = Relay(int(os.environ["AWS_ENDPOINT_URL"].rpartition(":")[2]), 10 << 20)
    relay.start()
    broken = f"http://127.0.0.1:{relay.port}"
    opened = storage.open_file

    def open_through_relay(path: str) -> object:
        with monkeypatch.context() as patch:
            patch.setenv("AWS_ENDPOINT_URL", broken)
            return opened(path)

    monkeypatch.setattr(storage, "open_file", open_through_relay)
    message = r"^s3://shards/breaks could not be read to its end \(.*\); run again$"
    with pytest.raises(DataError, match=message), NodeCache(str(tmp_path), 10**9).opened(address, 20 << 20):
        pass
    assert not files(tmp_path)


def test_files_on_a_file_system_are_read_where_they_are(tmp_path: Path) -> None:
    (tmp_path / "here").write_bytes(b"1")
    with NodeCache(str(tmp_path / "cache"), 1).opened(str(tmp_path / "here"), 1) as path:
        assert path == str(tmp_path / "here")
    assert not (tmp_path / "cache").exists()


def test_a_file_that_was_cut_off_is_fetched_again(log: Path, tmp_path: Path) -> None:
    cache = NodeCache(str(tmp_path), 10**6)
    address = put("cut", b"1" * 1000)
    with cache.opened(address, 1000) as path:
        os.truncate(path, 400)
    with cache.opened(address, 1000) as path:
        assert Path(path).read_bytes() == b"1" * 1000


def test_what_killed_fetches_left_goes_and_those_under_way_count(log: Path, tmp_path: Path) -> None:
    cache = NodeCache(str(tmp_path), 2500)
    killed, begun = (tmp_path / f"{i * 32}.{i * 16}.part" for i in "ab")
    killed.write_bytes(b"1" * 1000)
    with cache.opened(put("first", b"1" * 1000), 1000):
        pass
    assert not killed.exists()
    with begun.open("wb") as under_way:
        fcntl.flock(under_way, fcntl.LOCK_EX)
        under_way.truncate(1000)
        with cache.opened(put("second", b"2" * 1000), 1000):
            pass
        assert begun.exists()
    assert [path.read_bytes()[:1] for path in files(tmp_path)] == [b"2"]


def test_what_others_keep_in_the_folder_stays(log: Path, tmp_path: Path) -> None:
    others = [tmp_path / name for name in ("Makefile", "download.part", "notes.txt", "cafe", ".hidden")]
    for path in others:
        path.write_bytes(b"1" * 10_000)
    folders = [tmp_path / "results", tmp_path / ("c" * 32)]
    for folder in folders:
        folder.mkdir()
    cache = NodeCache(str(tmp_path), 1500)
    for name in ("one", "two"):
        with cache.opened(put(name, b"1" * 1000), 1000):
            pass
    assert all(path.read_bytes() == b"1" * 10_000 for path in others)
    assert all(folder.is_dir() for folder in folders)
    assert len([path for path in tmp_path.iterdir() if len(path.name) == 32 and path.is_file()]) == 1


def test_fetches_beside_each_other_keep_the_bound(log: Path, tmp_path: Path) -> None:
    script = (
        "import sys; from sequifier_ray.data.node_cache import NodeCache\n"
        "for name in sys.argv[2:]:\n"
        "    with NodeCache(sys.argv[1], 2_500_000).opened('s3://shards/' + name, 10**6): pass"
    )
    names = [f"many-{i}" for i in range(12)]
    for name in names:
        put(name, b"1" * 10**6)
    words = [sys.executable, "-c", script, str(tmp_path)]
    processes = [subprocess.Popen([*words, *names[i::2]]) for i in range(2)]
    while any(process.poll() is None for process in processes):
        assert len(files(tmp_path)) <= 2
        time.sleep(0.01)
    assert [process.returncode for process in processes] == [0, 0]
    assert len(files(tmp_path)) <= 2
    assert not list(tmp_path.glob("*.part"))


def test_a_cache_smaller_than_a_shard(log: Path, tmp_path: Path) -> None:
    message = r"shard_cache_gigabytes: 5e-07 is less than the shard s3://shards/wide takes .*at least 2e-06"
    with (
        pytest.raises(ConfigError, match=message),
        NodeCache(str(tmp_path), 500).opened(put("wide", b"1" * 1000), 1000),
    ):
        pass


def test_a_folder_that_cannot_be(log: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    for folder in (tmp_path / "file" / "cache", Path("/proc/cache"), Path("/proc/1")):
        with (
            pytest.raises(ConfigError, match=rf"shard_cache_path: shards cannot be kept in {folder} \("),
            NodeCache(str(folder), 10**6).opened(put("nowhere", b"1"), 1),
        ):
            pass


def test_the_own_folder_is_the_users_alone(log: Path, tmp_path: Path) -> None:
    own = tmp_path / f"sequifier-ray-{os.getuid()}"
    address = put("own", b"1")
    with NodeCache(str(own / "shards"), 10).opened(address, 1):
        assert own.stat().st_mode & 0o777 == 0o700
    own.chmod(0o777)
    with (
        pytest.raises(ConfigError, match=r"is not this user's alone \(owner \d+, mode 777\); remove it"),
        NodeCache(str(own / "shards"), 10).opened(address, 1),
    ):
        pass
    own.rename(tmp_path / "aside")
    own.symlink_to(tmp_path / "aside")
    with (
        pytest.raises(ConfigError, match="is not this user's alone"),
        NodeCache(str(own / "shards"), 10).opened(address, 1),
    ):
        pass


def test_planted_links_are_not_followed(log: Path, tmp_path: Path) -> None:
    address = put("planted", b"1" * 10)
    with NodeCache(str(tmp_path / "a"), 100).opened(address, 10) as path:
        name = Path(path).name
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / f"{name}.part").symlink_to(tmp_path / "victim")
    with NodeCache(str(tmp_path / "b"), 100).opened(address, 10):
        assert not (tmp_path / "victim").exists()
