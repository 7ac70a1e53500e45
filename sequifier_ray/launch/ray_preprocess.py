"""The passes of `preprocess` on a Ray cluster: kernels as tasks, the way to the partitions by Ray Data."""

from __future__ import annotations

import logging
import socket
import uuid
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar, cast

import polars as pl
import pyarrow as pa

from sequifier_ray import storage
from sequifier_ray.errors import DataError, SequifierRayError
from sequifier_ray.preprocess.columns import EventTable, code_column
from sequifier_ray.preprocess.flaws import Flaw
from sequifier_ray.preprocess.job import Job
from sequifier_ray.preprocess.partitions import partition_of
from sequifier_ray.preprocess.pieces import write_piece
from sequifier_ray.preprocess.source import read_blocks
from sequifier_ray.preprocess.spill import Spilled
from sequifier_ray.preprocess.values import CodedTable, convert

Shared = TypeVar("Shared")
Item = TypeVar("Item")
Result = TypeVar("Result")
SHUFFLED = "shuffled.json"
PARTITION = "partition"
# Results that wait for a slower one before them are held in memory.
AHEAD = 64


class RayEngine:
    """Tasks on a cluster that is connected already; each takes one CPU. Every node must see the project
    folder."""

    def map(
        self, kernel: Callable[[Shared, Item], Result], shared: Shared, items: Sequence[Item]
    ) -> Iterator[Result]:
        """The results in the order of the items; a task whose node is lost runs again elsewhere."""
        import ray

        # A task that runs again takes what it finds finished; none writes into another's files.
        remote = ray.remote(kernel).options(scheduling_strategy="SPREAD", max_retries=3)
        reference = ray.put(shared)
        waiting = [remote.remote(reference, item) for item in items[:AHEAD]]
        for i in range(len(items)):
            result = _get(waiting[i])
            waiting[i] = None  # type: ignore[call-overload]
            if i + AHEAD < len(items):
                waiting.append(remote.remote(reference, items[i + AHEAD]))
            yield result

    def spill(self, job: Job) -> Iterator[Spilled]:
        """Read the tasks with Ray Data, shuffle the rows by their partition, and write a piece of each
        block."""
        import ray.data

        done = job.work / SHUFFLED
        if done.exists():
            yield Spilled.from_text(done.read_text())
            return
        _quiet()
        tasks = [{"task": i} for i in range(len(job.tasks))]
        # The stubs know no functions with further arguments.
        read, write = cast(Any, read_rows), cast(Any, write_rows)
        rows = ray.data.from_items(tasks, override_num_blocks=len(tasks)).map_batches(
            read, batch_size=1, batch_format="pyarrow", fn_kwargs={"job": job}
        )
        by_partition = rows.repartition(job.layout.n_partitions, keys=[PARTITION])
        written = by_partition.map_batches(
            write, batch_size=None, batch_format="pyarrow", fn_kwargs={"job": job}
        )
        try:
            pieces = written.take_all()
        except Exception as error:
            raise _ours(error) from error
        flaws = [
            flaw
            for path in sorted(job.work.glob("flaws-*"))
            for flaw in Spilled.from_text(path.read_text()).flaws
        ]
        spilled = Spilled(
            tuple(piece["piece"] for piece in pieces), sum(piece["rows"] for piece in pieces), flaws
        )
        _check_shared(job, spilled)
        storage.write_atomic(str(done), spilled.to_text())
        yield spilled


def read_rows(batch: pa.Table, job: Job) -> Iterator[pa.Table]:
    """The rows of one task with their partitions: keys, values of categories, reals and extra columns."""
    for number in batch["task"].to_pylist():
        task = job.tasks[number]
        flaws: list[Flaw] = []
        for block in read_blocks(job.files[task.file], task, job.rules.roles.read):
            coded, found = convert(block, job.rules, job.index)
            flaws += found
            yield _to_arrow(coded, job)
        if flaws:
            storage.write_atomic(str(job.work / f"flaws-{number:05d}"), Spilled((), 0, flaws).to_text())


def _to_arrow(coded: CodedTable, job: Job) -> pa.Table:
    table = coded.table
    columns: dict[str, Any] = {PARTITION: partition_of(table.sequence_keys, job.first_keys)}
    for i, array in enumerate(job.layout.arrays(table)):
        columns[str(i)] = array
    for i, name in enumerate(job.layout.categorical, start=2):
        codes = pl.Series(table.codes[name]).to_frame("code")
        known = codes.select(pl.when(pl.col("code") >= 0).then(pl.col("code"))).to_series()
        columns[str(i)] = coded.values[name].gather(known).to_arrow()
    return pa.table(columns)


def write_rows(batch: pa.Table, job: Job) -> pa.Table:
    """Write the rows of one block as a piece; returns its name and its number of rows."""
    schema = pa.schema({"piece": pa.string(), "rows": pa.int64()})
    if not batch.num_rows:
        return schema.empty_table()
    layout = job.layout
    n_arrays = 2 + len(layout.categorical) + len(layout.real) + len(layout.extra)
    values: dict[str, pl.Series] = {}
    arrays = []
    for i in range(n_arrays):
        column = batch[str(i)].combine_chunks()
        if 2 <= i < 2 + len(layout.categorical):
            coded = code_column(_as_category(pl.Series(pl.from_arrow(column))))
            values[layout.categorical[i - 2]] = coded.values
            arrays.append(coded.codes)
        else:
            arrays.append(column.to_numpy(zero_copy_only=False))
    table: EventTable = layout.table(arrays)
    if not job.work.is_dir():
        raise _not_shared(job, f"{job.work} cannot be seen on node {socket.gethostname()}")
    folder = job.work / "pieces"
    folder.mkdir(exist_ok=True)
    # Tasks may run again: only the piece that comes back in the result counts.
    name = f"pieces/{uuid.uuid4().hex}"
    write_piece(job.work / name, layout, CodedTable(table, values), batch[PARTITION].to_numpy())
    return pa.table({"piece": [name], "rows": [batch.num_rows]}, schema=schema)


def _as_category(column: pl.Series) -> pl.Series:
    """A column without any value may have lost its type on the way."""
    return column.cast(pl.Int64) if column.dtype == pl.Null else column


def _get(reference: Any) -> Any:
    import ray

    try:
        return ray.get(reference)
    except ray.exceptions.RayError as error:
        raise _ours(error) from error


def _ours(error: BaseException) -> BaseException:
    """What a kernel raised, out of the wrappings that Ray puts around it."""
    inner: BaseException | None = error
    while inner is not None:
        cause = getattr(inner, "cause", None)
        for candidate in (cause, inner):
            if isinstance(candidate, (SequifierRayError, OSError)) and not hasattr(candidate, "cause"):
                return candidate
        inner = cause if isinstance(cause, BaseException) else inner.__cause__
    return error


def _check_shared(job: Job, spilled: Spilled) -> None:
    """Raise DataError where what workers wrote cannot be seen here."""
    for piece in spilled.pieces:
        if not (job.work / piece).exists():
            raise _not_shared(job, f"{job.work / piece} was written by a worker and cannot be seen here")


def _not_shared(job: Job, what: str) -> DataError:
    return DataError(
        f"{what}: {job.config.project_root} (project_root, or --scratch) must be one folder that all nodes "
        "share, under the same path"
    )


def _quiet() -> None:
    """No progress bars and notices of Ray Data between our own lines."""
    from ray.data import DataContext

    context = DataContext.get_current()
    context.enable_progress_bars = False
    context.print_on_execution_start = False
    for name in ("ray.data", "ray.data.dataset"):
        logging.getLogger(name).setLevel(logging.ERROR)
