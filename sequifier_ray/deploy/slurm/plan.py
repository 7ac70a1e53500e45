"""What the batch step tells every node, in one line of JSON, and the folder that a job has on each."""

from __future__ import annotations

import json
import os
import shutil
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

from sequifier_ray.errors import ClusterError

# Lines that follow the plan.
STOP = "stop"
READY = "ready "
_ATTEMPTS = 100


@dataclass(frozen=True)
class Plan:
    """One node's part of a job; ``place`` counts the nodes, 0 is the head. ``ports`` are those of the head:
    Ray's GCS, dashboard, client and agent, or torchrun's rendezvous. ``token`` goes over srun's stdin and
    into a file of mode 600, never into an environment or a command line."""

    launcher: str
    job_id: int
    place: int
    n_nodes: int
    n_cpus: int
    memory_mb: int | None
    head_address: str
    ports: tuple[int, ...]
    token: str
    n_processes: int
    words: tuple[str, ...]
    wait_s: float

    @property
    def is_head(self) -> bool:
        """Whether the others meet at this node."""
        return self.place == 0

    def to_line(self) -> str:
        """The plan as one line."""
        return json.dumps(asdict(self)) + "\n"

    @classmethod
    def from_line(cls, line: str) -> Plan:
        """The plan that ``to_line`` wrote."""
        values = json.loads(line)
        return cls(**{**values, "ports": tuple(values["ports"]), "words": tuple(values["words"])})


def job_folder(job_id: int, place: int | str) -> Path:
    """Path of one node's folder of a job; nodes may share /tmp. Short: a socket's path may have 107 bytes,
    and Ray adds 64."""
    return Path(f"/tmp/sqr-{os.getuid()}") / f"{job_id}-{place}"


def make_job_folder(folder: Path) -> None:
    """Make the folder, for this user alone; what an earlier start of the job left there goes. Another job
    that ends at this moment may take the folder around it away again, so it is tried anew.

    Raises:
        ClusterError: the place belongs to someone else.
    """
    try:
        shutil.rmtree(folder, ignore_errors=True)
        for attempt in range(1, _ATTEMPTS + 1):
            try:
                _make_parent(folder.parent)
                folder.mkdir(mode=0o700)
                return
            except (FileNotFoundError, FileExistsError):  # mkdir's exist_ok is no single step
                if attempt == _ATTEMPTS:
                    raise
    except OSError as error:
        raise ClusterError(f"cannot make the job's folder {folder}: {error}; is /tmp full?") from error


def _make_parent(parent: Path) -> None:
    parent.mkdir(mode=0o700, exist_ok=True)
    found = parent.lstat()
    if found.st_uid != os.getuid() or found.st_mode & 0o077 or parent.is_symlink():
        raise ClusterError(
            f"{parent} is not this user's alone (owner {found.st_uid}, mode {found.st_mode & 0o777:o}); "
            "it holds the job's token: remove it, or have it removed"
        )


def remove_job_folder(folder: Path) -> None:
    """Remove the folder, and the user's one around it if no other job is in it."""
    shutil.rmtree(folder, ignore_errors=True)
    with suppress(OSError):  # another job's folder is in it
        folder.parent.rmdir()


def write_token(folder: Path, token: str) -> Path:
    """The token's file, readable by this user alone."""
    path = folder / "token"
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        file.write(token)
    return path
