"""The passes of `preprocess`: scan, partition, fit, encode, publish."""

from __future__ import annotations

import importlib
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from sequifier_ray import storage
from sequifier_ray.config.preprocess import PreprocessConfig, ignored_settings
from sequifier_ray.errors import ConfigError, DataError

if TYPE_CHECKING:
    import polars as pl

    from sequifier_ray.data.metadata import DatasetDescription
    from sequifier_ray.preprocess.columns import Int64
    from sequifier_ray.preprocess.encode import Encoded, EncodeJob
    from sequifier_ray.preprocess.engine import Engine
    from sequifier_ray.preprocess.job import Job
    from sequifier_ray.preprocess.measure import PartitionFit
    from sequifier_ray.preprocess.progress import Progress
    from sequifier_ray.preprocess.publish import Outputs
    from sequifier_ray.preprocess.write import SplitSummary

LARGE_VOCABULARY = 100_000


@dataclass(frozen=True)
class PreprocessSummary:
    """What a run read and wrote; `seconds` by pass."""

    description_path: str
    rows: int
    sequences: int
    splits: tuple[SplitSummary, ...]
    seconds: dict[str, float]


def preprocess(
    config: PreprocessConfig, report: Callable[[str], None], engine: Engine | None = None
) -> PreprocessSummary:
    """Turn the input table into the shards and metadata of every split, all published at once.

    Without an engine the passes run in threads of this process. `n_cores` is also the number of polars
    threads, which has an effect only in a process that has not used polars yet, as in the command line.
    Raises ConfigError or DataError; earlier results are then as they were.
    """
    if config.n_cores is not None:
        os.environ["POLARS_MAX_THREADS"] = str(min(config.n_cores, os.cpu_count() or 1))
    from sequifier_ray.preprocess.engine import LocalEngine
    from sequifier_ray.preprocess.progress import Progress
    from sequifier_ray.preprocess.publish import exclusive
    from sequifier_ray.preprocess.write import outputs_of

    _check_paths(config)
    outputs = outputs_of(config)
    for line in ignored_settings(config):
        report(f"warning: {line}")
    with exclusive(outputs), _importing("torch" if config.write_format == "pt" else "pyarrow.parquet"):
        return _run_passes(config, outputs, engine or LocalEngine(config.n_cores), Progress.to(report))


def _run_passes(
    config: PreprocessConfig, outputs: Outputs, engine: Engine, progress: Progress
) -> PreprocessSummary:
    from sequifier_ray.preprocess.fit import fit_description, read_reused, split_paths
    from sequifier_ray.preprocess.publish import DESCRIPTION, entries_of, recover, staged
    from sequifier_ray.preprocess.resume import prepare
    from sequifier_ray.preprocess.splits import refuse_empty_splits
    from sequifier_ray.preprocess.write import finish, summarize

    report = progress.report
    keep = config.continue_preprocessing
    if recover(outputs, keep_work=keep) and not keep:
        report("cleared what an interrupted run had left")
    outputs.refuse_others(
        [*(entry for path in split_paths(config) for entry in sorted(entries_of(path))), DESCRIPTION]
    )
    with staged(outputs, keep_work=keep) as new:
        reused = read_reused(config)
        job = prepare(config, outputs, engine, progress, reused)
        job, values = _partition(job, engine, progress)
        fits, counts = _fit(job, values, engine, progress)
        n_rows = job.index.n_rows
        events = [sum(fit.splits[i].events for fit in fits) for i in range(len(fits[0].splits))]
        refuse_empty_splits(events, config, len(n_rows), int(n_rows.max()))
        description = fit_description(job, fits, values, counts, reused)
        encode_job = _encode_job(job, description, values, fits, new)
        encoded = _encode(encode_job, engine, progress, fits)
        _check_others(description, config, encoded, sum(events), report)
        splits = finish(encode_job, new, encoded)
    summaries = summarize(description, fits, splits)
    _report_remarks(description, report)
    return PreprocessSummary(
        description_path=str(outputs.description),
        rows=sum(fit.rows for fit in fits),
        sequences=len(n_rows),
        splits=summaries,
        seconds=progress.seconds,
    )


