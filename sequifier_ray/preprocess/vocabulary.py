"""Ids of categories and statistics of reals: fitted on some rows, or taken from an earlier run."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import polars as pl

from sequifier_ray.config.tables import MOST_CLASSES, Cardinality
from sequifier_ray.data.metadata import SPECIAL_TOKEN_IDS, HashedRest
from sequifier_ray.errors import DataError
from sequifier_ray.preprocess.columns import Float64, Int64

UNKNOWN_ID = SPECIAL_TOKEN_IDS["[unknown]"]
OTHER_ID = SPECIAL_TOKEN_IDS["[other]"]
MASK_ID = SPECIAL_TOKEN_IDS["[mask]"]
FIRST_ID = len(SPECIAL_TOKEN_IDS)
IdMap = dict[str, int]
# (x - mean) / (std + this), as Sequifier has it
STD_OFFSET = 1e-9
BLOCK_ROWS = 1_000_000


@dataclass(frozen=True)
class Moments:
    """Count, mean, sum of squared deviations and range of some numbers; those of two parts give those of both
    (Chan, Golub, LeVeque 1983). The mean lies within the range, so that a constant deviates by exactly 0."""

    count: int = 0
    mean: float = 0.0
    squared_deviations: float = 0.0
    minimum: float = math.inf
    maximum: float = -math.inf

    @staticmethod
    def of(values: Float64) -> Moments:
        """The moments of finite float64 values; zeros for none."""
        if not len(values):
            return Moments()
        low, high = float(values.min()), float(values.max())
        mean = min(max(float(values.mean()), low), high)
        deviations = values - mean
        # A sum and no dot product: the latter's rounding depends on the number of threads.
        return Moments(len(values), mean, float(np.square(deviations).sum()), low, high)

    def merge(self, other: Moments) -> Moments:
        """The moments of both parts together."""
        count = self.count + other.count
        if not self.count or not other.count:
            return self if self.count else other
        low, high = min(self.minimum, other.minimum), max(self.maximum, other.maximum)
        delta = other.mean - self.mean
        mean = min(max(self.mean + delta * other.count / count, low), high)
        between = delta * delta * self.count * other.count / count
        deviations = self.squared_deviations + other.squared_deviations + between
        return Moments(count, mean, deviations, low, high)

    @property
    def std(self) -> float:
        """Sample standard deviation (n - 1); 0 for fewer than two values."""
        return float(np.sqrt(self.squared_deviations / (self.count - 1))) if self.count > 1 else 0.0


def fit_moments(column: Float64, rows: Int64) -> Moments:
    """The moments of some rows of a column without those that are NaN, a block of rows at a time."""
    moments = Moments()
    # An overflow becomes an infinite deviation here and an error that names the column when it is encoded.
    with np.errstate(over="ignore", invalid="ignore"):
        for start in range(0, len(rows), BLOCK_ROWS):
            values = column[rows[start : start + BLOCK_ROWS]]
            moments = moments.merge(Moments.of(values[~np.isnan(values)]))
    return moments


def normalize(values: Float64, mean: float, std: float) -> Float64:
    """(x - mean) / (std + 1e-9); zeros for a constant column, whose rounding would be blown up."""
    if std == 0.0:
        return np.zeros_like(values)
    return (values - mean) / (std + STD_OFFSET)


def listed_values(values: pl.Series, counts: Int64, limit: Cardinality | None) -> pl.Series:
    """Those of the distinct `values`, which occur `counts` times, that have an id of their own; sorted as
    they were."""
    keep = counts > 0
    if values.dtype == pl.String:  # the names of special tokens have their ids
        keep &= ~values.is_in(list(SPECIAL_TOKEN_IDS)).to_numpy()
    if limit is not None and limit.min_freq is not None:
        keep &= counts >= limit.min_freq
    if limit is not None and limit.top_k is not None:
        # Stable: among equally frequent values the smaller one comes first.
        is_top = np.zeros(len(counts), bool)
        is_top[np.argsort(np.where(keep, -counts, 0), kind="stable")[: limit.top_k]] = True
        keep &= is_top
    return values.filter(pl.Series(keep, dtype=pl.Boolean))


def bucket_of(value: str | int, hashing: HashedRest) -> int:
    """The id of a value that is not listed: the first 8 bytes of sha256("<seed>:<value>") modulo the
    buckets."""
    digest = hashlib.sha256(f"{hashing.seed}:{value}".encode()).digest()
    return hashing.first_id + int.from_bytes(digest[:8], "big") % hashing.num_buckets


def build_id_map(values: Iterable[str | int]) -> IdMap:
    """Ids from 3 in sorted order of distinct values: strings by code point, integers by value.

    The names of special tokens keep the reserved ids; maps of strings list [unknown] and [other] too.

    >>> build_id_map(["b", "a"])
    {'a': 3, 'b': 4, '[unknown]': 0, '[other]': 1}
    >>> build_id_map([10, 9])
    {'9': 3, '10': 4}
    """
    integers: list[int] = []
    strings: list[str] = []
    for value in values:
        if isinstance(value, str):
            strings.append(value)
        else:
            integers.append(value)
    keys = [str(i) for i in sorted(integers)] + sorted(set(strings) - set(SPECIAL_TOKEN_IDS))
    id_map = {key: FIRST_ID + i for i, key in enumerate(keys)}
    if strings:
        id_map |= {"[unknown]": UNKNOWN_ID, "[other]": OTHER_ID}
    return id_map


def n_classes(id_map: Mapping[str, int]) -> int:
    """Largest id + 1; never below 3, the reserved ids."""
    return max([*id_map.values(), FIRST_ID - 1]) + 1


def ids_of_values(values: pl.Series, id_map: Mapping[str, int], hashing: HashedRest | None = None) -> Int64:
    """Id of each of the distinct values, and one place more, [unknown], that the null code -1 finds.

    Values that the map does not list are [other], or in a bucket; names of special tokens are those tokens.
    """
    known = SPECIAL_TOKEN_IDS | dict(id_map) if values.dtype == pl.String else id_map
    if hashing is None:
        ids = [known.get(str(value), OTHER_ID) for value in values.to_list()]
    else:
        found = ((value, known.get(str(value))) for value in values.to_list())
        ids = [bucket_of(value, hashing) if known_id is None else known_id for value, known_id in found]
    return np.array([*ids, UNKNOWN_ID], np.int64)


def read_precomputed_map(path: str, column: str) -> IdMap:
    """A map of the user's own, `configs/id_maps/<column>.json`: distinct integer ids from 3.

    Raises DataError when the file is missing, is not such a map, or holds ids below 3.
    """
    try:
        pairs = json.loads(Path(path).read_text(encoding="utf-8"), object_pairs_hook=list)
    except FileNotFoundError as error:
        raise DataError(
            f'use_precomputed_maps: "{column}" needs the file {path}, which does not exist'
        ) from error
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise DataError(f"{path} is not valid JSON: {error}") from error
    except OSError as error:
        raise DataError(f"cannot read {path}: {error.strerror}; it must be a JSON file") from error
    if not isinstance(pairs, list) or not pairs or not all(isinstance(pair, tuple) for pair in pairs):
        raise DataError(f"{path} must hold an object of value: id pairs, ids from {FIRST_ID}")
    id_map: IdMap = {}
    data_ids = set()
    for value, identity in pairs:
        if value in id_map:
            raise DataError(f"{path} names {value!r} more than once; every value has one id")
        reserved = SPECIAL_TOKEN_IDS.get(value)
        allowed = isinstance(identity, int) and not isinstance(identity, bool)
        if allowed and identity >= MOST_CLASSES:
            raise DataError(
                f"{path}: the id of {value!r} is {identity}; ids are below {MOST_CLASSES:,}, for an "
                "embedding has a row for each up to the largest: number the values from 3 without large gaps"
            )
        if not allowed or (identity != reserved and identity < FIRST_ID) or identity in data_ids:
            raise DataError(
                f"{path}: the id of {value!r} is {identity!r}; ids are distinct integers from {FIRST_ID} "
                "(0 [unknown], 1 [other] and 2 [mask] are reserved)"
            )
        data_ids.add(identity)
        id_map[value] = identity
    return id_map
