"""The start of a run, new or gone on with: what the input is, and what has been worked out before."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from sequifier_ray import __version__, storage
from sequifier_ray.config.preprocess import PreprocessConfig
from sequifier_ray.data.metadata import DatasetDescription
from sequifier_ray.preprocess.engine import Engine
from sequifier_ray.preprocess.files import find_input_files
from sequifier_ray.preprocess.fit import check_reused, kinds_by_maps
from sequifier_ray.preprocess.job import Job
from sequifier_ray.preprocess.kinds import INTEGER, Evidence
from sequifier_ray.preprocess.partitions import bytes_per_row, cut_partitions
from sequifier_ray.preprocess.pieces import PieceLayout
from sequifier_ray.preprocess.progress import Progress
from sequifier_ray.preprocess.publish import Outputs
from sequifier_ray.preprocess.scan import Scan, scan_all
from sequifier_ray.preprocess.schema import (
    choose_roles,
    columns_to_read,
    common_columns,
    common_kinds,
    role_lines,
)
from sequifier_ray.preprocess.sequences import SequenceIndex
from sequifier_ray.preprocess.source import SourceFile, Task, describe_file
from sequifier_ray.preprocess.values import ReadingRules, extra_names
from sequifier_ray.storage import FileEntry

KEY, SCAN, SEQUENCES = "key", "scan.json", "sequences.arrow"
# Settings that do not change what a run works out.
WITHOUT_EFFECT = {"n_cores", "batches_per_file", "process_by_file", "continue_preprocessing"}


def prepare(
    config: PreprocessConfig,
    outputs: Outputs,
    engine: Engine,
    progress: Progress,
    reused: DatasetDescription | None,
) -> Job:
    """Find and look at the input: its files, columns, kinds and sequences, and the cut into partitions.

    With `continue_preprocessing` what a run of the same key has worked out is used; of another key it is
    cleared. Raises ConfigError or DataError for input that cannot be preprocessed.
    """
    report = progress.report
    entries = find_input_files(
        config.resolve(config.preprocessing_data_path),
        config.read_format,
        lambda line: report(f"warning: {line}"),
    )
    _open_work(config, outputs, entries, reused, progress)
    report(f"reading {len(entries):,} {config.read_format} file{'s' * (len(entries) > 1)}")
    files = list(engine.map(describe_file, config, entries))
    names = common_columns(files)
    scan = Scan(tuple(files), columns_to_read(config, names), config.sequence_id_column, config.csv.decimal)
    index, evidence, tasks = _scan(config, scan, outputs.work, engine, progress)
    if config.read_format == "csv":
        kinds = {name: seen.kind for name, seen in evidence.items()}
        if evidence[config.item_position_column].is_whole:
            kinds[config.item_position_column] = INTEGER  # however they are written
    else:
        kinds = {name: kind for name, kind in common_kinds(files).items() if name in scan.columns}
    kinds = kinds_by_maps(config, reused, kinds)
    columns = [name for name in names if name in scan.columns]
    roles = choose_roles(config, columns, kinds, reused)
    if reused is not None:
        check_reused(reused, roles, config.metadata_config_path or "")
    _report_roles(role_lines(roles), evidence, files, roles.categorical, report=progress)
    bounds = cut_partitions(index.n_rows, bytes_per_row(roles))
    layout = PieceLayout(roles.categorical, roles.real, tuple(extra_names(roles)), len(bounds) - 1)
    return Job(
        config, tuple(files), ReadingRules.of(config, roles), layout, index, bounds, outputs.work, (), tasks
    )


def _open_work(
    config: PreprocessConfig,
    outputs: Outputs,
    entries: Sequence[FileEntry],
    reused: DatasetDescription | None,
    progress: Progress,
) -> None:
    """An empty work folder under this run's key, or the one that a run of the same key has left."""
    settings = config.model_dump(mode="json", exclude=WITHOUT_EFFECT)
    maps = [_digest_of(config, name) for name in config.use_precomputed_maps or ()]
    parts = [__version__, settings, [asdict(e) for e in entries], maps, reused and reused.to_json()]
    key = hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()
    path = outputs.work / KEY
    if path.exists() and path.read_text() == key:
        progress.report("going on from where an interrupted run of the same configuration and input was")
        return
    if any(outputs.work.iterdir()):
        progress.report("cleared what an interrupted run of another configuration or input had left")
    for folder in (outputs.work, outputs.new):
        shutil.rmtree(folder)
        folder.mkdir()
    storage.write_atomic(str(path), key)


def _digest_of(config: PreprocessConfig, column: str) -> str | None:
    path = config.resolve(f"configs/id_maps/{column}.json")
    return hashlib.sha256(storage.read_bytes(path)).hexdigest() if storage.exists(path) else None


def _scan(
    config: PreprocessConfig, scan: Scan, work: Path, engine: Engine, progress: Progress
) -> tuple[SequenceIndex, dict[str, Evidence], tuple[Task, ...]]:
    """Sequences, kinds and tasks; those of an interrupted run where it had got so far."""
    if (work / SCAN).exists():
        saved = json.loads((work / SCAN).read_text())
        evidence = {name: _evidence(seen) for name, seen in saved["evidence"].items()}
        return SequenceIndex.load(work / SEQUENCES), evidence, tuple(Task(**task) for task in saved["tasks"])
    index, evidence, tasks = scan_all(scan, config.max_rows, engine, progress)
    index.save(work / SEQUENCES)
    saved = {"tasks": [asdict(t) for t in tasks], "evidence": {n: asdict(e) for n, e in evidence.items()}}
    storage.write_atomic(str(work / SCAN), json.dumps(saved))
    return index, evidence, tasks


def _evidence(values: dict[str, object]) -> Evidence:
    first = values["first_text"]
    return Evidence(**{**values, "first_text": tuple(first) if isinstance(first, list) else None})  # type: ignore[arg-type]


def _report_roles(
    lines: Sequence[str],
    evidence: dict[str, Evidence],
    files: Sequence[SourceFile],
    categorical: Sequence[str],
    report: Progress,
) -> None:
    for line in lines:
        report.report(line)
    for name in categorical:
        seen = evidence.get(name)
        if seen is None or not seen.is_doubtful or seen.first_text is None:
            continue
        file, row, text = seen.first_text
        report.report(
            f'warning: column "{name}" is taken as text: {seen.numbers:,} of its {seen.values:,} values are '
            f"numbers, but row {row:,} of {files[file].path} holds {text!r}; list it in csv.null_values, or "
            f"mend it, if the "
            "column is real"
        )
