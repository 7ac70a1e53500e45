"""The files in deploy/kuberay: what the API server and the operator ask of them, and what they promise."""

from __future__ import annotations

import copy
import json
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import strict_schemas as strict
import yaml
from operator_rules import broken_rules

from sequifier_ray.config.load import load_train
from sequifier_ray.deploy.kuberay.manifests import PROJECT_FOLDER, manifests
from sequifier_ray.deploy.kuberay.sizes import Wishes, plan

ROOT = Path(__file__).parents[3]
FOLDER = ROOT / "deploy" / "kuberay"
RAY = next(
    line.removeprefix("ray==").strip()
    for line in (ROOT / "constraints.txt").read_text().splitlines()
    if line.startswith("ray==")
)
IMAGE = f"sequifier-ray:0.1.0-ray{RAY}"
Document = dict[str, Any]


def built(overlay: str) -> list[Document]:
    """An overlay as kubectl builds it."""
    kubectl = shutil.which("kubectl") or shutil.which("kubectl", path=str(Path(sys.executable).parent))
    if kubectl is None:
        pytest.skip("no kubectl here to build overlays with")
    command = [kubectl, "kustomize", str(FOLDER / "overlays" / overlay)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=180)
    assert done.returncode == 0, done.stderr
    return strict.read_documents(done.stdout)


def base() -> list[Document]:
    names = strict.read_documents((FOLDER / "base" / "kustomization.yaml").read_text())[0]["resources"]
    return [d for name in names for d in strict.read_documents((FOLDER / "base" / name).read_text())]


def rendered(**overrides: Any) -> dict[str, str]:
    """What ``kuberay render`` writes for the demo's training."""
    gpus = overrides.pop("gpus_per_worker", 0)
    wishes = Wishes(f"{IMAGE}-{'gpu' if gpus else 'cpu'}", gpus, **overrides)
    config = load_train(
        "configs/train.yaml", {"device": "cuda", "global_training.backend": "nccl"} if gpus else {}
    )
    return manifests(plan(config, "configs/train.yaml", wishes, RAY))


@pytest.fixture(autouse=True)
def _at_the_top(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)


@pytest.fixture(params=["base", "cpu-small", "gpu", "rendered"])
def deployment(request: pytest.FixtureRequest) -> list[Document]:
    """All documents of a deployment, read strictly."""
    if request.param == "base":
        return base()
    if request.param == "rendered":
        texts = rendered(
            gpus_per_worker=2,
            cpus_per_worker=12,
            storage_class="fast",
            name="flights",
            env_from=("store", "tracking"),
            service_account="trainer",
        )
        documents = [d for text in texts.values() for d in strict.read_documents(text)]
        return [d for d in documents if d["kind"] != "Kustomization"]
    return built(request.param)


def clusters(documents: list[Document]) -> Iterator[Document]:
    for document in documents:
        if document["kind"] != "PersistentVolumeClaim":
            yield document["spec"].get("rayClusterSpec", document["spec"])


def groups(cluster: Document) -> list[Document]:
    return [cluster["headGroupSpec"], *cluster["workerGroupSpecs"]]


def schemas() -> dict[str, Document]:
    return {"PersistentVolumeClaim": strict.CLAIM, **json.loads(strict.COMPACT.read_text())}


def definitions() -> dict[str, Document]:
    folder = strict.crd_folder()
    if folder is None:
        pytest.skip("KubeRay's definitions are not here; SEQUIFIER_RAY_CRDS names their folder")
    return strict.full_schemas(folder)


def train_job() -> Document:
    [job] = [d for d in base() if d["metadata"]["name"] == "sequifier-train"]
    return copy.deepcopy(job)


def changed(path: str, value: Any) -> Document:
    """The training's job with another value somewhere; ``...`` removes it."""
    job = train_job()
    place: Any = job
    *parents, last = [int(word) if word.isdecimal() else word for word in path.split(".")]
    for word in parents:
        place = place[word]
    if value is ...:
        del place[last]
    else:
        place[last] = value
    return job


# --- what others ask of them


def test_documents_pass_strict_schemas_and_the_operator(deployment: list[Document]) -> None:
    assert sorted(d["kind"] for d in deployment) == [
        "PersistentVolumeClaim",
        "RayCluster",
        "RayJob",
        "RayJob",
    ]
    for document in deployment:
        assert strict.problems(schemas()[document["kind"]], document) == []
        if document["kind"] != "PersistentVolumeClaim":
            assert broken_rules(document) == []


def test_documents_pass_the_operators_own_definitions(deployment: list[Document]) -> None:
    full = definitions()
    for document in deployment:
        if document["kind"] in full:
            assert strict.problems(full[document["kind"]], document) == []


