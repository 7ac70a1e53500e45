"""What a preprocessed data set says of itself: its description, and the table of shards of each split."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import MISSING, asdict, dataclass, field
from typing import Any

from sequifier_ray import storage
from sequifier_ray.data import sequifier_windows
from sequifier_ray.errors import DataError

DATASET_FORMAT = "sequifier_ray.dataset"
SPLIT_FORMAT = "sequifier_ray.split"
VERSION = 1
SPECIAL_TOKEN_IDS = {"[unknown]": 0, "[other]": 1, "[mask]": 2}
_AGAIN = "run `sequifier-ray preprocess` again"


@dataclass(frozen=True)
class ColumnStatistics:
    """Mean and sample standard deviation (n − 1) of a real column, in the units of the input."""

    mean: float
    std: float


@dataclass(frozen=True)
class HashedRest:
    """Where values without an id of their own go: ``num_buckets`` ids from ``first_id``, by a hash with
    ``seed``."""

    num_buckets: int
    seed: int
    first_id: int


@dataclass(frozen=True)
class DatasetDescription:
    """``configs/metadata_configs/<name>.json``: everything needed to read, train on and decode a data set.

    ``column_data_types`` holds every feature column in order with its polars type name. ``id_maps`` maps
    the text of a value to its id, from 3. ``split_paths`` are relative to the project root.

    ``hashed_columns``: where values that ``id_maps`` does not list go, if not to ``[other]``.
    ``missing_real``: what stands for missing reals (``error``: there are none). ``indicator_columns``: real
    column of 0 and 1 → the real column whose missing values it marks. ``curriculum_column`` is stored as
    64-bit integers and is no feature. ``sequence_id_type`` is Int64 or String, ``item_position_type`` Int64
    or Datetime (microseconds since 1970 in UTC); both columns' names in the input are kept.
    """

    n_classes: dict[str, int]
    id_maps: dict[str, dict[str, int]]
    split_paths: tuple[str, ...]
    column_data_types: dict[str, str]
    selected_columns_statistics: dict[str, ColumnStatistics]
    normalize_real_columns: bool
    normalize_on_all_data: bool
    split_ratios: tuple[float, ...] | None
    split_method: str
    window_length: int
    window_stride: int
    max_target_offset: int
    special_token_ids: dict[str, int]
    write_format: str
    merge_output: bool
    hashed_columns: dict[str, HashedRest] = field(default_factory=dict)
    missing_real: str = "error"
    indicator_columns: dict[str, str] = field(default_factory=dict)
    curriculum_column: str | None = None
    sequence_id_column: str = "sequenceId"
    sequence_id_type: str = "Int64"
    item_position_column: str = "itemPosition"
    item_position_type: str = "Int64"

    @property
    def columns(self) -> tuple[str, ...]:
        return tuple(self.column_data_types)

    @property
    def stored_columns(self) -> tuple[str, ...]:
        extra = () if self.curriculum_column is None else (self.curriculum_column,)
        return (*self.columns, *extra)

    @property
    def categorical_columns(self) -> tuple[str, ...]:
        return tuple(name for name in self.columns if name in self.id_maps)

    @property
    def real_columns(self) -> tuple[str, ...]:
        return tuple(name for name in self.columns if name not in self.id_maps)

    def to_json(self) -> dict[str, Any]:
        """Plain values; ``columns`` keeps the order that sorted keys lose."""
        values = asdict(self)
        return {"format": DATASET_FORMAT, "version": VERSION, "columns": list(self.columns), **values}

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> DatasetDescription:
        """The description that ``to_json`` wrote; raises KeyError where it lacks something."""
        fields = cls.__dataclass_fields__
        optional = {n for n, f in fields.items() if (f.default, f.default_factory) != (MISSING, MISSING)}
        known = {name: values[name] for name in fields if name in values or name not in optional}
        types = known["column_data_types"]
        known["column_data_types"] = {name: types[name] for name in values["columns"]}
        statistics = known["selected_columns_statistics"]
        known["selected_columns_statistics"] = {n: ColumnStatistics(**s) for n, s in statistics.items()}
        known["hashed_columns"] = {n: HashedRest(**h) for n, h in known.get("hashed_columns", {}).items()}
        known["split_paths"] = tuple(known["split_paths"])
        ratios = known["split_ratios"]
        known["split_ratios"] = None if ratios is None else tuple(ratios)
        return cls(**known)


@dataclass(frozen=True)
class ShardEntry:
    """One shard in the table: ``segment_lengths`` is its histogram, (length, count) with rising lengths.

    ``bytes`` is SIZE_UNKNOWN where Sequifier wrote the table, which has no sizes.
    """

    name: str
    bytes: int
    events: int
    segments: int
    segment_lengths: tuple[tuple[int, int], ...]

    @property
    def is_of_sequifier(self) -> bool:
        """Whether the file holds Sequifier's stored windows."""
        return self.bytes == sequifier_windows.SIZE_UNKNOWN


