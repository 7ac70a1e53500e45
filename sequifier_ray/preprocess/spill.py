"""The rows of one task on their way to their partitions."""

from __future__ import annotations

import json
import shutil
from dataclasses import asdict, dataclass

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

    def to_text(self) -> str:
        """JSON that `from_text` reads."""
        return json.dumps(asdict(self))

    @staticmethod
    def from_text(text: str) -> Spilled:
        """What `to_text` wrote."""
        values = json.loads(text)
        return Spilled(
            tuple(values["pieces"]), values["rows"], [Flaw.from_json(flaw) for flaw in values["flaws"]]
        )


def spill_task(job: Job, task: Task) -> Spilled:
    """Write the rows of a task as pieces into a folder of its own, which has its name only once it is whole;
    a folder that an interrupted run has finished is taken as it is."""
    name = f"task-{task.number:05d}"
    folder, partial = job.work / name, job.work / f"{name}.partial"
    if (folder / RESULT).exists():
        return Spilled.from_text((folder / RESULT).read_text())
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
    (partial / RESULT).write_text(done.to_text())
    partial.rename(folder)
    return done