def test_compact_schemas_are_those_of_the_definitions() -> None:
    found = strict.compact_schemas(definitions())
    assert found == json.loads(strict.COMPACT.read_text()), "write them anew: see strict_schemas.py"


CONTAINER = "spec.rayClusterSpec.headGroupSpec.template.spec.containers.0"
GROUP = "spec.rayClusterSpec.workerGroupSpecs.0"


@pytest.mark.parametrize(
    ("path", "value", "said"),
    [
        ("spec.ttlSecondAfterFinished", 5, "ttlSecondAfterFinished"),
        ("spec.backoffLimit", "1", "'1' is not of type 'integer'"),
        ("spec.preRunningDeadlineSeconds", 0, "less than the minimum"),
        ("spec.rayClusterSpec.authOptions.mode", "bearer", "'bearer' is not one of"),
        ("spec.rayClusterSpec.headGroupSpec.rayStartParams.num-cpus", 0, "0 is not of type 'string'"),
        (f"{CONTAINER}.nmae", "x", "nmae"),
        (f"{CONTAINER}.name", ..., "'name' is a required property"),
        (f"{CONTAINER}.resources.limits.cpu", [1], "is not of type"),
        (f"{GROUP}.groupName", ..., "'groupName' is a required property"),
        ("metadata.name", "Train_1", "does not match"),
        ("metadata.label", {}, "label"),
        ("apiVersion", "ray.io/v2", "'ray.io/v1' was expected"),
    ],
)
def test_schemas_refuse(path: str, value: Any, said: str) -> None:
    [problem] = strict.problems(schemas()["RayJob"], changed(path, value))
    assert said in problem


def test_a_key_that_stands_twice_is_refused() -> None:
    text = (FOLDER / "base" / "rayjob-train.yaml").read_text()
    with pytest.raises(yaml.YAMLError, match="twice: \\['backoffLimit'\\]"):
        strict.read_documents(text.replace("  backoffLimit: 3\n", "  backoffLimit: 3\n  backoffLimit: 0\n"))


@pytest.mark.parametrize(
    ("path", "value", "said"),
    [
        ("metadata.name", "a" * 48, "metadata.name"),
        ("metadata.name", "1st", "metadata.name"),
        ("spec.shutdownAfterJobFinishes", False, "ttlSecondsAfterFinished"),
        ("spec.rayClusterSpec.rayVersion", "2.51.0", "token"),
        ("spec.rayClusterSpec.rayVersion", ..., "token"),
        ("spec.rayClusterSpec.authOptions.enableK8sTokenAuth", True, "enableK8sTokenAuth"),
        ("spec.submissionMode", "InteractiveMode", "backoffLimit"),
        ("spec.clusterSelector", {"a": "b"}, "backoffLimit"),
        ("spec.deletionStrategy", {"deletionRules": [{}]}, "deletionRules"),
        (f"{GROUP}.minReplicas", ..., "minReplicas"),
        (f"{GROUP}.replicas", 3, "replicas"),
        ("spec.rayClusterSpec.headGroupSpec.resources", {"CPU": "1"}, "resources"),
    ],
)
def test_the_operators_rules_refuse(path: str, value: Any, said: str) -> None:
    [rule] = broken_rules(changed(path, value))
    assert said in rule


@pytest.mark.parametrize("field", ["submitterConfig", "submitterPodTemplate"])
def test_a_sidecar_has_no_submitter(field: str) -> None:
    job = changed("spec.submissionMode", "SidecarMode")
    assert broken_rules(job) == []
    job["spec"][field] = {}
    assert broken_rules(job) == ["submitter of a sidecar"]


# --- what they promise


def test_the_claim_is_mounted_everywhere_at_one_path(deployment: list[Document]) -> None:
    [claim] = [d["metadata"]["name"] for d in deployment if d["kind"] == "PersistentVolumeClaim"]
    for cluster in clusters(deployment):
        for group in groups(cluster):
            pod = group["template"]["spec"]
            [container], [volume] = pod["containers"], pod["volumes"]
            assert volume["persistentVolumeClaim"] == {"claimName": claim}
            assert container["volumeMounts"] == [{"name": volume["name"], "mountPath": PROJECT_FOLDER}]
            assert container["workingDir"] == PROJECT_FOLDER


def test_pods_get_what_they_ask_for_and_have_time_to_end(deployment: list[Document]) -> None:
    from ray._private.ray_constants import RAY_GRACEFUL_SHUTDOWN_DRAIN_TIMEOUT_S

    for cluster in clusters(deployment):
        assert cluster["headGroupSpec"]["rayStartParams"]["num-cpus"] == "0"
        for group in groups(cluster):
            pod = group["template"]["spec"]
            [container] = pod["containers"]
            assert container["resources"]["requests"] == container["resources"]["limits"]
            assert pod["terminationGracePeriodSeconds"] > RAY_GRACEFUL_SHUTDOWN_DRAIN_TIMEOUT_S
            assert pod["restartPolicy"] == "Never"
            assert pod["securityContext"]["runAsNonRoot"]
            assert pod["securityContext"]["runAsUser"] == 1000


