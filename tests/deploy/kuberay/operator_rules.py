"""What KubeRay 1.7 itself asks of its resources, beyond their schema."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

OLDEST_WITH_TOKENS = (2, 52)
_DNS_1035 = re.compile(r"[a-z]([-a-z0-9]*[a-z0-9])?")


def broken_rules(document: dict[str, Any]) -> list[str]:
    """The rules that a RayJob or RayCluster breaks."""
    spec = document["spec"]
    if document["kind"] == "RayCluster":
        return [*_name(document, 53), *_cluster(spec)]
    return [*_name(document, 47), *_job(spec), *_cluster(spec["rayClusterSpec"])]


def _name(document: dict[str, Any], longest: int) -> Iterator[str]:
    name = document["metadata"]["name"]
    if len(name) > longest or not _DNS_1035.fullmatch(name):
        yield f"metadata.name {name}"


def _job(spec: dict[str, Any]) -> Iterator[str]:
    ends = spec.get("shutdownAfterJobFinishes", False)
    if spec.get("ttlSecondsAfterFinished", 0) and not ends:
        yield "ttlSecondsAfterFinished without shutdownAfterJobFinishes"
    if spec.get("suspend") and not ends:
        yield "suspend without shutdownAfterJobFinishes"
    if ends and spec.get("deletionStrategy", {}).get("deletionRules"):
        yield "deletionRules with shutdownAfterJobFinishes"
    mode = spec.get("submissionMode", "K8sJobMode")
    if spec.get("backoffLimit", 0) and (mode == "InteractiveMode" or "clusterSelector" in spec):
        yield "backoffLimit without a cluster of its own"
    if mode == "SidecarMode":
        if "submitterPodTemplate" in spec or "submitterConfig" in spec:
            yield "submitter of a sidecar"
        if _pod(spec["rayClusterSpec"]["headGroupSpec"]).get("restartPolicy", "Never") != "Never":
            yield "restartPolicy of a sidecar's head"
    if spec["rayClusterSpec"].get("authOptions", {}).get("enableK8sTokenAuth"):
        yield "enableK8sTokenAuth in a job"


def _cluster(spec: dict[str, Any]) -> Iterator[str]:
    if spec.get("authOptions", {}).get("mode") == "token":
        numbers = tuple(int(part) for part in spec.get("rayVersion", "0").split(".")[:2])
        if numbers < OLDEST_WITH_TOKENS:
            yield "token without a rayVersion that has it"
    for group in spec["workerGroupSpecs"]:
        if not {"minReplicas", "maxReplicas"} <= set(group):
            yield "minReplicas and maxReplicas"
        elif not group["minReplicas"] <= group.get("replicas", 1) <= group["maxReplicas"]:
            yield "replicas outside minReplicas and maxReplicas"
    for group in (spec["headGroupSpec"], *spec["workerGroupSpecs"]):
        own = {"num-cpus", "num-gpus", "memory", "resources"} & set(group.get("rayStartParams", {}))
        if own and group.get("resources"):
            yield "resources in rayStartParams and in the group"


def _pod(group: dict[str, Any]) -> dict[str, Any]:
    pod: dict[str, Any] = group["template"]["spec"]
    return pod
