"""Folders of stored windows that Sequifier 3.1 wrote: the same samples as our shards of the same table.

The folder beside this file was written by `sequifier preprocess` (3.1.1.0) from its events.csv with window 9,
stride 4 and split_ratios 0.7, 0.3: 24 sequences of 1 to 60 events that begin at several positions.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml

from sequifier_ray.config.load import load_preprocess
from sequifier_ray.data.batch import gather_columns
from sequifier_ray.data.loader import SplitDataset
from sequifier_ray.data.metadata import read_description, read_split
from sequifier_ray.data.shards import open_shard
from sequifier_ray.data.windows import ViewSpec
from sequifier_ray.errors import DataError
from sequifier_ray.preprocess.pipeline import preprocess

FOLDER = Path(__file__).parent / "sequifier_folder"
SETTINGS = {
    "preprocessing_data_path": "events.csv",
    "write_format": "pt",
    "merge_output": False,
    "split_ratios": [0.7, 0.3],
    "window_length": 9,
    "window_stride": 4,
}


@pytest.fixture
def theirs(tmp_path: Path) -> Path:
    """A copy of the folder that a test may damage."""
    shutil.copytree(FOLDER, tmp_path / "theirs")
    return tmp_path / "theirs"


@pytest.fixture
def ours(tmp_path: Path) -> Path:
    root = tmp_path / "ours"
    root.mkdir()
    shutil.copy(FOLDER / "events.csv", root)
    (root / "p.yaml").write_text(yaml.safe_dump(SETTINGS | {"project_root": str(root)}))
    preprocess(load_preprocess(str(root / "p.yaml")), lambda line: None)
    return root


def samples(path: Path, spec: ViewSpec) -> list[tuple[Any, ...]]:
    """All samples of a split, sorted: which places are events, and their words and sizes."""
    dataset = SplitDataset(str(path), spec, ("word", "size"), ("word",), 1)
    found = []
    for shard, count in enumerate(dataset.shard_sample_counts):
        numbers = np.arange(count)
        values, is_real = gather_columns(dataset.open, np.full(count, shard), numbers, spec, dataset.dtypes)
        for i in range(count):
            sizes = values["size"][i].astype(np.float64).round(5)
            found.append((*is_real[i].tolist(), *values["word"][i].tolist(), *sizes.tolist()))
    return sorted(found)


@pytest.mark.parametrize("split", [0, 1])
@pytest.mark.parametrize(("context_length", "view_stride"), [(8, None), (5, None), (3, 2)])
def test_the_same_samples(
    theirs: Path, ours: Path, split: int, context_length: int, view_stride: int | None
) -> None:
    spec = ViewSpec(9, 4, 1, context_length, 1, view_stride)
    expected = samples(ours / f"data/events-split{split}", spec)
    assert samples(theirs / f"data/events-split{split}", spec) == expected
    assert len(expected) > 30


def test_the_same_description(theirs: Path, ours: Path) -> None:
    path = "configs/metadata_configs/events.json"
    found, expected = read_description(str(theirs / path)), read_description(str(ours / path))
    for name in (
        "id_maps",
        "n_classes",
        "split_paths",
        "window_length",
        "window_stride",
        "max_target_offset",
    ):
        assert getattr(found, name) == getattr(expected, name), name
    size = found.selected_columns_statistics["size"]
    assert size.mean == pytest.approx(expected.selected_columns_statistics["size"].mean, rel=1e-12)
    assert size.std == pytest.approx(expected.selected_columns_statistics["size"].std, rel=1e-12)


def test_windows_stay_mapped_and_know_their_events(theirs: Path) -> None:
    folder = theirs / "data/events-split1"
    metadata = read_split(str(folder))
    shard = open_shard(str(folder), metadata.shards[0], metadata.description)
    raw = torch.load(folder / metadata.shards[0].name)
    assert shard.columns["word"].base is not None
    assert shard.lengths.tolist() == (9 - raw["left_pad_lengths"]).tolist()
    assert shard.start_positions.tolist() == (raw["start_item_positions"] + raw["left_pad_lengths"]).tolist()
    assert metadata.fingerprint != read_split(str(theirs / "data/events-split0")).fingerprint


def rewrite(path: Path, **changes: Any) -> None:
    values = json.loads(path.read_text())
    path.write_text(json.dumps(values | changes))


def resave(folder: Path, **changes: Any) -> None:
    (path,) = folder.glob("*.pt")
    torch.save(torch.load(path) | changes, path)


def truncate(folder: Path) -> None:
    (path,) = folder.glob("*.pt")
    path.write_bytes(path.read_bytes()[:5000])


def remove(folder: Path) -> None:
    (path,) = folder.glob("*.pt")
    path.unlink()


@pytest.mark.parametrize(
    ("damage", "text"),
    [
        (remove, r"events-split0-0-00\.pt is missing; restore it"),
        (truncate, r"events-split0-0-00\.pt cannot be read; write it again"),
        (
            lambda folder: resave(folder, version=4),
            r"\.pt has format sequifier_tensor_batch version 4, and sequifier_tensor_batch version 5 is what",
        ),
        (
            lambda folder: resave(folder, metadata={"depth_valid_masks": {"a": torch.ones(1)}}),
            r"\.pt has depth masks, and",
        ),
        (
            lambda folder: resave(folder, left_pad_lengths=torch.zeros(91, dtype=torch.int64)),
            r"\.pt holds other windows than .*/events-split0/metadata\.json says",
        ),
        (
            lambda folder: rewrite(folder / "metadata.json", depth_layouts={"a": 1}),
            "data that Sequifier wrote with depth_layouts cannot be read; write it with write_format: pt",
        ),
        (
            lambda folder: rewrite(folder / "metadata.json", prediction_aligned_splits=[1]),
            "data that Sequifier wrote with prediction_aligned_splits cannot be read",
        ),
        (
            lambda folder: rewrite(folder / "metadata.json", window_lengths=[9, 5]),
            r"windows of several lengths \[5, 9\] cannot be read",
        ),
    ],
)
def test_what_cannot_be_read_is_named(theirs: Path, damage: Callable[[Path], None], text: str) -> None:
    folder = theirs / "data/events-split0"
    damage(folder)
    with pytest.raises(DataError, match=text):
        samples(folder, ViewSpec(9, 4, 1, 8, 1))
