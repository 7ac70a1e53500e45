"""Storage: whole files or none, folders published or the old one kept, errors that name the path."""

from __future__ import annotations

import contextlib
import errno
import os
import re
import shutil
import socket
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

sys.path.append(str(Path(__file__).parents[1]))
from s3 import Relay, s3_server

from sequifier_ray import storage
from sequifier_ray.errors import DataError


@pytest.fixture(scope="module")
def bucket() -> Iterator[Any]:
    """A server that is seen as S3, with a bucket "things"."""
    environment = pytest.MonkeyPatch()
    with s3_server(environment, "things") as system:
        yield system
    environment.undo()


def test_join() -> None:
    assert storage.join("/a", "b", "../c/x.pt") == "/a/c/x.pt"
    assert storage.join("/a", "/b", "c") == "/b/c"
    assert storage.join("/a", "s3://bucket/run", "c") == "s3://bucket/run/c"
    assert storage.join("s3://bucket/run/", "c", "d") == "s3://bucket/run/c/d"


def test_is_local() -> None:
    assert storage.is_local("data/x")
    assert storage.is_local("file:///data/x")
    assert not storage.is_local("s3://bucket/x")


def test_write_and_read(tmp_path: Path) -> None:
    path = str(tmp_path / "new" / "folder" / "a.txt")
    assert not storage.exists(path)
    assert storage.file_bytes(path) is None
    storage.write_atomic(path, "Grüße")
    assert storage.exists(path)
    assert storage.read_text(path) == "Grüße"
    assert storage.read_bytes(path) == "Grüße".encode()
    assert storage.file_bytes(path) == 7
    assert storage.file_bytes(str(tmp_path)) is None
    assert storage.read_text(f"file://{path}") == "Grüße"
    storage.write_atomic(path, b"\x00\x01")
    assert storage.read_bytes(path) == b"\x00\x01"
    assert storage.list_names(str(tmp_path / "new" / "folder")) == ["a.txt"]


def test_folders(tmp_path: Path) -> None:
    folder = str(tmp_path / "a" / "b")
    storage.make_folder(folder)
    storage.make_folder(folder)
    storage.write_atomic(storage.join(folder, "z"), "1")
    storage.write_atomic(storage.join(folder, "c"), "1")
    assert storage.list_names(folder) == ["c", "z"]
    storage.delete_folder(folder)
    assert not storage.exists(folder)
    storage.delete_folder(folder)
    with pytest.raises(DataError, match=f"cannot delete {folder}"):
        storage.delete_folder(folder, missing_ok=False)


