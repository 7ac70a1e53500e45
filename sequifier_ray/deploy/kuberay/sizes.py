"""From a training's configuration and a user's wishes to a deployment; what cannot work is refused here."""

from __future__ import annotations

import math
import os
import re
from dataclasses import dataclass
from pathlib import PurePosixPath

from sequifier_ray.config.positions import read_yaml
from sequifier_ray.config.train import TrainConfig
from sequifier_ray.deploy.kuberay.manifests import PROJECT_FOLDER, Deployment
from sequifier_ray.errors import ConfigError

# The operator makes names of services and pods from those of jobs; longer ones would not fit into a label.
LONGEST_NAME = 47
OLDEST_WITH_TOKENS = (2, 52)
_CPUS_PER_GPU = 4
_MEMORY_GI_PER_GPU, _MEMORY_GI_PER_CPU_PROCESS = 16, 4
_LABEL = re.compile(r"[a-z]([-a-z0-9]*[a-z0-9])?")
_QUANTITY = re.compile(r"[1-9]\d*(Mi|Gi|Ti)")
_IMAGE = re.compile(
    r"(?P<repository>[^\s@]+?)(:(?P<tag>[\w][\w.-]{0,127}))?(@sha256:(?P<digest>[0-9a-f]{64}))?"
)


@dataclass(frozen=True)
class Wishes:
    """What a user asks for; the ``*_per_worker`` are per worker pod, None where a default is to be found."""

    image: str
    gpus_per_worker: int
    cpus_per_worker: int | None = None
    memory_per_worker: str | None = None
    name: str = "sequifier"
    storage: str = "100Gi"
    storage_class: str | None = None


def plan(config: TrainConfig, config_path: str, wishes: Wishes, ray_version: str) -> Deployment:
    """The deployment on which a training's processes fit exactly.

    Raises:
        ConfigError: a wish or a setting that would fail or waste the cluster; names it.
    """
    check_ray_version(ray_version)
    check_name(wishes.name)
    check_image(wishes.image, ray_version)
    for option, quantity in (
        ("--memory-per-worker", wishes.memory_per_worker),
        ("--storage", wishes.storage),
    ):
        if quantity is not None and not _QUANTITY.fullmatch(quantity):
            raise ConfigError(
                f'{option}: found "{quantity}"; allowed: a whole number with Mi, Gi or Ti, as in 16Gi'
            )
    _check_place(config, config_path)
    _check_config(config, config_path)
    processes, cpus = _pod_size(config, config_path, wishes)
    pods, rest = divmod(config.global_training.world_size, processes)
    if rest:
        limit = "--gpus-per-worker" if wishes.gpus_per_worker else "--cpus-per-worker"
        raise ConfigError(
            f"{limit}: a worker pod holds {processes} processes, and {config_path} has "
            f"global_training.world_size {config.global_training.world_size}, which is no multiple of it; "
            "change one of the two"
        )
    per_process = _MEMORY_GI_PER_GPU if wishes.gpus_per_worker else _MEMORY_GI_PER_CPU_PROCESS
    return Deployment(
        name=wishes.name,
        image=wishes.image,
        ray_version=ray_version,
        config_path=str(PurePosixPath(config_path)),
        pods=pods,
        cpus=cpus,
        memory=wishes.memory_per_worker or f"{per_process * processes}Gi",
        gpus=wishes.gpus_per_worker,
        storage=wishes.storage,
        storage_class=wishes.storage_class,
    )


def check_name(name: str) -> None:
    """Raise ConfigError unless jobs and their services can be called so."""
    longest = LONGEST_NAME - len("-preprocess")
    if not _LABEL.fullmatch(name) or len(name) > longest:
        raise ConfigError(
            f'--name: found "{name}"; allowed: small letters, digits and "-", a letter first, no "-" last, '
            f"at most {longest} characters: jobs add -preprocess, and KubeRay allows them {LONGEST_NAME}"
        )


