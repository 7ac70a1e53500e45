"""First look at all rows: which sequences there are, and what kind of values CSV columns hold."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import polars as pl

from sequifier_ray.errors import DataError
from sequifier_ray.preprocess.flaws import Flaw, flaw_at, quoted, refuse_flaws
from sequifier_ray.preprocess.kinds import Evidence, as_text, evidence_of
from sequifier_ray.preprocess.progress import Progress
from sequifier_ray.preprocess.sequences import SequenceIndex, count_ids, index_of, merge_counts
from sequifier_ray.preprocess.source import Block, SourceFile, Task, plan_tasks, read_blocks

if TYPE_CHECKING:
    from sequifier_ray.preprocess.engine import Engine


BYTES_REMEDY = "write them as text, such as hexadecimal digits"


@dataclass(frozen=True)
class Scan:
    """What scanning needs: the files, the columns to read, which of them is the id, the decimal mark of
    CSV."""

    files: tuple[SourceFile, ...]
    columns: tuple[str, ...]
    id_column: str
    decimal: str


@dataclass(frozen=True)
class ScanResult:
    """Rows of some tasks: their number, the rows of each id, and the evidence of CSV columns."""

    rows: int
    counts: pl.DataFrame
    evidence: dict[str, Evidence]
    flaws: list[Flaw]


def scan_task(scan: Scan, task: Task) -> ScanResult:
    """Look at the rows of one task. Raises DataError where the file is damaged."""
    file = scan.files[task.file]
    columns = (scan.id_column,) if file.csv is None else scan.columns
    rows, flaws = 0, []
    counts = [count_ids(pl.Series([], dtype=pl.Int64 if file.csv is None else pl.String))]
    evidence = dict.fromkeys(columns if file.csv is not None else (), Evidence())
    for block in read_blocks(file, task, columns):
        rows += len(block.frame)
        ids, found = _ids(block, scan.id_column)
        flaws += found
        # One long list of counts would grow with the rows.
        counts = [merge_counts([*counts, count_ids(ids)])]
        for name in evidence:
            seen = evidence_of(block.column(name), scan.decimal, block.file, block.first_row)
            evidence[name] = evidence[name].merge(seen)
    return ScanResult(rows, counts[0], evidence, flaws)


def _ids(block: Block, name: str) -> tuple[pl.Series, list[Flaw]]:
    """The ids of a block that are not null, as 64-bit integers or as text."""
    column = block.column(name)
    flaws = []
    if column.null_count():
        subject = f"column {quoted(name)} holds {{n}} null value{{s}}"
        flaws.append(flaw_at(block, column.is_null(), subject, "every row needs the id of its sequence"))
        column = column.drop_nulls()
    if column.dtype in (pl.String, pl.Int64):
        return column, flaws
    if column.dtype.is_integer():
        integers = column.cast(pl.Int64, strict=False)
        return (column.cast(pl.String) if integers.null_count() else integers), flaws
    if column.dtype == pl.Binary:
        texts = as_text(column)
        if texts.null_count():
            subject = f"column {quoted(name)} holds {{n}} value{{s}} of bytes that are not UTF-8 text"
            wrong = as_text(block.column(name)).is_null() & block.column(name).is_not_null()
            flaws.append(flaw_at(block, wrong, subject, BYTES_REMEDY, block.column(name).filter(wrong)[0]))
        return texts.drop_nulls(), flaws
    everywhere = pl.Series([True]).new_from_index(0, len(column))
    subject = f"column {quoted(name)} holds {{n}} value{{s}} of type {column.dtype}"
    flaws.append(flaw_at(block, everywhere, subject, "ids are integers or text: cast them", column[0]))
    return pl.Series([], dtype=pl.Int64), flaws


def scan_all(
    scan: Scan, max_rows: int | None, engine: Engine, progress: Progress
) -> tuple[SequenceIndex, dict[str, Evidence], tuple[Task, ...]]:
    """Look at the first `max_rows` rows of all files (None: all): the sequences, the evidence of CSV columns,
    and the tasks that read these rows. Raises DataError for null ids or no rows at all."""
    tasks: Sequence[Task] = plan_tasks(scan.files, max_rows)
    found: Iterable[ScanResult]
    if max_rows is not None and scan.files[0].csv is not None:
        done = scan_in_order(scan, tasks, max_rows)
        tasks, found = [task for task, _ in done], [result for _, result in done]
    else:
        found = engine.map(scan_task, scan, tasks)
    results = list(progress.follow("scan", found, len(tasks), lambda result: result.rows))
    index, evidence = finish_scan(scan, results)
    return index, evidence, tuple(t for t, result in zip(tasks, results, strict=True) if result.rows)


def scan_in_order(scan: Scan, tasks: Sequence[Task], max_rows: int) -> list[tuple[Task, ScanResult]]:
    """The first `max_rows` rows of CSV files: each task with the rows of it that count. One after the other,
    for how many are left only the files before say."""
    done = []
    for task in tasks:
        if not max_rows:
            break
        limited = replace(task, max_rows=max_rows)
        result = scan_task(scan, limited)
        max_rows -= result.rows
        done.append((limited, result))
    return done


def finish_scan(scan: Scan, results: Sequence[ScanResult]) -> tuple[SequenceIndex, dict[str, Evidence]]:
    """All sequences, and the evidence of every CSV column. Raises DataError for null ids or no rows at
    all."""
    refuse_flaws(flaw for result in results for flaw in result.flaws)
    if not sum(result.rows for result in results):
        paths = ", ".join(file.path for file in scan.files[:3])
        raise DataError(f"{paths}: no rows; there is nothing to preprocess")
    with_rows = [result for result in results if result.rows]
    evidence: dict[str, Evidence] = {}
    for result in with_rows:
        for name, seen in result.evidence.items():
            evidence[name] = evidence.get(name, Evidence()).merge(seen)
    counts = merge_counts([result.counts for result in with_rows])
    return index_of(counts, typed=scan.files[0].csv is None), evidence
