"""All results of a run become visible together, or the earlier ones stay.

A run builds in `data/.<name>-preprocess/new` and keeps what it has worked out in `work` beside it. To
publish, earlier results of the same name move to
`retiring` beside it, which is then renamed `previous`; the new ones take their places, one rename each,
the description last. So `previous` exists exactly while whatever is in place is new but perhaps not
complete, and a run that fails, or the next one after a kill, knows what to undo. What is no longer needed
is renamed as a whole before it is deleted: half deleted it would say something else.
"""

from __future__ import annotations

import errno
import json
import os
import re
import shutil
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sequifier_ray import storage
from sequifier_ray.data.metadata import SPLIT_FORMAT, description_values, metadata_path
from sequifier_ray.errors import DataError, SequifierRayError
from sequifier_ray.preprocess.lock import holding

DESCRIPTION = "description.json"
METADATA_ENDING = ".metadata.json"
ENTRIES = "entries"


@dataclass(frozen=True)
class Outputs:
    """Where the results of `name` lie: splits in `data_folder`, the description in a file of its own."""

    name: str
    data_folder: Path
    description: Path

    @property
    def staging(self) -> Path:
        """The folder of a run at work."""
        return self.data_folder / f".{self.name}-preprocess"

    @property
    def new(self) -> Path:
        """What the run builds."""
        return self.staging / "new"

    @property
    def work(self) -> Path:
        """What the run has worked out so far, for a later one to go on from."""
        return self.staging / "work"

    @property
    def obsolete(self) -> Path:
        """What a run has left and nobody needs."""
        return self.data_folder / f".{self.name}-preprocess-obsolete"

    @property
    def retiring(self) -> Path:
        """Earlier results while some of them are still in place."""
        return self.staging / "retiring"

    @property
    def previous(self) -> Path:
        """All earlier results while new ones take their places."""
        return self.staging / "previous"

    def target(self, entry: str) -> Path:
        """The published place of an entry of the folders above."""
        return self.description if entry == DESCRIPTION else self.data_folder / entry

    def published(self) -> list[str]:
        """Entries that an earlier run published, in any output form: what its own metadata lists, for other
        files may have such names too."""
        pattern = re.compile(re.escape(self.name) + rf"-split\d+({re.escape(METADATA_ENDING)})?")
        found = [_published_with(p) for p in self.data_folder.iterdir() if pattern.fullmatch(p.name)]
        is_ours = description_values(str(self.description)) is not None
        return sorted(name for names in found for name in names) + [DESCRIPTION] * is_ours

    def refuse_others(self, entries: Iterable[str]) -> None:
        """Raise DataError where something of these names is in the way that no run has published."""
        published = self.published()
        for entry in entries:
            target = self.target(entry)
            if entry not in published and (target.exists() or target.is_symlink()):
                raise DataError(
                    f"{target} is in the way of the results and was not written by `sequifier-ray "
                    "preprocess` as it is; move it elsewhere"
                )


def entries_of(split_path: str) -> set[str]:
    """The names in the data folder that belong to one split: its folder, or its file and metadata."""
    name = os.path.basename(split_path)
    metadata = metadata_path(name)
    return {name} if metadata.startswith(f"{name}/") else {name, metadata}


def _published_with(path: Path) -> list[str]:
    """What was published together with a split's folder, or its metadata file beside a merged file; nothing
    unless all of it is as the metadata says."""
    values = _values(path / "metadata.json" if path.is_dir() else path)
    try:
        if values.get("format") != SPLIT_FORMAT:
            return []
        name = os.path.basename(values["dataset"]["split_paths"][values["split"]])
        shards = {shard["name"] for shard in values["shards"]}
    except (KeyError, IndexError, TypeError, AttributeError):
        return []
    if path.is_dir():
        is_whole = name == path.name and {p.name for p in path.iterdir()} <= {"metadata.json", *shards}
        return [name] if is_whole else []
    if metadata_path(name) != path.name:
        return []
    return [path.name, name] if path.with_name(name).is_file() else [path.name]


def _values(path: Path) -> dict[str, Any]:
    """The object in a JSON file; an empty one where there is none."""
    try:
        values = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return {}
    return values if isinstance(values, dict) else {}