def check_image(image: str, ray_version: str) -> None:
    """Raise ConfigError unless every node and every retry gets the same image, with this Ray in it."""
    found = _IMAGE.fullmatch(image)
    if found is None:
        raise ConfigError(f'--image: found "{image}"; allowed: REPOSITORY:TAG or REPOSITORY@sha256:DIGEST')
    tag, repository = found["tag"] or "", found["repository"]
    if found["digest"] is None and tag in ("", "latest"):
        raise ConfigError(
            f'--image: "{image}" may be another image tomorrow; name a version as its tag, as in '
            f"{repository}:ray{ray_version}"
        )
    named = re.search(r"(?:^|[^a-z])ray[-_.]?(\d+\.\d+\.\d+)", tag)
    if repository.removeprefix("docker.io/") == "rayproject/ray":
        named = re.match(r"(\d+\.\d+\.\d+)", tag)
    if named and named[1] != ray_version:
        raise ConfigError(
            f'--image: "{image}" has Ray {named[1]}, but Ray {ray_version} is installed here; '
            f"build the image with Ray {ray_version}, or render where Ray {named[1]} is installed"
        )


def check_ray_version(version: str) -> None:
    """Raise ConfigError for a Ray that cannot ask for tokens."""
    numbers = tuple(int(part) for part in re.findall(r"\d+", version)[:2])
    if numbers < OLDEST_WITH_TOKENS:
        raise ConfigError(
            f"Ray {version} is installed, and KubeRay protects clusters by a token from 2.52.0 on; install a "
            "newer Ray"
        )


def _check_place(config: TrainConfig, config_path: str) -> None:
    """The same relative paths must hold on the claim as here."""
    here = os.getcwd()
    if os.path.isabs(config_path) or ".." in PurePosixPath(config_path).parts:
        raise ConfigError(
            f"--config-path: found {config_path}; allowed: a path below the folder you stand in, as in "
            f"configs/train.yaml: that folder's content lies at {PROJECT_FOLDER} in the cluster"
        )
    root = config.project_root
    is_relative = not os.path.isabs(str(read_yaml(config_path).values.get("project_root", ".")))
    if root == PROJECT_FOLDER or (is_relative and (root == here or root.startswith(f"{here}{os.sep}"))):
        return
    raise ConfigError(
        f"{config_path}: project_root: found {root}, which pods do not have; set it to . and render in the "
        f"project's folder, whose content lies at {PROJECT_FOLDER} in the cluster"
    )


def _check_config(config: TrainConfig, config_path: str) -> None:
    settings, address = config.global_training, config.ray.address
    checkpoint = settings.resume.checkpoint_path
    texts = []
    if not settings.distributed:
        texts.append(
            "global_training.distributed: found false, which trains in the head pod and leaves the workers "
            "idle; set distributed: true and data_parallelism: ddp"
        )
    if checkpoint is not None:
        texts.append(
            f"global_training.resume.checkpoint_path: found {checkpoint}, which a retried job would go back "
            "to; remove it: the newest checkpoint is found without it"
        )
    if address not in (None, "auto"):
        texts.append(f"ray.address: found {address}, which leads the job out of its own cluster; remove it")
    if texts:
        raise ConfigError("\n".join(f"{config_path}: {text}" for text in texts))


def _pod_size(config: TrainConfig, config_path: str, wishes: Wishes) -> tuple[int, int]:
    """Processes in a worker pod, as Ray will place them, and the pod's CPUs."""
    cpus = config.ray.resources_per_worker.get("CPU") or 1.0
    if config.device == "cuda":
        processes = _processes_on_gpus(config, config_path, wishes.gpus_per_worker)
        pod_cpus = wishes.cpus_per_worker or max(math.ceil(cpus), _CPUS_PER_GPU) * processes
    elif wishes.gpus_per_worker:
        raise ConfigError(
            f"--gpus-per-worker: found {wishes.gpus_per_worker}, and {config_path} has device: cpu, which "
            "leaves GPUs idle; give 0, or set device: cuda and backend: nccl"
        )
    else:
        pod_cpus = wishes.cpus_per_worker or math.ceil(cpus)
        processes = max(1, min(int(pod_cpus // cpus), config.global_training.world_size))
    if pod_cpus < processes * cpus:
        raise ConfigError(
            f"--cpus-per-worker: found {pod_cpus}, and the {processes} processes of a pod take {cpus:g} each "
            f"({config_path}: ray.resources_per_worker); allowed: at least {math.ceil(processes * cpus)}"
        )
    return processes, pod_cpus


def _processes_on_gpus(config: TrainConfig, config_path: str, gpus: int) -> int:
    each = config.ray.resources_per_worker.get("GPU", 1.0)
    processes = int(gpus // each) if each else 0
    if processes < 1 or processes * each != gpus:
        raise ConfigError(
            f"--gpus-per-worker: found {gpus}, and {config_path} has device: cuda with {each:g} GPU a "
            f"process; allowed: a multiple of {each:g}, at least {math.ceil(each)}"
        )
    return processes
