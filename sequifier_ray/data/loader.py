"""The batches of one rank, gathered ahead by one background thread."""

from __future__ import annotations

import queue
import threading
from collections import OrderedDict
from collections.abc import Iterator
from types import TracebackType
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from sequifier_ray.data.batch import OpenShard, SequenceBatch, batch_of, gather_columns
from sequifier_ray.data.metadata import SplitMetadata, read_split
from sequifier_ray.data.node_cache import DEFAULT_CACHE, NodeCache
from sequifier_ray.data.order import EpochOrder, Int64, Plan
from sequifier_ray.data.shards import open_shard
from sequifier_ray.data.windows import ViewSpec, samples_per_segment


class SplitDataset:
    """One split seen through a view: sample counts from metadata alone, shards opened when touched.

    Raises:
        DataError: see read_split and open_shard.
    """

    def __init__(
        self,
        path: str,
        spec: ViewSpec,
        input_columns: tuple[str, ...],
        target_columns: tuple[str, ...],
        prediction_length: int,
        cache: NodeCache = DEFAULT_CACHE,
    ) -> None:
        self.path = path
        self._cache = cache
        self.spec = spec
        self.input_columns = input_columns
        self.target_columns = target_columns
        self.prediction_length = prediction_length
        self.metadata: SplitMetadata = read_split(path)
        description = self.metadata.description
        self._folder = path.rpartition("/")[0] if description.merge_output else path
        self.shard_sample_counts = tuple(self._count(entry.segment_lengths) for entry in self.metadata.shards)
        self._dtypes: dict[str, npt.DTypeLike] = {}
        for name in dict.fromkeys((*input_columns, *target_columns)):
            self._dtypes[name] = np.int32 if name in description.id_maps else np.float32

    def _count(self, histogram: tuple[tuple[int, int], ...]) -> int:
        if not histogram:
            return 0
        lengths, counts = np.array(histogram, dtype=np.int64).T
        return int((samples_per_segment(lengths, self.spec) * counts).sum())

    @property
    def n_samples(self) -> int:
        return sum(self.shard_sample_counts)

    @property
    def fingerprint(self) -> str:
        return self.metadata.fingerprint

    def open(self, shard: int) -> OpenShard:
        """Map one shard."""
        metadata = self.metadata
        data = open_shard(self._folder, metadata.shards[shard], metadata.description, self._cache)
        return OpenShard.of(data, self.spec)

    @property
    def dtypes(self) -> dict[str, npt.DTypeLike]:
        """Of gathered columns: int32 ids, float32 reals."""
        return self._dtypes


class Update(NamedTuple):
    """One update's work of this rank, the plan after it, and its real samples over all ranks."""

    micro_batches: list[SequenceBatch]
    plan_after: Plan
    n_real: int


class _ShardCache:
    """The shards opened last; older ones are unmapped."""

    def __init__(self, dataset: SplitDataset, capacity: int) -> None:
        self._dataset = dataset
        self._capacity = capacity
        self._open: OrderedDict[int, OpenShard] = OrderedDict()

    def __call__(self, shard: int) -> OpenShard:
        if shard in self._open:
            self._open.move_to_end(shard)
        else:
            self._open[shard] = self._dataset.open(shard)
            if len(self._open) > self._capacity:
                self._open.popitem(last=False)
        return self._open[shard]


_END = object()
# Samples that one gathering aims at: small batches would pay its fixed cost too often.
_GATHER_SAMPLES = 1024


