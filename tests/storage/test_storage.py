"""Storage: whole files or none, folders published or the old one kept, errors that name the path."""

from __future__ import annotations

import errno
import os
import shutil
from pathlib import Path

import pytest

from sequifier_ray import storage
from sequifier_ray.errors import DataError


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
