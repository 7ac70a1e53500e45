"""Results in an object store: made in a folder on this machine, then uploaded, and seen once all is there."""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import TYPE_CHECKING

from sequifier_ray import storage
from sequifier_ray.own_folder import make_own_folder, own_folder

if TYPE_CHECKING:
    from sequifier_ray.config.preprocess import PreprocessConfig
    from sequifier_ray.data.metadata import DatasetDescription, SplitMetadata
    from sequifier_ray.preprocess.pipeline import PreprocessSummary

_UPLOADS = 8


def preprocess_to_store(
    config: PreprocessConfig,
    report: Callable[[str], None],
    run: Callable[[PreprocessConfig], PreprocessSummary],
    scratch_root: str | None = None,
) -> PreprocessSummary:
    """``run`` in a local folder, with its results then under ``project_root`` in an object store.

    Shards go to a folder that no earlier run has written, named after their content; the description, which
    says where they are, is written last, and what it named before is deleted then. The local folder lies in
    ``scratch_root``, else under TMPDIR; it is always the same for a project, so that an interrupted run can
    go on.

    Raises:
        ConfigError, DataError: as ``run``, or the store does not take it; what was there before stays.
    """
    if scratch_root is None:
        make_own_folder(own_folder())
        scratch_root = str(own_folder() / "preprocess")
    key = hashlib.sha256(config.project_root.encode()).hexdigest()[:16]
    scratch = os.path.join(os.path.abspath(scratch_root), f"sequifier-ray-{key}")
    for entry in storage.find_files(config.resolve("configs")) or []:
        name = entry.path.removeprefix(config.project_root + "/")
        storage.copy_file(entry.path, storage.join(scratch, name))
    absolute = {
        field: config.resolve(value)
        for field in ("preprocessing_data_path", "metadata_config_path")
        if (value := getattr(config, field)) is not None
    }
    summary = run(config.model_copy(update={"project_root": scratch, **absolute}))
    report(f"uploading to {config.project_root}")
    uploaded = _upload(scratch, config.project_root, summary)
    storage.delete_folder(scratch)
    return uploaded


def _upload(scratch: str, root: str, summary: PreprocessSummary) -> PreprocessSummary:
    from sequifier_ray.data.metadata import read_description, read_split, write_description, write_split

    description = read_description(summary.description_path)
    splits = [read_split(storage.join(scratch, path)) for path in description.split_paths]
    folder = f"data/{_name_of(summary.description_path)}-{_generation(splits)}"
    paths = tuple(f"{folder}/{path.rsplit('/', 1)[-1]}" for path in description.split_paths)
    published = replace(description, split_paths=paths)
    target = storage.join(root, "configs/metadata_configs", summary.description_path.rsplit("/", 1)[-1])
    earlier = read_description(target).split_paths if storage.exists(target) else ()
    for split, old, new in zip(splits, description.split_paths, paths, strict=True):
        _upload_shards(storage.join(scratch, old), storage.join(root, new), split, description)
        write_split(storage.join(root, new), replace(split, description=published))
    write_description(target, published)
    for old in {path.rpartition("/")[0] for path in earlier} - {folder}:
        if re.fullmatch(r"data/.+-[0-9a-f]{8}", old):
            storage.delete_folder(storage.join(root, old))
    renamed = [
        replace(one, path=storage.join(root, path)) for one, path in zip(summary.splits, paths, strict=True)
    ]
    return replace(summary, description_path=target, splits=tuple(renamed))


def _upload_shards(source: str, target: str, split: SplitMetadata, description: DatasetDescription) -> None:
    if description.merge_output:  # the split is one file, named as its shard
        source, target = source.rpartition("/")[0], target.rpartition("/")[0]
    names = [shard.name for shard in split.shards]
    with ThreadPoolExecutor(_UPLOADS) as pool:
        list(
            pool.map(
                lambda name: storage.copy_file(storage.join(source, name), storage.join(target, name)), names
            )
        )


def _name_of(description_path: str) -> str:
    return description_path.rsplit("/", 1)[-1].removesuffix(".json")


def _generation(splits: Sequence[SplitMetadata]) -> str:
    """A name for what the splits hold: other settings or shards, another name."""
    from sequifier_ray.data.metadata import description_text

    text = description_text(splits[0].description) + "".join(split.fingerprint for split in splits)
    return hashlib.sha256(text.encode()).hexdigest()[:8]