class ShardLoader:
    """Iterates over the updates that are left in a plan, as rank ``rank`` of ``world_size``.

    Every rank yields the same number of updates with the same number and size of micro-batches; a rank
    that is short of samples repeats its own with ``sample_is_real`` False. Use as a context manager:
    leaving it ends the background thread.

    Raises:
        DataError: a shard cannot be read; raised where the batch would have come.
    """

    def __init__(
        self,
        dataset: SplitDataset,
        order: EpochOrder,
        plan: Plan,
        rank: int,
        world_size: int,
        batch_size: int,
        pin_memory: bool = False,
        prefetch_updates: int = 2,
        open_shards: int = 16,
    ) -> None:
        self._dataset = dataset
        self._order = order
        self._plan = plan
        self._rank = rank
        self._world_size = world_size
        # A batch beyond the epoch's samples would be filled up with repeated ones.
        self._batch_size = min(batch_size, max(1, -(-order.n_samples // world_size)))
        self._pin_memory = pin_memory
        self._cache = _ShardCache(dataset, open_shards)
        self._queue: queue.Queue[object] = queue.Queue(prefetch_updates)
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._work, name="shard-loader", daemon=True)
        self._thread.start()

    def __enter__(self) -> ShardLoader:
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """End the background thread and forget what it prepared."""
        self._closed.set()
        while True:
            try:
                self._queue.get_nowait()
            except queue.Empty:
                if not self._thread.is_alive():
                    return
                self._thread.join(0.01)

    def __iter__(self) -> Iterator[Update]:
        while True:
            item = self._queue.get()
            if item is _END:
                return
            if isinstance(item, BaseException):
                raise item
            assert isinstance(item, Update)
            yield item

    def _work(self) -> None:
        try:
            plan = self._plan
            while plan.n_remaining and not self._closed.is_set():
                plans = self._next_plans(plan)
                for update in self._gather(plans):
                    self._hand_over(update)
                plan = plans[-1].advanced()
            self._hand_over(_END)
        except BaseException as error:  # noqa: BLE001 - belongs to the thread that waits for batches
            self._hand_over(error)

    def _next_plans(self, plan: Plan) -> list[Plan]:
        """The plans before each of the next updates: as many as make one gathering worth its overhead."""
        plans = [plan]
        n_samples = len(plan.rank_positions(self._rank, self._world_size))
        for _ in range(_GATHER_SAMPLES // max(n_samples, 1) - 1):
            plan = plan.advanced()
            if not plan.n_remaining:
                break
            plans.append(plan)
        return plans

    def _hand_over(self, item: object) -> None:
        while not self._closed.is_set():
            try:
                self._queue.put(item, timeout=0.1)
            except queue.Full:
                continue
            return

    def _gather(self, plans: list[Plan]) -> Iterator[Update]:
        """This rank's part of the next update of each plan; events of all are gathered at once."""
        dataset = self._dataset
        sizes = [plan.micro_batches(self._world_size, self._batch_size) for plan in plans]
        taken = [plan.rank_positions(self._rank, self._world_size) for plan in plans]
        filled = [_fill(t, number * size) for t, (number, size) in zip(taken, sizes, strict=True)]
        shards, samples = self._order.locate(np.concatenate(filled))
        values, is_real = gather_columns(self._cache, shards, samples, dataset.spec, dataset.dtypes)
        offset = 0
        for plan, own, positions, (number, size) in zip(plans, taken, filled, sizes, strict=True):
            batches = []
            for start in range(0, number * size, size):
                part = slice(offset + start, offset + start + size)
                batch = batch_of(
                    {name: column[part] for name, column in values.items()},
                    is_real[part],
                    np.arange(start, start + size) < len(own),
                    positions[start : start + size],
                    dataset.spec,
                    dataset.input_columns,
                    dataset.target_columns,
                    dataset.prediction_length,
                )
                batches.append(batch.pin_memory() if self._pin_memory else batch)
            offset += number * size
            after = plan.advanced()
            yield Update(batches, after, plan.n_remaining - after.n_remaining)


def _fill(positions: Int64, size: int) -> Int64:
    """Positions repeated until there are ``size``; position 0 for a rank that has none."""
    if len(positions) == size:
        return positions
    return np.resize(positions if len(positions) else np.zeros(1, np.int64), size)
