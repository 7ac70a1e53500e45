"""A batch of samples: tensors with their shapes and masks, gathered from open shards."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from sequifier_ray.data.shards import ShardData
from sequifier_ray.data.windows import ViewSpec, locate_samples, samples_per_segment

Int64 = npt.NDArray[np.int64]


@dataclass(frozen=True)
class SequenceBatch:
    """B samples of C inputs, of which the last P positions are predicted.

    ``inputs`` column → (B, C) int32 ids or float32; ``is_real`` (B, C) is False on padding.
    ``targets`` column → (B, P) int64 ids or float32; ``target_is_real`` (B, P) is also False on samples
    that only fill up the batch (``sample_is_real`` (B,) False). ``positions`` (B,) in the epoch's order.
    """

    inputs: dict[str, Tensor]
    is_real: Tensor
    targets: dict[str, Tensor]
    target_is_real: Tensor
    sample_is_real: Tensor
    positions: Int64

    def _map(self, change: Callable[[Tensor], Tensor]) -> SequenceBatch:
        return SequenceBatch(
            {name: change(value) for name, value in self.inputs.items()},
            change(self.is_real),
            {name: change(value) for name, value in self.targets.items()},
            change(self.target_is_real),
            change(self.sample_is_real),
            self.positions,
        )

    def to(self, device: torch.device, non_blocking: bool = False) -> SequenceBatch:
        """The same batch on a device."""
        if device.type == "cpu":
            return self
        return self._map(lambda tensor: tensor.to(device, non_blocking=non_blocking))

    def pin_memory(self) -> SequenceBatch:
        """The same batch in page-locked memory, from where it travels to a GPU in the background."""
        return self._map(lambda tensor: tensor.pin_memory())


@dataclass(frozen=True)
class OpenShard:
    """A shard with what locating its samples needs."""

    data: ShardData
    starts: Int64
    lengths: Int64
    sample_ends: Int64

    @staticmethod
    def of(data: ShardData, spec: ViewSpec) -> OpenShard:
        lengths = data.lengths
        return OpenShard(data, data.starts, lengths, np.cumsum(samples_per_segment(lengths, spec)))


def gather_columns(
    shard_of: Callable[[int], OpenShard],
    shards: Int64,
    samples: Int64,
    spec: ViewSpec,
    dtypes: dict[str, npt.DTypeLike],
) -> tuple[dict[str, npt.NDArray[np.generic]], npt.NDArray[np.bool_]]:
    """Events of samples: column → (n, width) of the given dtypes, and which of them are real, (n, width).

    ``shards`` and ``samples`` are (n,). Padding holds 0.
    """
    n = len(samples)
    values = {name: np.empty((n, spec.width), dtype) for name, dtype in dtypes.items()}
    first = np.empty(n, np.int64)
    steps = np.arange(spec.width)
    # Samples of one shard together: one pass over each shard's columns.
    by_shard = np.argsort(shards, kind="stable")
    bounds = np.flatnonzero(np.diff(shards[by_shard], prepend=-1, append=-1))
    for start, stop in pairwise(bounds):
        here = by_shard[start:stop]
        shard = shard_of(int(shards[here[0]]))
        segments, first[here] = locate_samples(samples[here], shard.sample_ends, shard.lengths, spec)
        events = np.maximum(first[here, None] + steps, 0)  # (n_here, width), padding reads the first event
        rows = shard.starts[segments, None] + events
        for name, column in values.items():
            column[here] = shard.data.columns[name].take(rows)
    is_real = first[:, None] + steps >= 0
    if first.min(initial=0) < 0:
        for column in values.values():
            column[~is_real] = 0
    return values, is_real


def batch_of(
    values: dict[str, npt.NDArray[np.generic]],
    is_real: npt.NDArray[np.bool_],
    sample_is_real: npt.NDArray[np.bool_],
    positions: Int64,
    spec: ViewSpec,
    input_columns: tuple[str, ...],
    target_columns: tuple[str, ...],
    prediction_length: int,
) -> SequenceBatch:
    """Cut gathered events (B, width) into inputs and targets."""
    inputs = {name: torch.from_numpy(values[name][:, : spec.context_length]) for name in input_columns}
    targets = {}
    for name in target_columns:
        column = torch.from_numpy(np.ascontiguousarray(values[name][:, spec.width - prediction_length :]))
        targets[name] = column if column.is_floating_point() else column.long()
    target_is_real = is_real[:, spec.width - prediction_length :] & sample_is_real[:, None]
    return SequenceBatch(
        {name: column.contiguous() for name, column in inputs.items()},
        torch.from_numpy(np.ascontiguousarray(is_real[:, : spec.context_length])),
        targets,
        torch.from_numpy(target_is_real),
        torch.from_numpy(sample_is_real),
        positions,
    )
