"""Results in an object store: made beside each other, brought there once, nothing of others touched."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from s3 import s3_server

from sequifier_ray import storage
from sequifier_ray.config.load import load_preprocess
from sequifier_ray.data.metadata import read_description, read_split
from sequifier_ray.errors import ConfigError, DataError
from sequifier_ray.launch.preprocess import preprocess
from sequifier_ray.preprocess import upload

ROOT = "s3://tables/p"
Run = Callable[..., tuple[str, ...]]


@pytest.fixture
def requests(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The log of a server that is seen as S3, with a bucket "tables"."""
    with s3_server(monkeypatch, "tables", tmp_path / "requests"):
        yield tmp_path / "requests"


@pytest.fixture
def scratch(tmp_path: Path) -> Path:
    folder = tmp_path / "scratch"
    folder.mkdir()
    return folder


@pytest.fixture
def run(project: Any, events: Any, requests: Path, scratch: Path) -> Run:
    """Preprocess a table into the store; returns where its splits lie there."""
    project.write(events([12, 9, 11, 4]))

    def run(
        name: str = "events.parquet",
        report: Callable[[str], None] = lambda line: None,
        scratch: str = str(scratch),
        **settings: Any,
    ) -> tuple[str, ...]:
        path = project.run_config(
            **{"project_root": ROOT, "preprocessing_data_path": str(project.root / name), **settings}
        )
        summary = preprocess(load_preprocess(path), report, "local", None, scratch)
        return read_description(summary.description_path).split_paths

    return run


def names(folder: str) -> list[str]:
    return storage.list_names(f"{ROOT}/{folder}")


def test_runs_beside_each_other(project: Any, events: Any, run: Run, scratch: Path) -> None:
    project.write(events([8, 8, 8]), "clicks.parquet")
    refused = []

    def start_others(line: str) -> None:
        if line.startswith("uploading to"):
            with pytest.raises(DataError) as caught:
                run()
            refused.append(str(caught.value))
            run("clicks.parquet")

    paths = run(report=start_others)
    assert [text.partition(" in /")[0] for text in refused] == [
        f"another preprocess run of {ROOT}/data/events is under way"
    ]
    assert refused[0].endswith("; wait for its end")
    assert all(storage.exists(f"{ROOT}/{path}/metadata.json") for path in paths)
    assert names("configs/metadata_configs") == ["clicks.json", "events.json"]
    assert list(scratch.iterdir()) == []


def test_an_interrupted_run_outlasts_one_of_another_data_set(
    project: Any, events: Any, run: Run, scratch: Path
) -> None:
    def interrupt(line: str) -> None:
        if "encode" in line:
            raise KeyboardInterrupt

    lines: list[str] = []
    with pytest.raises(KeyboardInterrupt):
        run(report=interrupt, continue_preprocessing=True)
    project.write(events([8, 8, 8]), "clicks.parquet")
    run("clicks.parquet")
    assert list(scratch.glob("*/data/.events-preprocess/work"))
    run(report=lines.append, continue_preprocessing=True)
    assert any(line.startswith("going on from where an interrupted run") for line in lines)


def test_other_content_of_the_same_size_goes_to_another_folder(project: Any, events: Any, run: Run) -> None:
    table = events([12, 9, 11, 4])
    before = run()
    sizes = [shard.bytes for path in before for shard in read_split(f"{ROOT}/{path}").shards]
    place = pl.col("itemPosition")
    swapped = table.with_columns(itemPosition=pl.when(place < 2).then(1 - place).otherwise(place))
    project.write(swapped.sort("sequenceId", "itemPosition"))
    after = run()
    assert sizes == [shard.bytes for path in after for shard in read_split(f"{ROOT}/{path}").shards]
    assert before != after
    assert len(names("data")) == 1


