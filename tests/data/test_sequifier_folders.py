"""Folders written by Sequifier 3.1: the same samples as our own shards, and what is refused is named.

`sequifier_folder` is what `sequifier preprocess` 3.1.1.0 wrote for its `events.parquet` with write_format pt,
merge_output false, selected_columns [kind, size], split_ratios [0.8, 0.2], window_length 12, window_stride 4,
max_target_offset 2: 30 sequences of 1 to 60 events, many segments shorter than a window.
"""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
import torch

from sequifier_ray.data.batch import SequenceBatch
from sequifier_ray.data.loader import ShardLoader, SplitDataset
from sequifier_ray.data.metadata import read_description, read_split
from sequifier_ray.data.order import EpochOrder, Plan
from sequifier_ray.data.shards import open_shard
from sequifier_ray.data.windows import ViewSpec
from sequifier_ray.errors import DataError

FOLDER = Path(__file__).parent / "sequifier_folder"
FIRST = "events-split0-0-00.pt"
COLUMNS = ("kind", "size")
VIEWS = {  # context_length, target_offset, view_stride
    "whole window": (10, 1, None),
    "largest target offset": (10, 2, None),
    "every view": (6, 1, 1),
    "some views": (4, 2, 3),
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A copy of Sequifier's project to damage."""
    shutil.copytree(FOLDER, tmp_path / "copy")
    return tmp_path / "copy"


def dataset_of(root: Path, split: int, view: str) -> SplitDataset:
    description = read_description(str(root / "configs" / "metadata_configs" / "events.json"))
    context_length, target_offset, view_stride = VIEWS[view]
    spec = ViewSpec(
        description.window_length,
        description.window_stride,
        description.max_target_offset,
        context_length,
        target_offset,
        view_stride,
    )
    return SplitDataset(str(root / description.split_paths[split]), spec, COLUMNS, COLUMNS, context_length)


def whole_epoch(dataset: SplitDataset) -> SequenceBatch:
    """All samples in one batch."""
    n = dataset.n_samples
    order = EpochOrder(1, 0, dataset.shard_sample_counts, 2, "shuffled")
    with ShardLoader(dataset, order, Plan.start(n, 1, n), 0, 1, n) as loader:
        (update,) = list(loader)
    (batch,) = update.micro_batches
    assert batch.sample_is_real.all()
    return batch


def samples(batch: SequenceBatch) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """The multiset of samples as sorted rows: what is exact, and the reals beside it."""
    exact = [batch.inputs["kind"], batch.is_real, batch.targets["kind"], batch.target_is_real]
    exact_rows = torch.cat([part.long() for part in exact], dim=1).numpy()
    reals = torch.cat([batch.inputs["size"], batch.targets["size"]], dim=1).numpy()
    order = np.lexsort([*np.round(reals, 3).T, *exact_rows.T])
    return exact_rows[order], reals[order]


@pytest.mark.parametrize("view", VIEWS)
@pytest.mark.parametrize("split", [0, 1])
def test_same_samples_as_our_own_shards(sequifier_and_ours: Any, split: int, view: str) -> None:
    theirs, ours = (dataset_of(project.root, split, view) for project in sequifier_and_ours)
    assert theirs.n_samples == ours.n_samples > 10
    batches = [whole_epoch(dataset) for dataset in (theirs, ours)]
    assert not batches[0].is_real.all()
    assert {name: column.dtype for name, column in batches[0].inputs.items()} == {
        "kind": torch.int32,
        "size": torch.float32,
    }
    (exact, reals), (our_exact, our_reals) = map(samples, batches)
    assert np.array_equal(exact, our_exact)
    np.testing.assert_allclose(reals, our_reals, rtol=1e-6, atol=1e-7)


def test_the_descriptions_agree(sequifier_and_ours: Any) -> None:
    theirs, ours = (
        read_description(str(project.root / "configs" / "metadata_configs" / "events.json"))
        for project in sequifier_and_ours
    )
    assert theirs.columns == ours.columns == COLUMNS
    for name in ("n_classes", "id_maps", "real_columns", "split_ratios", "split_method", "special_token_ids"):
        assert getattr(theirs, name) == getattr(ours, name), name
    for name in ("window_length", "window_stride", "max_target_offset", "write_format", "merge_output"):
        assert getattr(theirs, name) == getattr(ours, name), name
    for name, statistics in theirs.selected_columns_statistics.items():
        wanted = ours.selected_columns_statistics[name]
        assert (statistics.mean, statistics.std) == pytest.approx((wanted.mean, wanted.std), rel=1e-12)


def test_windows_lie_where_the_table_has_them() -> None:
    """Positions, lengths and ids of every stored window, against the table that Sequifier read."""
    table = pl.read_parquet(FOLDER / "events.parquet").sort("sequenceId", "itemPosition")
    kinds = {key: frame["kind"].to_list() for (key,), frame in table.group_by("sequenceId")}
    begins = dict(table.group_by("sequenceId").agg(pl.col("itemPosition").min()).iter_rows())
    n_windows = n_short = 0
    for split in (0, 1):
        path = str(FOLDER / "data" / f"events-split{split}")
        metadata = read_split(path)
        id_map = metadata.description.id_maps["kind"]
        for entry in metadata.shards:
            shard = open_shard(path, entry, metadata.description)
            assert len(shard.positions()) == entry.events
            assert shard.positions()[0] == shard.start_positions[0]
            for s, sequence in enumerate(shard.sequence_ids.tolist()):
                found = shard.columns["kind"][shard.starts[s] : shard.offsets[s + 1]].tolist()
                first = int(shard.start_positions[s]) - begins[sequence]
                assert found == [id_map[k] for k in kinds[sequence][first : first + len(found)]]
                n_windows += 1
                n_short += len(found) < 12
    assert n_windows == 94 + 30
    assert n_short > 30


@pytest.mark.skipif(not Path("/proc/self/maps").exists(), reason="needs Linux's list of mappings")
def test_columns_stay_memory_mapped() -> None:
    path = FOLDER / "data" / "events-split0"
    metadata = read_split(str(path))
    shard = open_shard(str(path), metadata.shards[0], metadata.description)
    mappings = [
        tuple(int(end, 16) for end in line.split(maxsplit=1)[0].split("-"))
        for line in Path("/proc/self/maps").read_text().splitlines()
        if line.endswith(str(path / metadata.shards[0].name))
    ]
    for column in shard.columns.values():
        assert any(low <= column.ctypes.data < high for low, high in mappings)


def test_fingerprint_follows_names_and_paddings(folder: Path) -> None:
    path = folder / "data" / "events-split0"
    before = read_split(str(path)).fingerprint
    assert read_split(str(FOLDER / "data" / "events-split0")).fingerprint == before
    seen = {before}
    for change in (
        {"path": "other.pt"},
        {"left_pad_length_histogram": {"0": 42, "11": 1}},
        {"samples": 44, "left_pad_length_histogram": {"0": 44}},
    ):
        shutil.copy(FOLDER / "data" / "events-split0" / "metadata.json", path)
        edit_json(path / "metadata.json", lambda values, new=change: values["batch_files"][0].update(new))
        seen.add(read_split(str(path)).fingerprint)
    assert len(seen) == 4


def edit_json(path: Path, edit: Callable[[dict[str, Any]], Any]) -> None:
    values = json.loads(path.read_text())
    edit(values)
    path.write_text(json.dumps(values))


def edit_file(folder: Path, edit: Callable[[dict[str, Any]], Any]) -> None:
    path = folder / "data" / "events-split0" / FIRST
    contents = torch.load(path, weights_only=True)
    edit(contents)
    torch.save(contents, path)


def open_first(folder: Path) -> None:
    path = str(folder / "data" / "events-split0")
    metadata = read_split(path)
    open_shard(path, metadata.shards[0], metadata.description)


@pytest.mark.parametrize("kept", [-100, 5000, 0])
def test_truncated_file(folder: Path, kept: int) -> None:
    path = folder / "data" / "events-split0" / FIRST
    path.write_bytes(path.read_bytes()[:kept])
    with pytest.raises(
        DataError, match=rf"shard .*{FIRST} cannot be read; run `sequifier preprocess` again \("
    ):
        open_first(folder)


def test_missing_file(folder: Path) -> None:
    (folder / "data" / "events-split0" / FIRST).unlink()
    text = rf"shard .*{FIRST} is missing; restore it or run `sequifier preprocess` again$"
    with pytest.raises(DataError, match=text):
        open_first(folder)


WRONG_FILES: dict[str, tuple[Callable[[dict[str, Any]], Any], str]] = {
    "version": (
        lambda c: c.update(version=4),
        r"has sequifier_tensor_batch version 4, and this release reads version 5; write it again with "
        r"Sequifier 3\.1, or preprocess the table with `sequifier-ray preprocess`",
    ),
    "depth": (
        lambda c: c["metadata"].update(depth_valid_masks={"kind": torch.ones(43, 12)}),
        r"has several values an event \(depth_valid_masks\); preprocess the table with",
    ),
    "column": (
        lambda c: c["sequences"].pop("size"),
        r"lacks 'size', so it is no file of Sequifier 3\.1; run",
    ),
    "width": (
        lambda c: c["sequences"].update(kind=torch.ones(43, 11)),
        r'column "kind" has the shape \(43, 11\) instead of \(43, 12\); run `sequifier preprocess` again',
    ),
    "padding": (
        lambda c: c["left_pad_lengths"].add_(1).clamp_(max=11),
        r"holds 43 windows that are not the 43 of metadata\.json \(left_pad_length_histogram\); run",
    ),
    "format": (lambda c: c.update(format="x"), r"has format x version 5; run `sequifier preprocess` again"),
}


@pytest.mark.parametrize("case", WRONG_FILES)
def test_wrong_file(folder: Path, case: str) -> None:
    edit, text = WRONG_FILES[case]
    edit_file(folder, edit)
    with pytest.raises(DataError, match=rf"shard .*{FIRST} {text}|shard .*{FIRST}: {text}"):
        open_first(folder)


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "depth": (
        {"depth_layouts": {"kind": 3}},
        r"depth_layouts {'kind': 3} is not supported; preprocess without depth_layouts, with Sequifier or",
    ),
    "aligned": (
        {"prediction_aligned_splits": [1]},
        r"prediction_aligned_splits \[1\] is not supported; preprocess without prediction_aligned_splits",
    ),
    "several widths": (
        {"window_lengths": [12, 8]},
        r"several window_lengths \(8, 12\), and one is read; preprocess all splits with one window_length",
    ),
    "layout": (
        {"stored_window_layout_version": 1},
        r"wrote stored_window_layout_version 1, and this release reads 2; write it again with Sequifier 3\.1",
    ),
    "no layout": ({"tensor_payload_version": None}, r"wrote tensor_payload_version None, and this release"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_read_is_refused_by_name(folder: Path, case: str) -> None:
    change, text = REFUSED[case]
    description = folder / "configs" / "metadata_configs" / "events.json"
    split = folder / "data" / "events-split0"
    for path, read in ((description, read_description), (split / "metadata.json", read_split)):
        edit_json(path, lambda values: values.update(change))
        with pytest.raises(DataError, match=re.escape(str(path)) + ": .*" + text):
            read(str(path if path == description else split))


def test_tables_of_windows_are_refused(folder: Path) -> None:
    remedy = (
        r"write it with write_format: pt, merge_output: false, or preprocess the table with `sequifier-ray"
    )
    description = folder / "configs" / "metadata_configs" / "events.json"
    edit_json(description, lambda values: values.update(split_paths=["./data/events-split0.parquet"]))
    with pytest.raises(DataError, match=rf"events-split0\.parquet is a merged file of .*; {remedy}"):
        read_description(str(description))
    split = folder / "data" / "events-split0"
    edit_json(split / "metadata.json", lambda values: values["batch_files"][1].update(path="a.parquet"))
    with pytest.raises(DataError, match=rf"metadata\.json: a\.parquet is a table of .*; {remedy}"):
        read_split(str(split))


def test_metadata_that_do_not_fit_or_lack_something(folder: Path) -> None:
    path = folder / "data" / "events-split0" / "metadata.json"
    edit_json(path, lambda values: values["batch_files"][0].update(samples=44))
    with pytest.raises(DataError, match=rf"left_pad_length_histogram of {FIRST} does not fit its 44 samples"):
        read_split(str(path.parent))
    edit_json(path, lambda values: values.pop("window_length"))
    with pytest.raises(DataError, match=r'metadata\.json lacks "window_length"; run `sequifier preprocess`'):
        read_split(str(path.parent))