def recover(outputs: Outputs, *, keep_work: bool = False) -> bool:
    """Clear what a killed run left: earlier results come back unless all new ones were in place.

    With `keep_work` what it had worked out stays for this run. True when there was something to clear.
    """
    shutil.rmtree(outputs.obsolete, ignore_errors=True)
    if not outputs.staging.exists():
        return False
    if outputs.previous.exists() and any(outputs.new.iterdir()):
        for entry in (outputs.staging / ENTRIES).read_text().splitlines():
            if not (outputs.new / entry).exists():
                _move(outputs.target(entry), outputs.new / entry)
        outputs.previous.rename(outputs.retiring)
    if outputs.retiring.exists():
        for path in sorted(outputs.retiring.iterdir()):
            _move(path, outputs.target(path.name))
        outputs.retiring.rmdir()
    if outputs.previous.exists() or not (keep_work and outputs.work.exists()):
        _remove_staging(outputs)
    return True


def _move(source: Path, target: Path) -> None:
    """Rename, or, between file systems, copy a file and then give the copy its name."""
    try:
        source.rename(target)
    except OSError as error:
        if error.errno != errno.EXDEV or source.is_dir():
            raise
        beside = target.with_name(f".{target.name}.new")
        shutil.copyfile(source, beside)
        _flush(beside)
        beside.replace(target)
        source.unlink()


@contextmanager
def exclusive(outputs: Outputs) -> Iterator[None]:
    """Hold the data set for this run: two at once would clear each other's work.

    Raises DataError if another run has it, or if the folder cannot be written to.
    """
    path = outputs.data_folder / f".{outputs.name}-preprocess.lock"
    taken = (
        f"another preprocess run of {outputs.data_folder / outputs.name} is under way; wait for its end, or "
        "give this one another project_root"
    )
    with ExitStack() as stack:
        try:
            outputs.data_folder.mkdir(parents=True, exist_ok=True)
            stack.enter_context(holding(path, taken))
        except OSError as error:
            raise _write_error(outputs, error) from error
        yield


@contextmanager
def staged(outputs: Outputs, *, keep_work: bool = False) -> Iterator[Path]:
    """The folder to build in; on leaving without an error everything in it is published.

    After an error everything is cleared, with `keep_work` all but what a later run goes on from. Raises
    DataError, naming the path, where the disk is full or not writable.
    """
    try:
        outputs.new.mkdir(parents=True, exist_ok=True)
        outputs.work.mkdir(exist_ok=True)
        yield outputs.new
        _publish(outputs)
    except BaseException as error:
        recover(outputs, keep_work=keep_work)
        if isinstance(error, Exception) and (reason := _system_error(error)) is not None:
            raise _write_error(outputs, reason) from error
        raise
    _remove_staging(outputs)


def _publish(outputs: Outputs) -> None:
    entries = sorted(p.name for p in outputs.new.iterdir() if p.name != DESCRIPTION)
    outputs.description.parent.mkdir(parents=True, exist_ok=True)
    for path in sorted(outputs.new.rglob("*")):
        if path.is_file():
            _flush(path)
    # Names alone do not tell new results from earlier ones once both are on their way.
    storage.write_atomic(str(outputs.staging / ENTRIES), "\n".join([*entries, DESCRIPTION]))
    outputs.refuse_others([*entries, DESCRIPTION])
    outputs.retiring.mkdir()
    for entry in outputs.published():
        _move(outputs.target(entry), outputs.retiring / entry)
    outputs.retiring.rename(outputs.previous)
    for entry in [*entries, DESCRIPTION]:
        _move(outputs.new / entry, outputs.target(entry))


def _remove_staging(outputs: Outputs) -> None:
    outputs.staging.rename(outputs.obsolete)
    shutil.rmtree(outputs.obsolete)


def _flush(path: Path) -> None:
    """Bytes on disk before a name points to them."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _system_error(error: BaseException | None) -> OSError | None:
    """The system's error behind an exception: torch.save covers it with a RuntimeError of its own."""
    while error is not None and not isinstance(error, SequifierRayError):
        if isinstance(error, OSError) and error.errno is not None:
            return error
        error = error.__cause__ or error.__context__
    return None


def _write_error(outputs: Outputs, error: OSError) -> DataError:
    place = error.filename or outputs.data_folder
    remedy = (
        "free space or point project_root elsewhere"
        if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
        else "check that the folder may be written to"
    )
    return DataError(
        f"cannot write {place}: {error.strerror}; {remedy}. Results of earlier runs are as they were"
    )
