"""The passes of `preprocess`: read, order, split, fit, write, publish."""

from __future__ import annotations

import importlib
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from sequifier_ray.config.preprocess import PreprocessConfig, ignored_settings
from sequifier_ray.errors import ConfigError

if TYPE_CHECKING:
    from sequifier_ray.data.metadata import DatasetDescription
    from sequifier_ray.preprocess.publish import Outputs
    from sequifier_ray.preprocess.write import SplitSummary

LARGE_VOCABULARY = 100_000


@dataclass(frozen=True)
class PreprocessSummary:
    """What a run read and wrote; `dropped_events` by reason, `seconds` by pass."""

    description_path: str
    rows: int
    sequences: int
    splits: tuple[SplitSummary, ...]
    dropped_events: dict[str, int]
    seconds: dict[str, float]


@dataclass
class Stopwatch:
    """Seconds by pass, in the order of the passes."""

    seconds: dict[str, float] = field(default_factory=dict)

    @contextmanager
    def measure(self, name: str) -> Iterator[None]:
        """Time one pass."""
        start = time.perf_counter()
        yield
        self.seconds[name] = time.perf_counter() - start


def preprocess(config: PreprocessConfig, report: Callable[[str], None]) -> PreprocessSummary:
    """Turn the input table into the shards and metadata of every split, all published at once.

    `n_cores` is the number of polars threads; it has an effect only in a process that has not used polars
    yet, as in the command line. Raises ConfigError or DataError; earlier results are then as they were.
    """
    if config.n_cores is not None:
        os.environ["POLARS_MAX_THREADS"] = str(config.n_cores)
    from sequifier_ray.preprocess.files import find_input_files
    from sequifier_ray.preprocess.publish import exclusive
    from sequifier_ray.preprocess.write import outputs_of

    _check_paths(config)
    outputs = outputs_of(config)
    files = find_input_files(config.resolve(config.preprocessing_data_path), config.read_format)
    for line in ignored_settings(config):
        report(f"warning: {line}")
    with exclusive(outputs):
        return _run_passes(config, files, outputs, report)


def _run_passes(
    config: PreprocessConfig, files: list[str], outputs: Outputs, report: Callable[[str], None]
) -> PreprocessSummary:
    from sequifier_ray.preprocess.fit import fit_description
    from sequifier_ray.preprocess.ordering import order_events
    from sequifier_ray.preprocess.publish import recover, staged
    from sequifier_ray.preprocess.source import read_source
    from sequifier_ray.preprocess.splits import cut_splits, sequence_lengths
    from sequifier_ray.preprocess.write import write_results

    if recover(outputs):
        report("cleared what an interrupted run had left")
    watch = Stopwatch()
    with _importing("torch" if config.write_format == "pt" else "pyarrow"):
        with watch.measure("read"):
            table, roles = read_source(config, files, report)
        with watch.measure("order"):
            table = order_events(table)
        with watch.measure("split"):
            splits = cut_splits(table, config)
        with watch.measure("fit"):
            description = fit_description(config, table, roles.columns, splits)
    with watch.measure("write"), staged(outputs) as folder:
        split_summaries = write_results(folder, table, splits, description, report)
    dropped = {}
    if events := len(table.sequence_ids) - sum(segments.n_events for segments in splits):
        dropped = {"after int(sum of split_ratios * n) of their sequence": events}
    _report_remarks(description, dropped, report)
    return PreprocessSummary(
        description_path=str(outputs.description),
        rows=len(table.sequence_ids),
        sequences=len(sequence_lengths(table.sequence_ids)[0]),
        splits=split_summaries,
        dropped_events=dropped,
        seconds=watch.seconds,
    )


def _check_paths(config: PreprocessConfig) -> None:
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


def _report_remarks(
    description: DatasetDescription, dropped: dict[str, int], report: Callable[[str], None]
) -> None:
    for name, count in description.n_classes.items():
        if count > LARGE_VOCABULARY:
            report(f'warning: column "{name}" has {count:,} classes, and its embedding as many rows')
    for reason, events in dropped.items():
        report(
            f"warning: {events:,} events dropped: {reason} (the ratios sum to less than 1 in floating point)"
        )