def test_clusters_have_a_token_and_the_ray_of_their_image(deployment: list[Document]) -> None:
    for cluster in clusters(deployment):
        assert cluster["authOptions"] == {"mode": "token"}
        images = {c["image"] for g in groups(cluster) for c in g["template"]["spec"]["containers"]}
        assert len(images) == 1
        assert cluster["rayVersion"] == RAY
        assert f"-ray{RAY}-" in images.pop()


def test_jobs_end_their_clusters_and_a_retried_one_resumes(deployment: list[Document]) -> None:
    jobs = {
        d["metadata"]["labels"]["sequifier-ray/step"]: d["spec"] for d in deployment if d["kind"] == "RayJob"
    }
    assert sorted(jobs) == ["preprocess", "train"]
    for spec in jobs.values():
        assert spec["shutdownAfterJobFinishes"]
        assert 0 < spec["ttlSecondsAfterFinished"] <= 600
        assert spec["preRunningDeadlineSeconds"] < spec["activeDeadlineSeconds"]
        assert spec["backoffLimit"] >= 1
    assert "--set global_training.resume.policy=if_exists" in jobs["train"]["entrypoint"]


def test_only_pods_that_train_have_gpus(deployment: list[Document]) -> None:
    has_gpus = any("gpu" in json.dumps(cluster["workerGroupSpecs"]) for cluster in clusters(deployment))
    for document in deployment:
        if document["kind"] == "PersistentVolumeClaim":
            continue
        cluster = document["spec"].get("rayClusterSpec", document["spec"])
        [workers] = cluster["workerGroupSpecs"]
        pod = workers["template"]["spec"]
        gpus = "nvidia.com/gpu" in pod["containers"][0]["resources"]["limits"]
        assert gpus == (has_gpus and not document["metadata"]["name"].endswith("-preprocess"))
        taints = [toleration["key"] for toleration in pod.get("tolerations", [])]
        assert taints == (["nvidia.com/gpu"] if gpus else [])
        assert "nvidia.com/gpu" not in json.dumps(cluster["headGroupSpec"])


# --- that the same knowledge stands in one place


def test_the_base_is_what_render_writes() -> None:
    texts = rendered()
    assert {path.name: path.read_text() for path in (FOLDER / "base").iterdir()} == texts


def by_name(documents: list[Document]) -> dict[tuple[str, str], Document]:
    return {(d["kind"], d["metadata"]["name"]): d for d in documents}


def test_the_gpu_overlay_is_what_render_writes() -> None:
    texts = rendered(gpus_per_worker=1)
    del texts["kustomization.yaml"]
    assert by_name(built("gpu")) == by_name([yaml.safe_load(text) for text in texts.values()])


def test_the_small_overlay_fits_a_laptop() -> None:
    documents = by_name(built("cpu-small"))
    assert documents["PersistentVolumeClaim", "sequifier"]["spec"]["accessModes"] == ["ReadWriteOnce"]
    for cluster in clusters(list(documents.values())):
        [workers] = cluster["workerGroupSpecs"]
        pods = [cluster["headGroupSpec"], *[workers] * workers["replicas"]]
        limits = [pod["template"]["spec"]["containers"][0]["resources"]["limits"] for pod in pods]
        assert sum(int(limit["cpu"]) for limit in limits) <= 3
        assert sum(int(limit["memory"].removesuffix("Gi")) for limit in limits) <= 8


def test_the_image_has_the_pinned_ray_and_is_not_roots() -> None:
    text = (FOLDER / "Dockerfile").read_text()
    assert f"FROM rayproject/ray:{RAY}-py311-${{VARIANT}}\n" in text
    assert re.findall(r"^USER (.*)$", text, re.MULTILINE)[-1] == "1000"
    assert text.rstrip().endswith(f"WORKDIR {PROJECT_FOLDER}")
    copied = {word for line in re.findall(r"^COPY (.*)$", text, re.MULTILINE) for word in line.split()[1:-1]}
    ignored = (FOLDER / "Dockerfile.dockerignore").read_text()
    assert {line[1:] for line in ignored.splitlines() if line.startswith("!")} == copied
    assert all((ROOT / name).exists() for name in copied)
    assert not any(
        line.startswith("ENTRYPOINT") for line in text.splitlines()
    )  # the operator gives the command