@dataclass(frozen=True)
class SplitMetadata:
    """``metadata.json`` of one split."""

    description: DatasetDescription
    split: int
    shards: tuple[ShardEntry, ...]

    @property
    def fingerprint(self) -> str:
        """sha256 over the ordered shard names, sizes and counts: equal data sets have equal ones.

        The histogram of segment lengths stands in for a size that is not known.
        """
        rows = [
            [s.name, s.segment_lengths if s.is_of_sequifier else s.bytes, s.events, s.segments]
            for s in self.shards
        ]
        return hashlib.sha256(json.dumps(rows).encode()).hexdigest()


def _to_text(values: Mapping[str, Any]) -> str:
    """One line a key: readable, without the slow encoder that indentation takes for large vocabularies."""
    lines = [
        f"{json.dumps(key)}: {json.dumps(values[key], sort_keys=True, ensure_ascii=False)}"
        for key in sorted(values)
    ]
    return "{\n" + ",\n".join(lines) + "\n}\n"


def description_text(description: DatasetDescription) -> str:
    """What a description's file holds; equal descriptions have equal texts."""
    return _to_text(description.to_json())


def write_description(path: str, description: DatasetDescription) -> None:
    """Write the description of a data set, whole or not at all."""
    storage.write_atomic(path, description_text(description))


def read_description(path: str, field: str = "dataset.part.metadata_config_path") -> DatasetDescription:
    """The description, of this package or of Sequifier 3.1, that `field` of a configuration names.

    Raises DataError if the file is missing, broken, or of another format or version.
    """
    if not storage.exists(path):
        raise DataError(
            f"{path}: there is no dataset description ({field}); run "
            "`sequifier-ray preprocess` first, "
            "or name the file it wrote"
        )
    with _complete(path):
        return DatasetDescription.from_json(_read(path, DATASET_FORMAT, sequifier_windows.dataset_values))


def description_values(path: str) -> dict[str, Any] | None:
    """The fields of a description that some version of this package has written; None where there is none.

    Raises:
        DataError: it cannot be read, which says nothing about whose it is.
    """
    if storage.file_bytes(path) is None:
        return None
    try:
        values = json.loads(storage.read_bytes(path))
    except ValueError:
        return None
    return values if isinstance(values, dict) and values.get("format") == DATASET_FORMAT else None


def metadata_path(split_path: str) -> str:
    """Where the metadata of a split lies: inside its folder, or beside its merged file."""
    for extension in (".csv", ".parquet"):
        if split_path.endswith(extension):
            return split_path.removesuffix(extension) + ".metadata.json"
    return storage.join(split_path, "metadata.json")


def write_split(split_path: str, metadata: SplitMetadata) -> None:
    """Write the metadata of a split folder or merged file; the last act of writing a split."""
    values = {
        "format": SPLIT_FORMAT,
        "version": VERSION,
        "split": metadata.split,
        "dataset": metadata.description.to_json(),
        "shards": [asdict(shard) for shard in metadata.shards],
        "fingerprint": metadata.fingerprint,
    }
    storage.write_atomic(metadata_path(split_path), _to_text(values))


def read_split(split_path: str) -> SplitMetadata:
    """The metadata of a split of this package or of Sequifier 3.1.

    Raises DataError if the split or its metadata is missing, broken, or of another version.
    """
    path = metadata_path(split_path)
    if not storage.exists(split_path):
        raise DataError(
            f"{split_path}: the split does not exist; {_AGAIN}, or check project_root and split_paths"
        )
    if not storage.exists(path):
        raise DataError(
            f"{split_path}: its metadata ({path}) is missing, so this is no finished data set; {_AGAIN}"
        )
    with _complete(path):
        values = _read(path, SPLIT_FORMAT, sequifier_windows.split_values)
        shards = []
        for entry in values["shards"]:
            lengths = tuple((int(length), int(count)) for length, count in entry["segment_lengths"])
            shards.append(ShardEntry(**{**entry, "segment_lengths": lengths}))
        return SplitMetadata(DatasetDescription.from_json(values["dataset"]), values["split"], tuple(shards))


def shard_names(path: str) -> set[str]:
    """The names of the shards that the metadata of a split at ``path`` lists; none where it is none."""
    try:
        values = json.loads(storage.read_text(path))
        return {shard["name"] for shard in values["shards"]} if values["format"] == SPLIT_FORMAT else set()
    except (ValueError, KeyError, TypeError):
        return set()


@contextmanager
def _complete(path: str) -> Iterator[None]:
    """Turn what a damaged or half-edited file lacks into an error that names it."""
    try:
        yield
    except DataError:
        raise
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise DataError(f"{path} is damaged ({type(error).__name__}: {error}); {_AGAIN}") from error


def _read(
    path: str,
    expected_format: str,
    from_sequifier: Callable[[str, Mapping[str, Any]], dict[str, Any] | None],
) -> dict[str, Any]:
    try:
        values = json.loads(storage.read_text(path))
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise DataError(f"{path} is not valid JSON ({error}); {_AGAIN}") from error
    translated = from_sequifier(path, values) if isinstance(values, dict) else None
    if translated is not None:
        return translated
    found = (values.get("format"), values.get("version")) if isinstance(values, dict) else (None, None)
    if found != (expected_format, VERSION):
        raise DataError(
            f"{path} has format {found[0]} version {found[1]}, and this release reads {expected_format} "
            f"version {VERSION}; {_AGAIN}"
        )
    assert isinstance(values, dict)
    return values
