"""The rows of one task on their way to their partitions."""

from __future__ import annotations

import json
import shutil
from dataclasses import asdict, dataclass
from pathlib import Path

from sequifier_ray.preprocess.flaws import Flaw
from sequifier_ray.preprocess.job import Job
from sequifier_ray.preprocess.partitions import partition_of
from sequifier_ray.preprocess.pieces import write_piece
from sequifier_ray.preprocess.source import Task, read_blocks
from sequifier_ray.preprocess.values import convert

RESULT = "result.json"


@dataclass(frozen=True)
class Spilled:
    """What became of a task: its pieces below the work folder, its rows and what is wrong with them."""

    pieces: tuple[str, ...]
    rows: int
    flaws: list[Flaw]


def spill_task(job: Job, task: Task) -> Spilled:
    """Write the rows of a task as pieces into a folder of its own, which has its name only once it is whole;
    a folder that an interrupted run has finished is taken as it is."""
    name = f"task-{task.number:05d}"
    folder, partial = job.work / name, job.work / f"{name}.partial"
    if (folder / RESULT).exists():
        return _load(folder)
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    pieces: list[str] = []
    flaws: list[Flaw] = []
    rows = 0
    for block in read_blocks(job.files[task.file], task, job.rules.roles.read):
        coded, found = convert(block, job.rules, job.index)
        flaws += found
        rows += len(block.frame)
        piece = f"{len(pieces):05d}"
        write_piece(
            partial / piece, job.layout, coded, partition_of(coded.table.sequence_keys, job.first_keys)
        )
        pieces.append(f"{name}/{piece}")
    done = Spilled(tuple(pieces), rows, flaws)
    (partial / RESULT).write_text(json.dumps(asdict(done)))
    partial.rename(folder)
    return done


def _load(folder: Path) -> Spilled:
    values = json.loads((folder / RESULT).read_text())
    flaws = [Flaw(**{**flaw, "place": tuple(flaw["place"])}) for flaw in values["flaws"]]
    return Spilled(tuple(values["pieces"]), values["rows"], flaws)