def test_an_upload_that_broke_off_goes_on(run: Run, requests: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any) -> None:
        raise DataError("broke off")

    with monkeypatch.context() as broken:
        broken.setattr(upload, "write_description", fail)
        with pytest.raises(DataError, match="broke off"):
            run()
    [folder] = names("data")
    shards = [
        f"data/{folder}/{split}/{shard.name}"
        for split in names(f"data/{folder}")
        if split != upload.UNFINISHED
        for shard in read_split(f"{ROOT}/data/{folder}/{split}").shards
    ]
    lost = f"{ROOT}/{shards[0]}"
    content = storage.read_bytes(lost)
    storage.write_atomic(lost, content[:-1])
    begin = len(requests.read_text())
    assert {path.split("/")[1] for path in run()} == {folder}
    assert names("data") == [folder]
    assert storage.read_bytes(lost) == content
    sent = [line for line in requests.read_text()[begin:].splitlines() if '"PUT ' in line]
    assert len(shards) > 1
    assert not any(shard in line for shard in shards[1:] for line in sent)


def test_equal_runs_of_two_machines_share_no_folder(run: Run, tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    results = []

    def publish_too(line: str) -> None:
        if line.startswith("uploading to"):
            results.append(run(scratch=str(other)))

    before = run()
    after = run(report=publish_too)
    assert len({before, after, *results}) == 3
    assert names("data") == [after[0].split("/")[1]]
    assert all(storage.exists(f"{ROOT}/{path}/metadata.json") for path in after)


def test_a_description_of_another_version_is_replaced(run: Run) -> None:
    place = f"{ROOT}/configs/metadata_configs/events.json"
    earlier = "data/events-0000beef/events-split0"
    text = f'{{"format": "sequifier_ray.dataset", "version": 99, "split_paths": ["{earlier}"]}}'
    storage.write_atomic(place, text)
    storage.write_atomic(f"{ROOT}/{earlier}/0.pt", "1")
    paths = run()
    assert read_description(place).split_paths == paths
    assert names("data") == [paths[0].split("/")[1]]


def test_uploads_that_were_killed_go_in_time_and_nothing_else(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    storage.write_atomic(f"{ROOT}/data/events-20240101/raw.csv", "1")
    storage.write_atomic(f"{ROOT}/data/events-0000beef/events-split0/0.pt", "1")
    storage.write_atomic(f"{ROOT}/data/events-0000beef/{upload.UNFINISHED}", "")
    [new] = {path.split("/")[1] for path in run()}
    assert names("data") == sorted(["events-0000beef", "events-20240101", new])
    monkeypatch.setattr(upload, "_GIVEN_UP_S", -60)
    [new] = {path.split("/")[1] for path in run()}
    assert names("data") == sorted(["events-20240101", new])
    assert upload.UNFINISHED not in names(f"data/{new}")


def test_a_store_that_takes_nothing_is_found_before_any_work(run: Run, scratch: Path) -> None:
    lines: list[str] = []
    with pytest.raises(
        ConfigError, match=r"^project_root: cannot write s3://nothing/p/data/.*; name a bucket"
    ):
        run(report=lines.append, project_root="s3://nothing/p")
    assert lines == []
    assert list(scratch.iterdir()) == []


def test_what_others_have_put_there_is_told_by_its_address(run: Run) -> None:
    place = f"{ROOT}/configs/metadata_configs/events.json"
    foreign = ('{"mine": 1}', "{", '{"n_classes": {}, "id_maps": {}, "split_paths": []}')
    for content in foreign:
        storage.write_atomic(place, content)
        with pytest.raises(DataError, match=rf"^{place} is in the way of the results .*; move it elsewhere"):
            run()
        assert storage.read_text(place) == content
    storage.delete_file(place)
    run()


def test_an_input_in_no_bucket_is_told_as_such(run: Run) -> None:
    with pytest.raises(ConfigError, match=r"preprocessing_data_path: .*s3://nothing/x"):
        run(preprocessing_data_path="s3://nothing/x.parquet")


def test_a_scratch_folder_that_cannot_be_written_to(run: Run) -> None:
    with pytest.raises(ConfigError, match=r"^/proc cannot be worked in \(.*\); name a folder .* --scratch"):
        run(scratch="/proc")
