"""The order of samples and who takes which: pure functions of seed, epoch and counts.

Order and plan follow the idea of MosaicML Streaming's deterministic partition, without its shared
memory: the list of remaining intervals is the whole state, the same on every rank.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

Int64 = npt.NDArray[np.int64]
Interval = tuple[int, int]


class EpochOrder:
    """Position p in [0, N) → (shard, sample): shards are permuted, then samples within blocks of shards.

    ``file_order`` "shuffled" permutes shards and samples, "name" samples within blocks of consecutive
    shards, "identity" nothing. One block's permutation is worked out at a time and ``cache_blocks`` are
    kept; nothing of size N is built.
    """

    def __init__(
        self,
        seed: int,
        epoch: int,
        shard_sample_counts: tuple[int, ...],
        shuffle_shards: int,
        file_order: str,
        cache_blocks: int = 4,
    ) -> None:
        self._key = (seed, epoch)
        self._file_order = file_order
        n_shards = len(shard_sample_counts)
        self._shards = np.arange(n_shards)
        if file_order == "shuffled":
            self._shards = self._generator(0).permutation(n_shards)
        counts = np.asarray(shard_sample_counts, dtype=np.int64)[self._shards]
        self._shard_ends = np.cumsum(counts)  # (n_shards,), in the order of this epoch
        self._block_ends = self._shard_ends[_last_of_groups(n_shards, shuffle_shards)]
        self._cache_blocks = cache_blocks
        self._permutations: OrderedDict[int, Int64] = OrderedDict()

    @property
    def n_samples(self) -> int:
        return int(self._shard_ends[-1]) if len(self._shard_ends) else 0

    def locate(self, positions: Int64) -> tuple[Int64, Int64]:
        """Positions (n,) → shard numbers of the table (n,) and sample numbers within them (n,)."""
        order = positions
        if self._file_order != "identity":
            order = np.empty_like(positions)
            blocks = np.searchsorted(self._block_ends, positions, side="right")
            for block in np.unique(blocks):
                here = blocks == block
                start = int(self._block_ends[block - 1]) if block > 0 else 0
                order[here] = self._permutation(int(block))[positions[here] - start] + start
        index = np.searchsorted(self._shard_ends, order, side="right")
        starts = np.where(index > 0, self._shard_ends[index - 1], 0)
        return self._shards[index], order - starts

    def _generator(self, number: int) -> np.random.Generator:
        return np.random.Generator(np.random.Philox(np.random.SeedSequence([*self._key, number])))

    def _permutation(self, block: int) -> Int64:
        if block in self._permutations:
            self._permutations.move_to_end(block)
            return self._permutations[block]
        start = int(self._block_ends[block - 1]) if block > 0 else 0
        size = int(self._block_ends[block]) - start
        numbers: Int64 = np.arange(size, dtype=np.int64)
        self._generator(block + 1).shuffle(numbers)
        self._permutations[block] = numbers
        if len(self._permutations) > self._cache_blocks:
            self._permutations.popitem(last=False)
        return numbers


def _last_of_groups(n: int, size: int) -> Int64:
    """Index of the last member of each group of ``size`` consecutive ones of n."""
    return np.minimum(np.arange(size - 1, n + size - 1, size), n - 1)


@dataclass(frozen=True)
class Plan:
    """What is left of an epoch: per stream the half-open intervals of positions, in order.

    ``samples_per_update`` G is shared out among the streams, so that what update u takes does not depend
    on how many ranks the streams are dealt to.
    """

    streams: tuple[tuple[Interval, ...], ...]
    samples_per_update: int

    @staticmethod
    def start(n_samples: int, n_streams: int, samples_per_update: int) -> Plan:
        """A whole epoch: n_streams consecutive pieces whose sizes differ by at most 1."""
        return Plan(_cut(((0, n_samples),), n_streams), samples_per_update)

    def share(self, stream: int) -> int:
        """Samples that a stream gives to one update."""
        each, more = divmod(self.samples_per_update, len(self.streams))
        return each + (stream < more)

    @property
    def n_remaining(self) -> int:
        return sum(_size(stream) for stream in self.streams)

    @property
    def updates_left(self) -> int:
        return max(math.ceil(_size(s) / self.share(i)) if s else 0 for i, s in enumerate(self.streams))

    def advanced(self, updates: int = 1) -> Plan:
        """The plan after some updates."""
        rest = tuple(_drop(s, updates * self.share(i)) for i, s in enumerate(self.streams))
        return replace(self, streams=rest)

    def for_world_size(self, world_size: int) -> Plan:
        """The plan for another number of ranks.

        Streams are cut anew only if ranks cannot share them out, or if there are more than samples in an
        update, so that some would never be read.
        """
        assert world_size <= self.samples_per_update
        if len(self.streams) % world_size == 0 and len(self.streams) <= self.samples_per_update:
            return self
        remaining = tuple(interval for stream in self.streams for interval in stream)
        return replace(self, streams=_cut(remaining, world_size))

    def _own(self, rank: int, world_size: int) -> range:
        each, rest = divmod(len(self.streams), world_size)
        assert rest == 0, "for_world_size comes first"
        return range(rank * each, (rank + 1) * each)

    def rank_positions(self, rank: int, world_size: int) -> Int64:
        """The positions that a rank takes in the next update, (n,)."""
        pieces = []
        for i in self._own(rank, world_size):
            wanted = self.share(i)
            for start, stop in self.streams[i]:
                if wanted == 0:
                    break
                taken = min(wanted, stop - start)
                pieces.append(np.arange(start, start + taken, dtype=np.int64))
                wanted -= taken
        return np.concatenate(pieces) if pieces else np.zeros(0, dtype=np.int64)

    def micro_batches(self, world_size: int, batch_size: int) -> tuple[int, int]:
        """(number, size) of the micro-batches of the next update, equal on all ranks.

        The size is the same for every update of an epoch, so that shapes stay static.
        """
        shares = [sum(self.share(i) for i in self._own(rank, world_size)) for rank in range(world_size)]
        full = max(shares)
        size = batch_size if full % batch_size == 0 else math.ceil(full / math.ceil(full / batch_size))
        takes = [
            sum(min(self.share(i), _size(self.streams[i])) for i in self._own(rank, world_size))
            for rank in range(world_size)
        ]
        return math.ceil(max(takes) / size), size

    def to_json(self) -> dict[str, Any]:
        streams = [[list(interval) for interval in stream] for stream in self.streams]
        return {"samples_per_update": self.samples_per_update, "streams": streams}

    @staticmethod
    def from_json(values: dict[str, Any]) -> Plan:
        streams = tuple(tuple((int(a), int(b)) for a, b in stream) for stream in values["streams"])
        return Plan(streams, int(values["samples_per_update"]))


def _size(intervals: tuple[Interval, ...]) -> int:
    return sum(stop - start for start, stop in intervals)


def _drop(intervals: tuple[Interval, ...], count: int) -> tuple[Interval, ...]:
    """Intervals without their first ``count`` positions."""
    rest = []
    for start, stop in intervals:
        skipped = min(count, stop - start)
        count -= skipped
        if start + skipped < stop:
            rest.append((start + skipped, stop))
    return tuple(rest)


def _take(intervals: tuple[Interval, ...], count: int) -> tuple[Interval, ...]:
    """The first ``count`` positions of intervals."""
    taken = []
    for start, stop in intervals:
        size = min(count, stop - start)
        if size > 0:
            taken.append((start, start + size))
        count -= size
    return tuple(taken)


def _cut(intervals: tuple[Interval, ...], n_pieces: int) -> tuple[tuple[Interval, ...], ...]:
    """Consecutive pieces whose sizes differ by at most 1, the larger ones first."""
    each, more = divmod(_size(intervals), n_pieces)
    pieces = []
    for i in range(n_pieces):
        size = each + (i < more)
        pieces.append(_take(intervals, size))
        intervals = _drop(intervals, size)
    return tuple(pieces)
