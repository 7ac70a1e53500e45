"""Batches against plain Python, exactly once over uneven ranks, and a thread that always ends."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sequifier_ray.data.loader import ShardLoader, SplitDataset
from sequifier_ray.data.metadata import ColumnStatistics, DatasetDescription, SplitMetadata, write_split
from sequifier_ray.data.order import EpochOrder, Plan
from sequifier_ray.data.shards import ShardData, write_shard
from sequifier_ray.data.windows import ViewSpec
from sequifier_ray.errors import DataError

SPEC = ViewSpec(9, 4, 1, 8, 1)
UNEVEN = ((3,), (40, 41, 2, 1), (1,) * 5, (9, 8, 10, 100), (12,))


def write_dataset(
    folder: Path, shards: tuple[tuple[int, ...], ...], write_format: str = "pt"
) -> SplitDataset:
    """Event k of the whole data set has id 3 + k % 200 and the real value k, of which many are 0."""
    description = DatasetDescription(
        n_classes={"id": 203},
        id_maps={"id": {str(i): i for i in range(3, 203)}},
        split_paths=(folder.name,),
        column_data_types={"id": "Int64", "value": "Float32"},
        selected_columns_statistics={"value": ColumnStatistics(0.0, 1.0)},
        normalize_real_columns=False,
        normalize_on_all_data=False,
        split_ratios=(1.0,),
        split_method="within_sequence",
        window_length=9,
        window_stride=4,
        max_target_offset=1,
        special_token_ids={"[unknown]": 0, "[other]": 1, "[mask]": 2},
        write_format=write_format,
        merge_output=False,
    )
    folder.mkdir()
    entries, event = [], 0
    for i, lengths in enumerate(shards):
        n = sum(lengths)
        k = np.arange(event, event + n)
        data = ShardData(
            {"id": (3 + k % 200).astype(np.uint8), "value": (k * (k % 3 > 0)).astype(np.float32)},
            np.arange(len(lengths), dtype=np.int64) + 100 * i,
            np.zeros(len(lengths), np.int64),
            None,
            np.append(0, np.cumsum(lengths)).astype(np.int64),
        )
        entries.append(write_shard(str(folder / f"{i}.{write_format}"), data, write_format))
        event += n
    write_split(str(folder), SplitMetadata(description, 0, tuple(entries)))
    return SplitDataset(str(folder), SPEC, ("id", "value"), ("id", "value"), 3)


def open_loader(dataset: SplitDataset, rank: int = 0, world_size: int = 1, **options: Any) -> ShardLoader:
    order = EpochOrder(1, 0, dataset.shard_sample_counts, 2, options.pop("file_order", "shuffled"))
    plan = Plan.start(dataset.n_samples, options.pop("streams", world_size), options.pop("per_update", 12))
    return ShardLoader(dataset, order, plan, rank, world_size, options.pop("batch_size", 4), **options)


@pytest.mark.parametrize("write_format", ["pt", "parquet", "csv"])
def test_batches_equal_plain_python(tmp_path: Path, write_format: str) -> None:
    dataset = write_dataset(tmp_path / "d", UNEVEN, write_format)
    lengths = [length for shard in UNEVEN for length in shard]
    begins = np.append(0, np.cumsum(lengths))
    wanted = []
    for length, begin in zip(lengths, begins, strict=False):
        n = -(-(length - 9) // 4) + 1 if length > 9 else 1
        firsts = [int(x) for x in np.floor(np.linspace(0, length - 9, n))] if length >= 9 else [length - 9]
        wanted += [[begin + f + i if f + i >= 0 else None for i in range(9)] for f in firsts]
    seen = []
    with open_loader(dataset, file_order="identity") as loader:
        for update in loader:
            for batch in update.micro_batches:
                for b in np.flatnonzero(batch.sample_is_real.numpy()):
                    seen.append(wanted[len(seen)])
                    events = seen[-1]
                    assert batch.is_real[b].tolist() == [k is not None for k in events[:8]]
                    assert batch.inputs["id"][b].tolist() == [
                        0 if k is None else 3 + k % 200 for k in events[:8]
                    ]
                    assert batch.targets["id"][b].tolist() == [
                        0 if k is None else 3 + k % 200 for k in events[6:]
                    ]
                    values = [0 if k is None else k * (k % 3 > 0) for k in events]
                    assert batch.inputs["value"][b].tolist() == values[:8]
                    assert batch.targets["value"][b].tolist() == values[6:]
                    assert batch.target_is_real[b].tolist() == [k is not None for k in events[6:]]
    assert len(seen) == len(wanted) == dataset.n_samples


@settings(max_examples=25, deadline=None)
@given(st.integers(1, 4), st.integers(1, 3), st.integers(1, 7))
def test_uneven_shards_every_real_sample_once(
    tmp_path_factory: pytest.TempPathFactory, world_size: int, factor: int, batch_size: int
) -> None:
    dataset = write_dataset(tmp_path_factory.mktemp("u") / "d", UNEVEN)
    seen, shapes = [], []
    for rank in range(world_size):
        steps = []
        with open_loader(
            dataset, rank, world_size, streams=world_size * factor, batch_size=batch_size
        ) as loader:
            for update in loader:
                steps.append([len(batch.sample_is_real) for batch in update.micro_batches])
                for batch in update.micro_batches:
                    seen += batch.positions[batch.sample_is_real.numpy()].tolist()
                    assert not batch.target_is_real[~batch.sample_is_real].any()
        shapes.append(steps)
    assert sorted(seen) == list(range(dataset.n_samples))
    assert all(steps == shapes[0] for steps in shapes)


def test_batch_size_beyond_the_samples_costs_no_memory(tmp_path: Path) -> None:
    dataset = write_dataset(tmp_path / "d", UNEVEN)
    with open_loader(dataset, 0, 2, per_update=2 * 10**9, batch_size=10**9) as loader:
        (update,) = list(loader)
    n_slots = sum(len(batch.sample_is_real) for batch in update.micro_batches)
    assert dataset.n_samples <= 2 * n_slots <= dataset.n_samples + 2


def test_rank_without_samples_takes_part(tmp_path: Path) -> None:
    dataset = write_dataset(tmp_path / "d", ((3,),))
    with open_loader(dataset, 2, 3) as loader:
        (update,) = list(loader)
    (batch,) = update.micro_batches
    assert not batch.sample_is_real.any()
    assert batch.positions.tolist() == [0]
    assert update.n_real == 1


def loader_threads() -> int:
    return sum(thread.name == "shard-loader" for thread in threading.enumerate())


def test_thread_ends_in_every_case(tmp_path: Path) -> None:
    dataset = write_dataset(tmp_path / "d", UNEVEN)
    with open_loader(dataset) as loader:
        list(loader)
    assert loader_threads() == 0
    with open_loader(dataset) as loader:
        next(iter(loader))
    assert loader_threads() == 0
    with pytest.raises(ZeroDivisionError), open_loader(dataset) as loader:
        next(iter(loader)).n_real / 0
    assert loader_threads() == 0


def test_error_of_the_thread_reaches_the_consumer(tmp_path: Path) -> None:
    dataset = write_dataset(tmp_path / "d", UNEVEN)
    path = tmp_path / "d" / "3.pt"
    path.write_bytes(path.read_bytes()[:-1])
    with open_loader(dataset) as loader, pytest.raises(DataError, match=r"shard .*3\.pt has"):
        list(loader)
    assert loader_threads() == 0


def test_counts_come_from_metadata_alone(tmp_path: Path) -> None:
    dataset = write_dataset(tmp_path / "d", UNEVEN)
    for path in (tmp_path / "d").glob("*.pt"):
        path.unlink()
    again = SplitDataset(dataset.path, SPEC, ("id",), ("id",), 1)
    assert again.n_samples == dataset.n_samples > 0
    assert again.fingerprint == dataset.fingerprint


def test_few_shards_are_open_at_once(tmp_path: Path) -> None:
    dataset = write_dataset(tmp_path / "d", ((30,),) * 20)
    loader = open_loader(dataset, open_shards=3)
    with loader:
        list(loader)
    assert len(loader._cache._open) == 3
