"""Sequences are cut into partitions of neighbouring ids: as many rows as one worker holds with ease.

The cut depends on the table alone, not on files, engine or workers; each partition becomes one shard of
each split.
"""

from __future__ import annotations

import numpy as np

from sequifier_ray.preprocess.columns import Int64
from sequifier_ray.preprocess.schema import Roles

PARTITION_BYTES = 64_000_000
LEAST_PARTITIONS = 8


def bytes_per_row(roles: Roles) -> int:
    """Bytes of a row while it is worked on: 8 for keys, reals and extra columns, 4 for codes."""
    extra = [name for name in (roles.split, roles.mask, roles.curriculum) if name is not None]
    return 16 + 4 * len(roles.categorical) + 8 * (len(roles.real) + len(extra))


def cut_partitions(n_rows: Int64, row_bytes: int, target_bytes: int = PARTITION_BYTES) -> Int64:
    """Where to cut sequences into partitions: int64 `[n_partitions + 1]`, from 0 to n_sequences, rising.

    As many as bring them near `target_bytes`, at least 8 where there are 8 sequences, balanced by the
    sequences' `n_rows`; every partition holds at least one whole sequence.
    """
    n_sequences, n_events = len(n_rows), int(n_rows.sum())
    wanted = -(-n_events * row_bytes // target_bytes)
    n_partitions = min(max(wanted, LEAST_PARTITIONS), n_sequences)
    ends = np.cumsum(n_rows)
    targets = np.arange(1, n_partitions) * (n_events / n_partitions)
    after = np.searchsorted(ends, targets)  # the sequence that a target falls into
    is_nearer_before = (targets - (ends[after] - n_rows[after])) < (ends[after] - targets)
    cuts = after + np.where(is_nearer_before, 0, 1)
    order = np.arange(1, n_partitions)
    cuts = np.maximum.accumulate(np.maximum(cuts - order, 0)) + order
    cuts = np.minimum(cuts, n_sequences - n_partitions + order)
    return np.concatenate([[0], cuts, [n_sequences]]).astype(np.int64)


def partition_of(keys: Int64, first_keys: Int64) -> Int64:
    """The partition of every row, by its sequence's key; `first_keys` are those that partitions begin
    with."""
    return np.searchsorted(first_keys, keys, side="right").astype(np.int64) - 1
