"""Input in an object store: a real S3 server on the loopback interface."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from s3 import s3_server

from sequifier_ray.errors import ConfigError


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