def test_a_failed_write_leaves_the_old_file_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a.json"
    storage.write_atomic(str(path), "old")

    def full(handle: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(DataError) as caught:
        storage.write_atomic(str(path), "new")
    assert str(caught.value) == (
        f"cannot write {path}: No space left on device; free space or point project_root elsewhere"
    )
    assert path.read_text() == "old"
    assert os.listdir(tmp_path) == ["a.json"]


def test_publish(tmp_path: Path) -> None:
    target = tmp_path / "models" / "a"
    for text in ("first", "second", "third"):
        partial = tmp_path / "partial"
        storage.write_atomic(str(partial / "x"), text)
        storage.publish_folder(str(partial), str(target))
        assert (target / "x").read_text() == text
        assert not partial.exists()
        assert os.listdir(target.parent) == ["a"]


def test_a_failed_publish_keeps_the_old_folder(tmp_path: Path) -> None:
    target = tmp_path / "a"
    storage.write_atomic(str(target / "x"), "old")
    with pytest.raises(DataError, match=f"cannot publish {target}: it does not exist|cannot publish"):
        storage.publish_folder(str(tmp_path / "never-written"), str(target))
    assert (target / "x").read_text() == "old"
    assert os.listdir(tmp_path) == ["a"]


def test_what_a_killed_publish_left_is_cleared(tmp_path: Path) -> None:
    target, partial = tmp_path / "a", tmp_path / "partial"
    storage.write_atomic(str(target / "x"), "old")
    shutil.copytree(target, tmp_path / ".a.previous")
    storage.write_atomic(str(partial / "x"), "new")
    storage.publish_folder(str(partial), str(target))
    assert (target / "x").read_text() == "new"
    assert os.listdir(tmp_path) == ["a"]


def test_errors_name_the_path(tmp_path: Path) -> None:
    missing = str(tmp_path / "none")
    with pytest.raises(DataError, match=f"^cannot read {missing}: it does not exist$"):
        storage.read_bytes(missing)
    with pytest.raises(DataError, match=f"^cannot list {missing}: it does not exist$"):
        storage.list_names(missing)
    with pytest.raises(DataError, match=r"^nope://x/y: no file system for this address"):
        storage.exists("nope://x/y")
    (tmp_path / "bad.txt").write_bytes(b"a\xff")
    with pytest.raises(DataError, match=r"bad.txt is not UTF-8 text \(byte 1\)"):
        storage.read_text(str(tmp_path / "bad.txt"))
    (tmp_path / "file").write_text("")
    with pytest.raises(DataError, match=f"^cannot write {tmp_path}/file/a: "):
        storage.write_atomic(str(tmp_path / "file" / "a"), "x")


NAMES = ["a b.csv", "é.csv", "a%20c.csv", "a?b.csv", "a#b.csv", "a&b=c+d.csv", "a[1]*.csv"]


@pytest.mark.parametrize("folder", ["p#1", "my proj", "é%41", "what?", "a?b=c"])
def test_any_character_in_an_object_store(bucket: Any, folder: str) -> None:
    root = f"s3://things/{folder}"
    for name in NAMES:
        storage.write_atomic(storage.join(root, "in", name), name)
    entries = storage.find_files(root)
    assert entries is not None
    assert [storage.read_text(entry.path) for entry in entries] == sorted(NAMES)
    assert [entry.path for entry in entries] == [f"{root}/in/{name}" for name in sorted(NAMES)]
    assert storage.list_names(f"{root}/in") == sorted(NAMES)
    # The store itself knows them by these very names.
    assert bucket.get_file_info(f"things/{folder}/in/a#b.csv").is_file
    for entry in entries:
        storage.delete_file(entry.path)
        assert not storage.exists(entry.path)
    storage.delete_folder(root)
    assert not storage.exists(root)


def test_percent_signs_of_a_file_address_are_decoded(tmp_path: Path) -> None:
    (tmp_path / "a b%.csv").write_text("1")
    entries = storage.find_files(f"file://{tmp_path}")
    assert entries is not None
    assert [entry.path for entry in entries] == [f"file://{tmp_path}/a%20b%25.csv"]
    assert storage.read_text(entries[0].path) == "1"


@pytest.mark.parametrize(
    "address",
    [
        "s3://things/path?endpoint_override=127.0.0.1:9000",
        "s3://things?region=us-east-1&scheme=http/data/x",
        "abfss://c@account/x?tenant_id=1",
        "abfss://c@account/x?client_secret=SECRET",
        "abfss://c@account/x?sv=1&sig=SECRET",
        "s3://things?access_key=A&secret_key=SECRET",
    ],
)
def test_options_in_an_address(address: str) -> None:
    with pytest.raises(
        DataError, match=r"options \(\w.*set AWS_ENDPOINT_URL and AWS_REGION .*AZURE_STORAGE_KEY"
    ) as caught:
        storage.exists(address)
    assert "SECRET" not in str(caught.value)


@pytest.mark.parametrize("address", ["s3://minio:9000/bucket/x", "gs://127.0.0.1:4443/x"])
def test_a_server_is_no_bucket(address: str) -> None:
    with pytest.raises(DataError, match="a server has no place in an address; set AWS_ENDPOINT_URL"):
        storage.exists(address)


@pytest.mark.parametrize("address", ["s3://", "gs:///x"])
def test_an_address_names_a_bucket(address: str) -> None:
    with pytest.raises(DataError, match=f"^{address}: no bucket is named; put one behind the ://"):
        storage.exists(address)


def test_a_bucket_has_no_number_sign() -> None:
    with pytest.raises(DataError, match="no bucket has such a name"):
        storage.exists("s3://things#1/x")


@pytest.mark.parametrize(
    ("address", "inner"),
    [
        ("gs://bucket/a b#1", "bucket/a b#1"),
        ("gs://bucket/", "bucket"),
        ("abfss://box@account.dfs.core.windows.net/a?b/%41", "box/a?b/%41"),
        ("abfss://account.blob.core.windows.net/box/é", "box/é"),
    ],
)
def test_names_in_other_stores(address: str, inner: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert storage.file_system(address)[1] == inner
    monkeypatch.setenv("AZURE_STORAGE_KEY", "a2V5")  # Azure's file system is then made in another way
    assert storage.file_system(address)[1] == inner


def test_without_google_nobody_waits_long() -> None:
    system, _ = storage.file_system("gs://bucket/x")
    assert "'retry_time_limit': datetime.timedelta(seconds=30)" in str(system.__reduce__())


def test_a_key_that_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AZURE_STORAGE_KEY", "not base64!")
    with pytest.raises(DataError, match="abfss://box@account") as error:
        storage.exists("abfss://box@account.dfs.core.windows.net/x")
    assert "not base64" not in str(error.value)


def test_azure_by_endpoint_and_token(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        endpoint = f"http://127.0.0.1:{server.getsockname()[1]}/account"
        monkeypatch.setenv("AZURE_STORAGE_SERVICE_ENDPOINT", endpoint)
        monkeypatch.setenv("AZURE_STORAGE_SAS_TOKEN", "?sv=2026&sig=x")
        looking = threading.Thread(target=_look, args=("abfss://box@account.dfs.core.windows.net/a/x",))
        looking.start()
        connection = server.accept()[0]
        request = connection.recv(4096).decode()
        connection.sendall(b"HTTP/1.1 403 No\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
        connection.close()
        looking.join(timeout=60)
    assert "/account/box" in request.splitlines()[0]
    assert {"sv=2026", "sig=x"} <= set(re.split(r"[?& ]", request.splitlines()[0]))


def _look(address: str) -> None:
    with contextlib.suppress(DataError):
        storage.exists(address)


def test_a_copy_whose_source_breaks_off_is_not_there(bucket: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    storage.write_atomic("s3://things/large", bytes(20 << 20))
    port = int(os.environ["AWS_ENDPOINT_URL"].rpartition(":")[2])
    relay = Relay(port, 10 << 20)
    relay.start()
    monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{relay.port}")
    broken = storage.open_file("s3://things/large")
    monkeypatch.undo()
    opened = storage.open_file
    monkeypatch.setattr(
        "sequifier_ray.storage.files.open_file", lambda path: broken if "large" in path else opened(path)
    )
    with pytest.raises(DataError, match=r"^cannot read s3://things/large: "):
        storage.copy_file("s3://things/large", "s3://things/copies/large")
    assert bucket.get_file_info("things/copies/large").type.name == "NotFound"


def write_half(stream: Any) -> None:
    stream.write(b"1" * 1000)
    raise RuntimeError("midway")


def test_what_was_not_written_whole_is_not_there(bucket: Any, tmp_path: Path) -> None:
    for path in ("s3://things/broken", str(tmp_path / "broken")):
        with pytest.raises(RuntimeError, match="midway"), storage.writing(path) as stream:
            write_half(stream)
        assert not storage.exists(path)


def test_a_broken_rewrite_leaves_the_old_file_alone(bucket: Any, tmp_path: Path) -> None:
    for path in ("s3://things/rewritten/a", str(tmp_path / "a")):
        storage.write_atomic(path, "old")
        with pytest.raises(RuntimeError, match="midway"), storage.writing(path) as stream:
            write_half(stream)
        assert storage.read_text(path) == "old"
        with storage.writing(path) as stream:
            stream.write(b"new")
        assert storage.read_text(path) == "new"
        assert storage.list_names(path.rpartition("/")[0]) == ["a"]


def test_what_s3_does_not_copy_at_once_is_written_again(bucket: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sequifier_ray.storage.files._LARGEST_COPY_BYTES", 2)
    for text in ("old", "new"):
        storage.write_atomic("s3://things/larger/a", text)
    assert storage.read_text("s3://things/larger/a") == "new"
    assert storage.list_names("s3://things/larger") == ["a"]


def test_what_killed_processes_have_left_is_deleted(bucket: Any, tmp_path: Path) -> None:
    for folder in ("s3://things/killed", str(tmp_path)):
        for name in ("m.0123abcd.partial", "m-1.partial/a", "m", "other.partial"):
            storage.write_atomic(f"{folder}/{name}", "1")
        storage.delete_partial(folder, "m")
        assert storage.list_names(folder) == ["m", "other.partial"]
        storage.delete_partial(f"{folder}/gone")


def test_no_message_of_a_store_shows_a_signature(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AZURE_STORAGE_SAS_TOKEN", "sv=1&sig=SECRET")
    with socket.create_server(("127.0.0.1", 0)) as server:
        monkeypatch.setenv("AZURE_STORAGE_SERVICE_ENDPOINT", f"http://127.0.0.1:{server.getsockname()[1]}")
        threading.Thread(target=_deny, args=(server,), daemon=True).start()
        with pytest.raises(DataError, match=r"cannot look at abfss://box@account.*sig=\*\*\*") as caught:
            storage.exists("abfss://box@account.dfs.core.windows.net/a")
        assert "SECRET" not in str(caught.value)


def _deny(server: socket.socket) -> None:
    """Answer every request as a store does that does not take the signature."""
    while True:
        connection, _ = server.accept()
        connection.recv(1 << 16)
        connection.sendall(b"HTTP/1.1 403 Forbidden\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
        connection.close()


def test_of_a_broken_copy_all_of_it_stays_beside(bucket: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(source: Any, target: Any, size: int) -> None:
        target.write(source.read(2))
        raise ConnectionResetError("connection reset")

    storage.write_atomic("s3://things/broken/a", "old")
    monkeypatch.setattr("sequifier_ray.storage.files._LARGEST_COPY_BYTES", 2)
    monkeypatch.setattr("shutil.copyfileobj", fail)
    with pytest.raises(
        DataError, match="connection reset; what is there is cut off, and all of it"
    ) as caught:
        storage.write_atomic("s3://things/broken/a", "all new")
    [whole] = set(storage.list_names("s3://things/broken")) - {"a"}
    assert str(caught.value).startswith("cannot write s3://things/broken/a: ")
    assert f"lies in s3://things/broken/{whole}: run again" in str(caught.value)
    assert storage.read_text(f"s3://things/broken/{whole}") == "all new"


@pytest.mark.parametrize(
    "address",
    [
        "s3://AKIA1:secret@things/a",
        "s3://AKIA1:sec/ret@things/a",
        "s3://AKIA1@things/a",
        "s3://secret@things/a",
        "s3://AKIA1:secret/a",
        "s3://AKIA1%3Asecret@things/a",
        "s3://AKIA1:sec@ret@things/a",
        "gs://user:secret@things/a",
        "abfss://box:secret@account.dfs.core.windows.net/a",
        "hdfs://user:secret@name-node:8020/a",
    ],
)
def test_keys_have_no_place_in_an_address(address: str) -> None:
    with pytest.raises(DataError) as caught:
        storage.read_bytes(address)
    text = str(caught.value)
    assert "keys have no place in an address, which logs and results show; set AWS_ACCESS_KEY_ID" in text
    assert "sec" not in text


@pytest.mark.parametrize(
    "address",
    [
        "gs://anonymous@things/a",
        "abfss://box@account.dfs.core.windows.net/a",
        "hdfs://name-node:8020/a",
        "hdfs://user@name-node/a",
        "s3://things/a:b@c",
    ],
)
def test_what_looks_like_a_key_and_is_none(address: str) -> None:
    assert storage.address_problem(address) is None
