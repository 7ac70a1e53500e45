"""The manifests of a deployment: its numbers as documents, and those as YAML."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import yaml

PROJECT_FOLDER = "/mnt/project"
# What a retried job needs: the new cluster's driver looks for the newest checkpoint.
RESUME = "global_training.resume.policy=if_exists"
_HOUR_S = 3600
_RAY_USER, _RAY_GROUP = 1000, 100
# A pod that is asked to go drains for up to 30 s first.
_GRACE_S = 60
# A driver that is asked to stop saves before it is killed; Ray's own 3 s are too short for that.
_STOP_S = 120
Document = dict[str, Any]

HEADERS = {
    "kustomization.yaml": "All of a deployment. The label sequifier-ray/step says which part a document is.",
    "claim.yaml": f"The project's folder, which all pods see as {PROJECT_FOLDER}.",
    "rayjob-preprocess.yaml": "Tables to shards, on a cluster of its own that goes when the job is done.",
    "rayjob-train.yaml": "Trains on a cluster of its own that goes when the job is done.\n"
    "A failed job is tried again on a new cluster and goes on from the newest checkpoint.",
    "raycluster.yaml": "For work by hand with `ray job submit`. It keeps its workers until it is deleted.",
}


@dataclass(frozen=True)
class Deployment:
    """The numbers of a deployment.

    ``pods``, ``cpus``, ``memory`` and ``gpus`` are those of the workers: how many, and what each has.
    ``memory`` and ``storage`` are Kubernetes quantities; ``storage_class`` None is the cluster's default.
    ``env_from`` names secrets whose entries are environment variables of all pods, which run as
    ``service_account``: what they need for data in an object store. ``is_stored``: the project lies there
    altogether.
    """

    name: str
    image: str
    ray_version: str
    config_path: str
    pods: int
    cpus: int
    memory: str
    gpus: int = 0
    storage: str = "100Gi"
    storage_class: str | None = None
    env_from: tuple[str, ...] = ()
    service_account: str | None = None
    is_stored: bool = False

    @property
    def names(self) -> tuple[str, str, str]:
        """Of the interactive cluster, the job that preprocesses, and the one that trains."""
        return self.name, f"{self.name}-preprocess", f"{self.name}-train"


def manifests(deployment: Deployment) -> dict[str, str]:
    """The YAML of every file, by its name."""
    cluster, preprocess, train = deployment.names
    words = ["sequifier-ray", "train", "--config-path", deployment.config_path, "--set", RESUME]
    documents = {
        "claim.yaml": _claim(deployment),
        "rayjob-preprocess.yaml": _job(
            preprocess,
            "preprocess",
            # Into a store only what is finished goes; until then all pods work on the claim.
            "sequifier-ray preprocess" + f" --scratch {PROJECT_FOLDER}" * deployment.is_stored,
            backoffLimit=1,
            activeDeadlineSeconds=24 * _HOUR_S,
            rayClusterSpec=_cluster(deployment, gpus=0),
        ),
        "rayjob-train.yaml": _job(
            train,
            "train",
            shlex.join(words),
            backoffLimit=3,
            activeDeadlineSeconds=7 * 24 * _HOUR_S,
            rayClusterSpec=_cluster(deployment, deployment.gpus),
        ),
        "raycluster.yaml": {
            "apiVersion": "ray.io/v1",
            "kind": "RayCluster",
            "metadata": _metadata(cluster, "interactive"),
            "spec": _cluster(deployment, deployment.gpus),
        },
    }
    kustomization = {
        "apiVersion": "kustomize.config.k8s.io/v1beta1",
        "kind": "Kustomization",
        "resources": list(documents),
    }
    return {
        name: to_yaml(HEADERS[name], document)
        for name, document in {"kustomization.yaml": kustomization, **documents}.items()
    }


def to_yaml(header: str, document: Mapping[str, Any]) -> str:
    """A document below a comment."""
    comment = "".join(f"# {line}\n" for line in header.splitlines())
    return comment + yaml.dump(dict(document), Dumper=_WithoutAliases, sort_keys=False, width=200)


class _WithoutAliases(yaml.SafeDumper):
    def ignore_aliases(self, data: Any) -> bool:
        return True


def _metadata(name: str, step: str) -> Document:
    return {"name": name, "labels": {"sequifier-ray/step": step}}


def _claim(deployment: Deployment) -> Document:
    storage_class = {"storageClassName": deployment.storage_class} if deployment.storage_class else {}
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": _metadata(deployment.name, "storage"),
        "spec": {
            "accessModes": ["ReadWriteMany"],
            **storage_class,
            "resources": {"requests": {"storage": deployment.storage}},
        },
    }


def _job(name: str, step: str, entrypoint: str, **fields: Any) -> Document:
    return {
        "apiVersion": "ray.io/v1",
        "kind": "RayJob",
        "metadata": _metadata(name, step),
        "spec": {
            "entrypoint": entrypoint,
            "submissionMode": "K8sJobMode",
            "shutdownAfterJobFinishes": True,
            "ttlSecondsAfterFinished": 300,
            "preRunningDeadlineSeconds": _HOUR_S,
            **fields,
        },
    }


def _cluster(deployment: Deployment, gpus: int) -> Document:
    pods = deployment.pods
    head = [{"name": "RAY_JOB_STOP_WAIT_TIME_S", "value": str(_STOP_S)}]
    return {
        "rayVersion": deployment.ray_version,
        "authOptions": {"mode": "token"},
        "headGroupSpec": {
            "rayStartParams": {"num-cpus": "0"},
            "template": {"spec": _pod(deployment, "ray-head", {"cpu": "2", "memory": "8Gi"}, {"env": head})},
        },
        "workerGroupSpecs": [
            {
                "groupName": "workers",
                "replicas": pods,
                "minReplicas": pods,
                "maxReplicas": pods,
                "rayStartParams": {},
                "template": {"spec": _worker(deployment, gpus)},
            }
        ],
    }


def _worker(deployment: Deployment, gpus: int) -> Document:
    resources = {"cpu": str(deployment.cpus), "memory": deployment.memory}
    if not gpus:
        return _pod(deployment, "ray-worker", resources, {})
    taint = {"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}
    pod = _pod(deployment, "ray-worker", {**resources, "nvidia.com/gpu": str(gpus)}, {})
    return {**pod, "tolerations": [taint]}


def _pod(deployment: Deployment, container: str, resources: Mapping[str, str], more: Document) -> Document:
    account = {"serviceAccountName": deployment.service_account} if deployment.service_account else {}
    secrets = [{"secretRef": {"name": name}} for name in deployment.env_from]
    return {
        **account,
        "restartPolicy": "Never",
        "terminationGracePeriodSeconds": _GRACE_S,
        "securityContext": {
            "runAsNonRoot": True,
            "runAsUser": _RAY_USER,
            "runAsGroup": _RAY_GROUP,
            "fsGroup": _RAY_GROUP,
        },
        "containers": [
            {
                "name": container,
                "image": deployment.image,
                # Ray's processes and with them the drivers of jobs stand in the project.
                "workingDir": PROJECT_FOLDER,
                **more,
                **({"envFrom": secrets} if secrets else {}),
                "resources": {"requests": dict(resources), "limits": dict(resources)},
                "volumeMounts": [{"name": "project", "mountPath": PROJECT_FOLDER}],
            }
        ],
        "volumes": [{"name": "project", "persistentVolumeClaim": {"claimName": deployment.name}}],
    }
