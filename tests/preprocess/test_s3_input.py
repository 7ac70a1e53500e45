"""Input and results in an object store: a real S3 server on the loopback interface."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from s3 import s3_server

from sequifier_ray.config.load import load_preprocess
from sequifier_ray.data.metadata import read_split
from sequifier_ray.errors import ConfigError
from sequifier_ray.launch.preprocess import preprocess


@pytest.fixture
def bucket(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """A server that this and child processes see as S3, with a bucket "tables"."""
    with s3_server(monkeypatch, "tables") as system:
        yield system


@pytest.mark.parametrize("path", ["s3://tables/2024", "s3://tables/2024/**/*.csv*", "s3://tables/all.csv.gz"])
def test_tables_in_s3(project: Any, events: Any, bucket: Any, path: str) -> None:
    table = events([12, 9, 11, 4])
    project.write(table)
    project.run()
    expected = project.events(0)
    shuffled = table.sample(fraction=1.0, shuffle=True, seed=3)
    for name, part in (
        ("2024/a.csv", shuffled[:10]),
        ("2024/b/c.csv.gz", shuffled[10:]),
        ("all.csv.gz", table),
    ):
        compression = "gzip" if name.endswith(".gz") else None
        with bucket.open_output_stream(f"tables/{name}", compression=compression) as stream:
            stream.write(part.write_csv().encode())
    with bucket.open_output_stream("tables/2024/_SUCCESS") as stream:
        stream.write(b"")
    project.run(preprocessing_data_path=path, read_format="csv")
    name = "all" if "all" in path else "2024"
    assert project.events(0, name).equals(expected)


@pytest.mark.parametrize("path", ["s3://tables/my folder#1", "s3://tables/my folder#1/?[ab] é%20.csv"])
def test_names_of_any_characters(project: Any, events: Any, bucket: Any, path: str) -> None:
    table = events([12, 9, 11, 4])
    project.write(table)
    project.run()
    expected = project.events(0)
    for name, part in (("#a é%20.csv", table[:10]), ("?b é%20.csv", table[10:])):
        with bucket.open_output_stream(f"tables/my folder#1/{name}") as stream:
            stream.write(part.write_csv().encode())
    project.run(preprocessing_data_path=path, read_format="csv")
    assert project.events(0, "my folder#1").equals(expected)


def test_options_in_project_root(project: Any) -> None:
    with pytest.raises(ConfigError, match=r"project_root: .*options .*set AWS_ENDPOINT_URL and AWS_REGION"):
        project.run(project_root="s3://tables/p?endpoint_override=localhost:9000")


def test_a_scratch_folder_that_others_can_write(
    project: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    own = tmp_path / f"sequifier-ray-{os.getuid()}"
    own.mkdir()
    own.chmod(0o777)
    config = load_preprocess(project.run_config(project_root="s3://tables/p"))
    with pytest.raises(ConfigError, match=rf"{own} is not this user's alone .*set TMPDIR"):
        preprocess(config, print, "local", None)


def test_the_ray_engine_works_in_a_shared_folder(
    project: Any, events: Any, bucket: Any, ray_instance: object, tmp_path: Path
) -> None:
    project.write(events([12, 9, 11, 4]))
    local = project.run()
    config = load_preprocess(
        project.run_config(
            project_root="s3://tables/p", preprocessing_data_path=str(project.root / "events.parquet")
        )
    )
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    pieces: set[Path] = set()

    def report(line: str) -> None:
        project.lines.append(line)
        pieces.update(scratch.glob("*/data/.*/work/pieces"))

    summary = preprocess(config, report, "ray", None, str(scratch))
    assert pieces, "Ray's workers wrote nothing there"
    assert not any("warning" in line for line in project.lines)
    assert list(scratch.iterdir()) == []
    for here, there in zip(local.splits, summary.splits, strict=True):
        assert there.path.startswith("s3://tables/p/data/events-")
        assert read_split(str(project.root / here.path)).fingerprint == read_split(there.path).fingerprint


def test_without_a_shared_folder_the_local_engine_is_used(
    project: Any, events: Any, bucket: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "own"))
    path = str(project.write(events([12, 9])))
    config = load_preprocess(project.run_config(project_root="s3://tables/p", preprocessing_data_path=path))
    preprocess(config, project.lines.append, "ray", None)
    warning = next(line for line in project.lines if "object store" in line)
    assert warning.endswith(
        "instead of --engine ray; name a folder that all nodes share with --scratch to use ray"
    )


def test_a_scratch_folder_that_is_none_or_has_no_use(project: Any, events: Any, tmp_path: Path) -> None:
    project.write(events([12, 9]))
    here = load_preprocess(project.run_config())
    with pytest.raises(ConfigError, match=rf"--scratch: {tmp_path} has no use, since results go straight to"):
        preprocess(here, print, "local", None, str(tmp_path))
    there = load_preprocess(project.run_config(project_root="s3://tables/p"))
    for scratch in (str(tmp_path / "nothing"), "s3://tables/scratch"):
        with pytest.raises(
            ConfigError, match=rf'--scratch: found "{scratch}", which is no folder; name one that exists'
        ):
            preprocess(there, print, "local", None, scratch)


def test_parquet_in_s3(project: Any, events: Any, bucket: Any) -> None:
    table = events([12, 9, 11, 4])
    local = project.write(table)
    project.run()
    before = project.snapshot()
    with bucket.open_output_stream("tables/events.parquet") as stream:
        stream.write(local.read_bytes())
    project.run(preprocessing_data_path="s3://tables/events.parquet")
    assert project.snapshot() == before


def test_what_is_not_in_s3(project: Any, bucket: Any) -> None:
    with pytest.raises(
        ConfigError, match=r"preprocessing_data_path: s3://tables/nothing does not exist; name a file"
    ):
        project.run(preprocessing_data_path="s3://tables/nothing")
