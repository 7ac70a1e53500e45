"""Results in an object store: made in a folder on this machine, then uploaded, and seen once all is there."""

from __future__ import annotations

import hashlib
import os
import re
import secrets
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from sequifier_ray import storage
from sequifier_ray.data.metadata import (
    DatasetDescription,
    description_text,
    description_values,
    read_description,
    read_split,
    write_description,
    write_split,
)
from sequifier_ray.errors import ConfigError, DataError
from sequifier_ray.own_folder import make_own_folder, own_folder
from sequifier_ray.preprocess.files import dataset_name
from sequifier_ray.preprocess.lock import holding

if TYPE_CHECKING:
    from sequifier_ray.config.preprocess import PreprocessConfig
    from sequifier_ray.preprocess.pipeline import PreprocessSummary

_UPLOADS = 8
_CHUNK_BYTES = 8 << 20
# Lies in a folder while it is uploaded to, and while it is deleted.
UNFINISHED = "unfinished"
# No upload takes so long; what is unfinished for longer is given up.
_GIVEN_UP_S = 7 * 24 * 3600


def preprocess_to_store(
    config: PreprocessConfig,
    report: Callable[[str], None],
    run: Callable[[PreprocessConfig], PreprocessSummary],
    scratch_root: str | None = None,
) -> PreprocessSummary:
    """``run`` in a local folder, with its results then under ``project_root`` in an object store.

    Shards go to a folder named after their content and the local folder, which nobody else writes, on other
    machines neither; the description, which says where they are, is written last, and what it named before is
    deleted then. The local folder lies in ``scratch_root``, else under TMPDIR; it is always the same for a
    data set, so that an interrupted run can go on.

    Raises:
        ConfigError: the store or the local folder cannot be written to; found before any work.
        DataError: another run works there, what is in the store is in the way, or as ``run``; what was there
            before stays.
    """
    name = dataset_name(config)
    description = storage.join(config.project_root, f"configs/metadata_configs/{name}.json")
    if scratch_root is None:
        make_own_folder(own_folder())
        make_own_folder(own_folder() / "preprocess")
        scratch_root = str(own_folder() / "preprocess")
    _check_store(config.project_root, description)
    key = hashlib.sha256(f"{config.project_root} {name}".encode()).hexdigest()[:16]
    scratch = os.path.join(os.path.abspath(scratch_root), f"sequifier-ray-{key}")
    with _held(scratch, f"{config.project_root}/data/{name}"):
        _bring_settings(config, scratch, f"configs/metadata_configs/{name}.json")
        absolute = {
            field: config.resolve(value)
            for field in ("preprocessing_data_path", "metadata_config_path")
            if (value := getattr(config, field)) is not None
        }
        summary = run(config.model_copy(update={"project_root": scratch, **absolute}))
        report(f"uploading to {config.project_root}")
        uploaded = _upload(scratch, config.project_root, name, description, summary)
        storage.delete_folder(scratch)
    return uploaded


def _check_store(root: str, description: str) -> None:
    """Find out before any work whether the store takes files, and nothing of others is in the way."""
    probe = storage.join(root, "data", f".probe-{secrets.token_hex(4)}")
    try:
        storage.write_atomic(probe, "")
        storage.delete_file(probe)
    except DataError as error:
        raise ConfigError(
            f"project_root: {error}; name a bucket that exists and that you may write to"
        ) from error
    if storage.exists(description) and description_values(description) is None:
        raise DataError(
            f"{description} is in the way of the results and was not written by `sequifier-ray "
            "preprocess` as it is; move it elsewhere"
        )


@contextmanager
def _held(scratch: str, name: str) -> Iterator[None]:
    """The local folder for this run alone."""
    taken = f"another preprocess run of {name} is under way in {scratch}; wait for its end"
    with ExitStack() as stack:
        try:
            stack.enter_context(holding(Path(f"{scratch}.lock"), taken))
        except OSError as error:
            raise ConfigError(
                f"{os.path.dirname(scratch)} cannot be worked in ({error.strerror}); name a folder that you "
                "may write to with --scratch, or set TMPDIR"
            ) from error
        yield