def _partition(job: Job, engine: Engine, progress: Progress) -> tuple[Job, dict[str, pl.Series]]:
    """Rows to their partitions, and the values of all categories."""
    from sequifier_ray.preprocess.flaws import refuse_flaws
    from sequifier_ray.preprocess.pieces import merge_values

    results = engine.spill(job)
    spilled = list(progress.follow("partition", results, len(job.tasks), lambda result: result.rows))
    refuse_flaws(flaw for result in spilled for flaw in result.flaws)
    rows, expected = sum(result.rows for result in spilled), int(job.index.n_rows.sum())
    if rows != expected:
        raise DataError(
            f"{rows:,} rows were read after {expected:,} had been counted: the input changes while it is "
            f"read; "
            "run again when nothing writes to it"
        )
    pieces = tuple(job.work / piece for result in spilled for piece in result.pieces)
    job = replace(job, pieces=pieces)
    return job, merge_values(pieces, job.layout)


def _fit(
    job: Job, values: dict[str, pl.Series], engine: Engine, progress: Progress
) -> tuple[list[PartitionFit], dict[str, Int64]]:
    """What each partition says, and how often each value of a category occurs in all of them."""
    from sequifier_ray.preprocess.flaws import refuse_flaws
    from sequifier_ray.preprocess.measure import ValueCounts, fit_partition

    partitions = range(len(job.bounds) - 1)
    results = engine.map(fit_partition, job, partitions)
    counts = ValueCounts({name: len(known) for name, known in values.items()})
    fits = [
        counts.take(fit) for fit in progress.follow("fit", results, len(partitions), lambda fit: fit.rows)
    ]
    refuse_flaws(flaw for fit in fits for flaw in fit.flaws)
    return fits, counts.totals


def _encode_job(
    job: Job,
    description: DatasetDescription,
    values: dict[str, pl.Series],
    fits: Sequence[PartitionFit],
    new: Path,
) -> EncodeJob:
    from sequifier_ray.preprocess.encode import EncodeJob, id_tables
    from sequifier_ray.preprocess.write import number_shards

    target = job.work if description.merge_output else new
    return EncodeJob(job, description, id_tables(values, description), target, number_shards(fits))


def _encode(
    job: EncodeJob, engine: Engine, progress: Progress, fits: Sequence[PartitionFit]
) -> list[Encoded]:
    from sequifier_ray.preprocess.encode import encode_partition

    partitions = range(len(fits))
    results = engine.map(encode_partition, job, partitions)
    rows = iter(fits)
    return list(progress.follow("encode", results, len(partitions), lambda _: next(rows).rows))


def _check_paths(config: PreprocessConfig) -> None:
    try:
        storage.exists(config.resolve(config.preprocessing_data_path))
    except DataError as error:
        raise ConfigError(f"preprocessing_data_path: {error}") from error
    if Path(config.resolve(config.preprocessing_data_path)) == Path(config.resolve("data")):
        raise ConfigError(
            f"preprocessing_data_path: {config.preprocessing_data_path} is the folder that results are "
            "written to; put the input files into a folder of their own"
        )


@contextmanager
def _importing(module: str) -> Iterator[None]:
    """Import a module beside other work: what the last pass needs takes as long to load as the others run.

    It is waited for also after an error, for a process must not end in the midst of an import.
    """
    thread = threading.Thread(target=importlib.import_module, args=(module,))
    thread.start()
    try:
        yield
    finally:
        thread.join()


def _check_others(
    description: DatasetDescription,
    config: PreprocessConfig,
    encoded: Sequence[Encoded],
    events: int,
    report: Callable[[str], None],
) -> None:
    """Say what share of the events maps made elsewhere do not know. Raises DataError where they know none."""
    for name in description.categorical_columns:
        is_precomputed = name in (config.use_precomputed_maps or ())
        if not is_precomputed and config.metadata_config_path is None:
            continue
        others = sum(part.others[name] for part in encoded)
        source = f"configs/id_maps/{name}.json" if is_precomputed else config.metadata_config_path
        if others == events:
            raise DataError(
                f'column "{name}": {source} knows none of its values, so that every event would be [other]; '
                f"name "
                "the map of this column, or leave it out"
            )
        if others:
            report(
                f'warning: column "{name}": {others / events:.1%} of the events are [other], not in {source}'
            )


def _report_remarks(description: DatasetDescription, report: Callable[[str], None]) -> None:
    from sequifier_ray.preprocess.fit import columns_of_others, constant_columns

    for name, count in description.n_classes.items():
        if count > LARGE_VOCABULARY:
            report(
                f'warning: column "{name}" has {count:,} classes, and its embedding as many rows; '
                "cardinality_config limits them"
            )
    for name in constant_columns(description):
        report(f'warning: column "{name}" does not vary in split 0: all its values are stored as 0')
    for name in columns_of_others(description):
        report(
            f'warning: column "{name}" has no value with an id of its own: all its events are [other]; lower '
            "min_freq in cardinality_config, or leave the column out"
        )
