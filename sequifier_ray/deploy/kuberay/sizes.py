"""From a training's configuration and a user's wishes to a deployment; what cannot work is refused here."""

from __future__ import annotations

import math
import os
import re
from dataclasses import dataclass
from pathlib import PurePosixPath

from sequifier_ray import storage
from sequifier_ray.config.positions import read_yaml
from sequifier_ray.config.resources import (
    STEPS_PER_UNIT,
    in_steps,
    not_offered,
    worker_needs,
    workers_fitting,
)
from sequifier_ray.config.train import TrainConfig
from sequifier_ray.deploy.kuberay.manifests import PROJECT_FOLDER, Deployment
from sequifier_ray.deploy.kuberay.words import (
    MOST_CPUS,
    MOST_MEMORY,
    check_image,
    check_name,
    check_object_name,
    check_quantity,
    mebibytes,
)
from sequifier_ray.errors import ConfigError

OLDEST_WITH_TOKENS = (2, 52)
_CPUS_PER_GPU = 4
_MEMORY_GI_PER_GPU, _MEMORY_GI_PER_CPU_PROCESS = 16, 4


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
    env_from: tuple[str, ...] = ()
    service_account: str | None = None


def plan(config: TrainConfig, config_path: str, wishes: Wishes, ray_version: str) -> Deployment:
    """The deployment on which a training's processes fit exactly.

    Raises:
        ConfigError: a wish or a setting that would fail or waste the cluster; names it.
    """
    check_ray_version(ray_version)
    check_name(wishes.name)
    check_image(wishes.image, ray_version)
    for option, quantity, least in (
        ("--memory-per-worker", wishes.memory_per_worker, "512Mi"),
        ("--storage", wishes.storage, "1Gi"),
    ):
        if quantity is not None:
            check_quantity(option, quantity, least)
    for option, name in (
        ("--storage-class", wishes.storage_class),
        ("--service-account", wishes.service_account),
        *(("--env-from", name) for name in wishes.env_from),
    ):
        if name is not None:
            check_object_name(option, name)
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
    _check_placement(config, config_path, processes, pods)
    return Deployment(
        name=wishes.name,
        image=wishes.image,
        ray_version=ray_version,
        config_path=storage.join(config_path),
        pods=pods,
        cpus=cpus,
        memory=_memory(config, config_path, wishes, processes),
        gpus=wishes.gpus_per_worker,
        storage=wishes.storage,
        storage_class=wishes.storage_class,
        env_from=wishes.env_from,
        service_account=wishes.service_account,
        is_stored=not storage.is_local(config.project_root),
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
    is_here = storage.is_local(config_path)
    if is_here and (_is_absolute(config_path) or ".." in PurePosixPath(config_path).parts):
        raise ConfigError(
            f"--config-path: found {config_path}; allowed: a path below the folder you stand in, as in "
            f"configs/train.yaml: that folder's content lies at {PROJECT_FOLDER} in the cluster; or an "
            "address as in s3://bucket/train.yaml"
        )
    root = config.project_root
    is_relative = not _is_absolute(str(read_yaml(config_path).values.get("project_root", ".")))
    if root == PROJECT_FOLDER or not storage.is_local(root):
        return
    if is_relative and (root == here or root.startswith(f"{here}{os.sep}")):
        return
    raise ConfigError(
        f"{config_path}: project_root: found {root}, which pods do not have; set it to . and render in the "
        f"project's folder, whose content lies at {PROJECT_FOLDER} in the cluster, or name an address that "
        "pods reach, as in s3://bucket/project"
    )


def _is_absolute(path: str) -> bool:
    return os.path.isabs(path) or path.startswith("file://")


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
    needs, world_size = worker_needs(config), config.global_training.world_size
    cpus = needs["CPU"] or 1.0
    if config.device == "cuda":
        processes = _processes_on_gpus(needs["GPU"], config_path, wishes.gpus_per_worker, world_size)
        pod_cpus = wishes.cpus_per_worker or max(_whole(cpus), _CPUS_PER_GPU) * processes
    elif wishes.gpus_per_worker:
        raise ConfigError(
            f"--gpus-per-worker: found {wishes.gpus_per_worker}, and {config_path} has device: cpu, which "
            "leaves GPUs idle; give 0, or set device: cuda and backend: nccl"
        )
    else:
        together = world_size if config.ray.placement_strategy == "STRICT_PACK" else 1
        pod_cpus = wishes.cpus_per_worker or _whole(together * cpus)
        processes = max(1, min(workers_fitting({"CPU": cpus}, {"CPU": pod_cpus}) or 1, world_size))
        if config.ray.placement_strategy == "STRICT_SPREAD":
            processes = 1
    if in_steps(pod_cpus) < processes * in_steps(cpus):
        raise ConfigError(
            f"--cpus-per-worker: found {pod_cpus}, and a pod's processes ({processes}) take {cpus:g} each "
            f"({config_path}: ray.resources_per_worker); allowed: at least {_whole(processes * cpus)}"
        )
    if pod_cpus > MOST_CPUS:
        raise ConfigError(
            f"{config_path}: ray.resources_per_worker: a pod's processes ({processes}) take {pod_cpus:g} "
            f"CPUs; no machine has more than {MOST_CPUS}: lower CPU, or --gpus-per-worker"
        )
    return processes, pod_cpus


def _whole(amount: float) -> int:
    """The least whole number that Ray counts as enough."""
    return -(-in_steps(amount) // STEPS_PER_UNIT)


def _processes_on_gpus(each: float, config_path: str, gpus: int, world_size: int) -> int:
    if each >= 1:
        processes = min(gpus // int(each), world_size)
        used = processes * int(each)
        allowed = f"a multiple of {each:g}, from {each:g} to {world_size * each:g}"
    else:
        a_gpu = STEPS_PER_UNIT // in_steps(each) if each else 0
        processes = min(gpus * a_gpu, world_size)
        most = -(-world_size // a_gpu) if a_gpu else 0
        used = -(-processes // a_gpu) if a_gpu else 0
        allowed = f"from 1 to {most}" if most else "ray.resources_per_worker with GPU above 0"
    if processes < 1 or used != gpus:
        raise ConfigError(
            f"--gpus-per-worker: found {gpus}, and {config_path} has device: cuda with {each:g} GPU a "
            f"process; allowed: {allowed}"
        )
    return processes


def _check_placement(config: TrainConfig, config_path: str, processes: int, pods: int) -> None:
    """Refuse what pods of this size can never hold, which a job would wait for until its deadline."""
    strategy = config.ray.placement_strategy
    missing, allowed = not_offered(config)
    texts = [
        f"ray.resources_per_worker: found {name}, which worker pods do not offer {allowed}"
        for name in missing
    ]
    if strategy == "STRICT_SPREAD" and processes > 1:
        texts.append(
            f"ray.placement_strategy: found STRICT_SPREAD, and a worker pod holds {processes} processes, "
            "which it wants on pods of their own; give a pod the GPUs of one process with "
            "--gpus-per-worker, or set SPREAD"
        )
    if strategy == "STRICT_PACK" and pods > 1:
        texts.append(
            f"ray.placement_strategy: found STRICT_PACK, and the processes need {pods} worker pods, where it "
            "wants them on one; give larger pods with --gpus-per-worker or --cpus-per-worker, or set PACK"
        )
    if texts:
        raise ConfigError("\n".join(f"{config_path}: {text}" for text in texts))


def _memory(config: TrainConfig, config_path: str, wishes: Wishes, processes: int) -> str:
    """A pod's memory, in which the bytes fit that Ray is to keep for each process."""
    kept_mi = math.ceil(processes * config.ray.resources_per_worker.get("memory", 0.0) / (1 << 20))
    if kept_mi > mebibytes(MOST_MEMORY):
        raise ConfigError(
            f"{config_path}: ray.resources_per_worker.memory: a pod's processes ({processes}) take "
            f"{kept_mi:.3g}Mi; no machine has more than {MOST_MEMORY}: it is in bytes"
        )
    if wishes.memory_per_worker is None:
        each = _MEMORY_GI_PER_GPU if wishes.gpus_per_worker else _MEMORY_GI_PER_CPU_PROCESS
        return f"{max(each * processes, math.ceil(kept_mi / 1024))}Gi"
    if mebibytes(wishes.memory_per_worker) < kept_mi:
        raise ConfigError(
            f"--memory-per-worker: found {wishes.memory_per_worker}, and Ray is to keep {kept_mi}Mi for a "
            f"pod's processes ({processes}; {config_path}: ray.resources_per_worker.memory, in bytes); "
            f"allowed: at least {kept_mi}Mi"
        )
    return wishes.memory_per_worker