def _bring_settings(config: PreprocessConfig, scratch: str, description: str) -> None:
    """The project's id maps and descriptions to where ``run`` looks for them, and no others."""
    names = set()
    for entry in storage.find_files(config.resolve("configs")) or []:
        name = entry.path.removeprefix(config.project_root + "/")
        storage.copy_file(entry.path, storage.join(scratch, name))
        names.add(name)
    for entry in storage.find_files(storage.join(scratch, "configs")) or []:
        if entry.path.removeprefix(scratch + "/") not in names | {description}:
            storage.delete_file(entry.path)


def _upload(scratch: str, root: str, name: str, target: str, summary: PreprocessSummary) -> PreprocessSummary:
    description = read_description(summary.description_path)
    splits = [read_split(storage.join(scratch, path)) for path in description.split_paths]
    sources = [
        [
            storage.join(_folder_of(storage.join(scratch, path), description), shard.name)
            for shard in split.shards
        ]
        for path, split in zip(description.split_paths, splits, strict=True)
    ]
    folder = f"data/{name}-{_generation(_owner(scratch), description, sources)}"
    paths = tuple(f"{folder}/{path.rsplit('/', 1)[-1]}" for path in description.split_paths)
    published = replace(description, split_paths=paths)
    mark = storage.join(root, folder, UNFINISHED)
    storage.write_atomic(mark, "")
    for split, files, path in zip(splits, sources, paths, strict=True):
        place = storage.join(root, path)
        with ThreadPoolExecutor(_UPLOADS) as pool:
            list(pool.map(partial(_upload_file, folder=_folder_of(place, description)), files))
        write_split(place, replace(split, description=published))
    earlier = (description_values(target) or {}).get("split_paths", ())
    write_description(target, published)
    storage.delete_file(mark)
    _delete_others(root, name, {path.rpartition("/")[0] for path in earlier}, folder)
    renamed = [
        replace(one, path=storage.join(root, path)) for one, path in zip(summary.splits, paths, strict=True)
    ]
    return replace(summary, description_path=target, splits=tuple(renamed))


def _folder_of(split_path: str, description: DatasetDescription) -> str:
    """Where a split's shards lie: one that is a single file is named as its shard."""
    return split_path.rpartition("/")[0] if description.merge_output else split_path


def _upload_file(source: str, folder: str) -> None:
    """Upload a file, unless an upload of ours that broke off has brought it there."""
    target = storage.join(folder, source.rsplit("/", 1)[-1])
    if storage.file_bytes(target) != storage.file_bytes(source):
        storage.copy_file(source, target)


def _delete_others(root: str, name: str, earlier: set[str], folder: str) -> None:
    """What the description named before, and what uploads that were killed have left long ago."""
    pattern = re.compile(re.escape(name) + "-[0-9a-f]{8}")
    for old in {f"data/{found}" for found in storage.list_names(storage.join(root, "data"))} - {folder}:
        if not pattern.fullmatch(old.removeprefix("data/")):
            continue
        mark = storage.join(root, old, UNFINISHED)
        if old in earlier:
            storage.write_atomic(mark, "")
        elif not storage.exists(mark) or time.time() - storage.modified_ns(mark) / 1e9 < _GIVEN_UP_S:
            continue
        storage.delete_folder(storage.join(root, old))


def _owner(scratch: str) -> str:
    """What tells this local folder from those of other machines; it goes with it."""
    place = storage.join(scratch, "owner")
    if not storage.exists(place):
        storage.write_atomic(place, secrets.token_hex(16))
    return storage.read_text(place)


def _generation(owner: str, description: DatasetDescription, sources: Sequence[Sequence[str]]) -> str:
    """A name for the content of all files: of other content, settings or owner it is another."""
    digest = hashlib.sha256(f"{owner} {description_text(description)}".encode())
    with ThreadPoolExecutor(_UPLOADS) as pool:
        for one in pool.map(_digest, [path for files in sources for path in files]):
            digest.update(one)
    return digest.hexdigest()[:8]


def _digest(path: str) -> bytes:
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        while block := file.read(_CHUNK_BYTES):
            digest.update(block)
    return digest.digest()
