"""Before the first update all ranks agree that they see one data set, run one version, and share one
storage."""

from __future__ import annotations

import hashlib
import json
import platform
import secrets
import socket
import time
from dataclasses import dataclass
from importlib import metadata
from typing import Any

import torch

from sequifier_ray import __version__, storage
from sequifier_ray.config.train import TrainConfig
from sequifier_ray.errors import ClusterError, DataError, SequifierRayError
from sequifier_ray.train.checkpoint import LATE_S
from sequifier_ray.train.parallel import Strategy
from sequifier_ray.train.preflight import Ground, folders, survey


@dataclass(frozen=True)
class Witness:
    """What one rank finds where it runs."""

    host: str
    versions: dict[str, str]
    config_digest: str
    fingerprints: Any
    failure: SequifierRayError | None


def survey_together(config: TrainConfig, strategy: Strategy) -> Ground:
    """Every rank looks at the data, its versions and the checkpoint storage; all agree, or all raise.

    Raises:
        DataError: the data differ between nodes, or the checkpoints' folder is not shared.
        ClusterError: versions or configurations differ; each with host and value.
    """
    ground, failure = None, None
    try:
        ground = survey(config)
    except SequifierRayError as error:
        failure = error
    own = Witness(
        socket.gethostname(),
        _versions(),
        _digest(config),
        None if ground is None else ground.fingerprints,
        failure,
    )
    witnesses: list[Witness] = strategy.gather_objects(own)
    _agree_on_versions(witnesses)
    _raise_failures(witnesses, strategy.world_size)
    lead = witnesses[0]
    for rank, witness in enumerate(witnesses):
        if witness.fingerprints != lead.fingerprints:
            raise DataError(
                f"rank {rank} on node {witness.host} sees another data set than rank 0 on node {lead.host}: "
                f"{config.project_root} is not the same folder on both; put project_root on storage that "
                "all nodes share"
            ).on_every_rank()
    _check_shared(folders(config).folder, strategy, [witness.host for witness in witnesses])
    assert ground is not None
    return ground


def _raise_failures(witnesses: list[Witness], world_size: int) -> None:
    failures = [witness for witness in witnesses if witness.failure is not None]
    for rank, witness in enumerate(witnesses):
        if witness.failure is not None:
            place = "" if len(failures) == world_size else f" (seen by rank {rank} on node {witness.host})"
            failure = type(witness.failure)(f"{witness.failure}{place}")
            raise failure.on_every_rank() from witness.failure


def _versions() -> dict[str, str]:
    return {
        "sequifier-ray": __version__,
        "Python": platform.python_version(),
        "torch": torch.__version__,
        "Ray": metadata.version("ray"),
    }


def _digest(config: TrainConfig) -> str:
    return hashlib.sha256(json.dumps(config.model_dump(mode="json"), sort_keys=True).encode()).hexdigest()


def _agree_on_versions(witnesses: list[Witness]) -> None:
    """Raise ClusterError where a rank runs something else than rank 0."""
    lead = witnesses[0]
    for rank, witness in enumerate(witnesses):
        for name, version in lead.versions.items():
            if witness.versions.get(name) != version:
                raise ClusterError(
                    f"rank {rank} on node {witness.host} runs {name} {witness.versions.get(name)}, and rank "
                    f"0 on "
                    f"node {lead.host} runs {version}; install the same versions on all nodes"
                ).on_every_rank()
        if witness.config_digest != lead.config_digest:
            raise ClusterError(
                f"rank {rank} on node {witness.host} has another configuration than rank 0 on node "
                f"{lead.host}; "
                "start all ranks with the same file"
            ).on_every_rank()


def _check_shared(folder: str, strategy: Strategy, hosts: list[str]) -> None:
    """Rank 0 leaves a token where checkpoints go, and every rank must find it there.

    Raises:
        DataError: a rank does not, or rank 0 cannot write.
    """
    if strategy.world_size == 1:
        return
    token, problem = secrets.token_hex(8), None
    path = storage.join(folder, f".token-{token}")
    if strategy.rank == 0:
        try:
            storage.write_atomic(path, token)
        except DataError as error:
            problem = error
    path, problem = strategy.from_lead((path, problem))
    if problem is not None:
        raise problem.on_every_rank()
    seen = strategy.gather_objects(_appears(path, min(LATE_S, strategy.collective_timeout_s / 2)))
    if strategy.rank == 0:
        storage.delete_file(path)
    if not all(seen):
        rank = seen.index(False)
        raise DataError(
            f"rank {rank} on node {hosts[rank]} does not see what rank 0 on node {hosts[0]} writes to "
            f"{folder}: it is "
            "not the same folder on both; put project_root on storage that all nodes share"
        ).on_every_rank()


def _appears(path: str, timeout_s: float) -> bool:
    """Whether a file is there, or comes within the time."""
    deadline_s = time.monotonic() + timeout_s
    while not storage.exists(path):
        if time.monotonic() > deadline_s:
            return False
        time.sleep(0.2)
    return True
