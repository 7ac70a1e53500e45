"""``sequifier-ray kuberay render``: workers for a training's own numbers, and what it refuses."""

from __future__ import annotations

from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
import yaml

from sequifier_ray.cli import main
from sequifier_ray.deploy.kuberay.sizes import check_ray_version
from sequifier_ray.errors import ConfigError
from sequifier_ray.project import make_project

RAY = version("ray")
CPU = ("--image", f"registry/sequifier-ray:1.0-ray{RAY}", "--gpus-per-worker", "0")
CUDA = {"device": "cuda", "global_training.backend": "nccl"}
Change = Callable[..., None]


@pytest.fixture
def change(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Change:
    """Changes fields of the train.yaml of a demo project, in which this process then stands."""
    make_project(str(tmp_path / "project"), demo=True)
    monkeypatch.chdir(tmp_path / "project")

    def change(fields: dict[str, Any]) -> None:
        path = Path("configs/train.yaml")
        values = yaml.safe_load(path.read_text())
        for field, value in fields.items():
            *parents, last = field.split(".")
            place = values
            for parent in parents:
                place = place.setdefault(parent, {})
            place[last] = value
        path.write_text(yaml.safe_dump(values))

    return change


def workers(step: str = "train") -> tuple[int, dict[str, str]]:
    """Replicas and limits of the worker group that was written."""
    spec = yaml.safe_load(Path(f"kuberay/rayjob-{step}.yaml").read_text())["spec"]
    [group] = spec["rayClusterSpec"]["workerGroupSpecs"]
    assert group["replicas"] == group["minReplicas"] == group["maxReplicas"]
    return group["replicas"], group["template"]["spec"]["containers"][0]["resources"]["limits"]


@pytest.mark.parametrize(
    ("fields", "words", "replicas", "limits"),
    [
        ({}, [], 2, {"cpu": "1", "memory": "4Gi"}),
        ({"global_training.world_size": 8}, ["--cpus-per-worker", "4"], 2, {"cpu": "4", "memory": "16Gi"}),
        ({}, ["--cpus-per-worker", "9"], 1, {"cpu": "9", "memory": "8Gi"}),
        ({"ray.resources_per_worker": {"CPU": 3}}, [], 2, {"cpu": "3", "memory": "4Gi"}),
        ({}, ["--memory-per-worker", "512Mi"], 2, {"cpu": "1", "memory": "512Mi"}),
        (
            {**CUDA, "global_training.world_size": 8},
            ["--gpus-per-worker", "4"],
            2,
            {"cpu": "16", "memory": "64Gi", "nvidia.com/gpu": "4"},
        ),
        (
            {**CUDA, "ray.resources_per_worker": {"GPU": 2, "CPU": 6}},
            ["--gpus-per-worker", "2", "--cpus-per-worker", "7"],
            2,
            {"cpu": "7", "memory": "16Gi", "nvidia.com/gpu": "2"},
        ),
        (
            {"ray.resources_per_worker": {"CPU": 0.1}, "global_training.world_size": 30},
            ["--cpus-per-worker", "3"],
            1,
            {"cpu": "3", "memory": "120Gi"},
        ),
        (
            {**CUDA, "ray.resources_per_worker": {"GPU": 0.2}, "global_training.world_size": 5},
            ["--gpus-per-worker", "1"],
            1,
            {"cpu": "20", "memory": "80Gi", "nvidia.com/gpu": "1"},
        ),
        (
            {**CUDA, "ray.resources_per_worker": {"GPU": 0.3}, "global_training.world_size": 12},
            ["--gpus-per-worker", "2"],
            2,
            {"cpu": "24", "memory": "96Gi", "nvidia.com/gpu": "2"},
        ),
        (
            {"ray.resources_per_worker": {"memory": 6 << 30}},
            [],
            2,
            {"cpu": "1", "memory": "6Gi"},
        ),
        (
            {**CUDA, "ray.resources_per_worker": {"accelerator_type:H100": 0.001}},
            ["--gpus-per-worker", "1"],
            2,
            {"cpu": "4", "memory": "16Gi", "nvidia.com/gpu": "1"},
        ),
        (
            {"ray.placement_strategy": "STRICT_SPREAD"},
            ["--cpus-per-worker", "9"],
            2,
            {"cpu": "9", "memory": "4Gi"},
        ),
        ({"ray.placement_strategy": "STRICT_PACK"}, [], 1, {"cpu": "2", "memory": "8Gi"}),
    ],
)
def test_workers_hold_the_processes_exactly(
    change: Change, fields: dict[str, Any], words: list[str], replicas: int, limits: dict[str, str]
) -> None:
    change(fields)
    assert main(["kuberay", "render", *CPU, *words]) == 0
    assert workers() == (replicas, limits)
    assert "nvidia.com/gpu" not in workers("preprocess")[1]


def test_it_writes_the_files_and_says_what_is_next(
    change: Change, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["kuberay", "render", *CPU, "--name", "flights", "--output", "mine", "--storage", "5Gi"]) == 0
    names = ["kustomization", "claim", "rayjob-preprocess", "rayjob-train", "raycluster"]
    said = capsys.readouterr().out.splitlines()
    assert said[:-1] == [f"wrote mine/{name}.yaml" for name in names]
    assert (
        said[-1] == "next: kubectl apply -f mine/claim.yaml -f mine/raycluster.yaml, and copy the project in"
    )
    job = yaml.safe_load(Path("mine/rayjob-train.yaml").read_text())
    assert job["metadata"]["name"] == "flights-train"
    assert job["spec"]["rayClusterSpec"]["rayVersion"] == RAY
    assert yaml.safe_load(Path("mine/claim.yaml").read_text())["spec"]["resources"]["requests"] == {
        "storage": "5Gi"
    }


def test_it_overwrites_nothing_that_somebody_changed(
    change: Change, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["kuberay", "render", *CPU]) == 0
    assert main(["kuberay", "render", *CPU]) == 0
    with Path("kuberay/raycluster.yaml").open("a") as file:
        file.write("# mine\n")
    assert main(["kuberay", "render", *CPU]) == 2
    expected = (
        "error: --output: kuberay/raycluster.yaml is there with other content; remove it or name "
        "another folder\n"
    )
    assert capsys.readouterr().err == expected
    Path("kuberay/raycluster.yaml").write_bytes(b"\xff\xfe")
    assert main(["kuberay", "render", *CPU]) == 2
    assert capsys.readouterr().err == expected
    Path("file").touch()
    assert main(["kuberay", "render", *CPU, "--output", "file"]) == 2
    assert capsys.readouterr().err == "error: --output: cannot write file: File exists\n"


LONG = "a" * 37
REFUSED: list[tuple[dict[str, Any], list[str], str]] = [
    (
        CUDA,
        [],
        "--gpus-per-worker: found 0, and configs/train.yaml has device: cuda with 1 GPU a process; "
        "allowed: a "
        "multiple of 1, from 1 to 2",
    ),
    (
        {},
        ["--gpus-per-worker", "1"],
        "--gpus-per-worker: found 1, and configs/train.yaml has device: cpu, which leaves GPUs idle; "
        "give 0, or set "
        "device: cuda and backend: nccl",
    ),
    (
        {**CUDA, "ray.resources_per_worker": {"GPU": 2}},
        ["--gpus-per-worker", "3"],
        "--gpus-per-worker: found 3, and configs/train.yaml has device: cuda with 2 GPU a process; "
        "allowed: a "
        "multiple of 2, from 2 to 4",
    ),
    (
        {**CUDA, "global_training.world_size": 6},
        ["--gpus-per-worker", "4"],
        "--gpus-per-worker: a worker pod holds 4 processes, and configs/train.yaml has "
        "global_training.world_size "
        "6, which is no multiple of it; change one of the two",
    ),
    (
        {"global_training.world_size": 3},
        ["--cpus-per-worker", "2"],
        "--cpus-per-worker: a worker pod holds 2 processes, and configs/train.yaml has "
        "global_training.world_size "
        "3, which is no multiple of it; change one of the two",
    ),
    (
        {"ray.resources_per_worker": {"CPU": 3}},
        ["--cpus-per-worker", "2"],
        "--cpus-per-worker: found 2, and a pod's processes (1) take 3 each (configs/train.yaml: "
        "ray.resources_per_worker); allowed: at least 3",
    ),
    (
        {**CUDA, "ray.resources_per_worker": {"GPU": 0.5}},
        ["--gpus-per-worker", "2"],
        "--gpus-per-worker: found 2, and configs/train.yaml has device: cuda with 0.5 GPU a process; "
        "allowed: from 1 to 1",
    ),
    (
        {"ray.resources_per_worker": {"TPU": 1, "spot": 0}},
        [],
        "configs/train.yaml: ray.resources_per_worker: found TPU, which worker pods do not offer with "
        "device: cpu; allowed: CPU, memory",
    ),
    (
        {"ray.resources_per_worker": {"GPU": 1, "accelerator_type:H100": 0.001}},
        [],
        "configs/train.yaml: ray.resources_per_worker: found GPU, which worker pods do not offer with "
        "device: cpu; allowed: CPU, memory\nerror: "
        "configs/train.yaml: ray.resources_per_worker: found accelerator_type:H100, which worker pods do "
        "not offer with device: cpu; allowed: CPU, memory",
    ),
    (
        {**CUDA, "ray.resources_per_worker": {"TPU": 1}},
        ["--gpus-per-worker", "1"],
        "configs/train.yaml: ray.resources_per_worker: found TPU, which worker pods do not offer with "
        "device: cuda; allowed: CPU, GPU, memory",
    ),
    (
        {"ray.resources_per_worker": {"memory": 4 << 30}},
        ["--cpus-per-worker", "2", "--memory-per-worker", "8191Mi"],
        "--memory-per-worker: found 8191Mi, and Ray is to keep 8192Mi for a pod's processes (2; "
        "configs/train.yaml: ray.resources_per_worker.memory, in bytes); allowed: at least 8192Mi",
    ),
    (
        {"ray.resources_per_worker": {"memory": 1e18}},
        [],
        "configs/train.yaml: ray.resources_per_worker.memory: a pod's processes (1) take 9.54e+11Mi; no "
        "machine has more than 100000Ti: it is in bytes",
    ),
    (
        CUDA,
        ["--gpus-per-worker", "4"],
        "--gpus-per-worker: found 4, and configs/train.yaml has device: cuda with 1 GPU a process; allowed: "
        "a multiple of 1, from 1 to 2",
    ),
    (
        {**CUDA, "ray.placement_strategy": "STRICT_SPREAD"},
        ["--gpus-per-worker", "2"],
        "configs/train.yaml: ray.placement_strategy: found STRICT_SPREAD, and a worker pod holds 2 "
        "processes, which it wants on pods of their own; give a pod the GPUs of one process with "
        "--gpus-per-worker, or set SPREAD",
    ),
    (
        {**CUDA, "ray.placement_strategy": "STRICT_PACK"},
        ["--gpus-per-worker", "1"],
        "configs/train.yaml: ray.placement_strategy: found STRICT_PACK, and the processes need 2 worker "
        "pods, where it wants them on one; give larger pods with --gpus-per-worker or --cpus-per-worker, or "
        "set PACK",
    ),
    (
        {},
        ["--image", "registry:5000/sequifier-ray"],
        '--image: "registry:5000/sequifier-ray" may be another image tomorrow; name a version as its '
        "tag, as in "
        f"registry:5000/sequifier-ray:ray{RAY}",
    ),
    (
        {},
        ["--image", "sequifier-ray:latest"],
        '--image: "sequifier-ray:latest" may be another image tomorrow; name a version as its tag, as in '
        f"sequifier-ray:ray{RAY}",
    ),
    *(
        (
            {},
            ["--image", image],
            f'--image: found "{image}"; allowed: REPOSITORY:TAG or REPOSITORY@sha256:DIGEST, the repository '
            "in small letters, as in registry.example.org/team/sequifier-ray",
        )
        for image in (
            *("a b", "REGISTRY/sequifier-ray:1", "$(id):x", '"><:x', ":5000/x:1", "x:", "/x:1", "x//y:1"),
            *("host:99999/x:1", "host:0/x:1", "-x:1", "x/-y:1", "x:é", f"{'x' * 256}:1"),
            f"x@sha256:{'0' * 63}",
        )
    ),
    *(
        (
            {},
            [option, name],
            f'{option}: found "{name}"; allowed: a name as `kubectl get` shows it, of small letters, digits, '
            '"-" and ".", at most 253 characters',
        )
        for option in ("--storage-class", "--env-from", "--service-account")
        for name in ("fast disk", "fast-", "Fast", "", "a..b", "x" * 254)
    ),
    *(
        (
            {},
            ["--memory-per-worker", memory],
            f"--memory-per-worker: found {memory}; allowed: from 512Mi to 100000Ti",
        )
        for memory in ("1Mi", "511Mi", "100001Ti")
    ),
    ({}, ["--storage", "1Mi"], "--storage: found 1Mi; allowed: from 1Gi to 100000Ti"),
    (
        {"ray.resources_per_worker": {"CPU": 1e9}},
        [],
        "configs/train.yaml: ray.resources_per_worker: a pod's processes (1) take 1e+09 CPUs; no machine "
        "has more than 4096: lower CPU, or --gpus-per-worker",
    ),
    (
        {"project_root": "/srv/project/.."},
        [],
        "configs/train.yaml: project_root: found /srv, which pods do not have; set it to . and render in the "
        "project's folder, whose content lies at /mnt/project in the cluster, or name an address that pods "
        "reach, as in s3://bucket/project",
    ),
    *(
        (
            {},
            ["--image", image],
            f'--image: "{image}" has Ray 2.51.1, but Ray {RAY} is installed here; build the image with '
            f"Ray {RAY}, "
            "or render where Ray 2.51.1 is installed",
        )
        for image in ("me/sequifier-ray:1.0-ray2.51.1-gpu", "rayproject/ray:2.51.1-py311")
    ),
    *(
        (
            {},
            ["--name", name],
            f'--name: found "{name}"; allowed: small letters, digits and "-", a letter first, no "-" '
            f"last, at most "
            "36 characters: jobs add -preprocess, and KubeRay allows them 47",
        )
        for name in (LONG, "1st", "My-Run", "run_1", "run-", "")
    ),
    (
        {},
        ["--memory-per-worker", "16GB"],
        '--memory-per-worker: found "16GB"; allowed: a whole number with Mi, Gi or Ti, as in 16Gi',
    ),
    (
        {},
        ["--storage", "1.5Gi"],
        '--storage: found "1.5Gi"; allowed: a whole number with Mi, Gi or Ti, as in 16Gi',
    ),
    (
        {
            "global_training.distributed": False,
            "global_training.data_parallelism": None,
            "global_training.world_size": 1,
        },
        [],
        "configs/train.yaml: global_training.distributed: found false, which trains in the head pod and "
        "leaves the "
        "workers idle; set distributed: true and data_parallelism: ddp",
    ),
    (
        {"global_training.resume": {"policy": "required", "checkpoint_path": "checkpoints/a/step-3"}},
        [],
        "configs/train.yaml: global_training.resume.checkpoint_path: found checkpoints/a/step-3, which "
        "a retried job "
        "would go back to; remove it: the newest checkpoint is found without it",
    ),
    (
        {"ray.address": "ray://elsewhere:10001"},
        [],
        "configs/train.yaml: ray.address: found ray://elsewhere:10001, which leads the job out of its "
        "own cluster; "
        "remove it",
    ),
    (
        {"project_root": "/srv/project"},
        [],
        "configs/train.yaml: project_root: found /srv/project, which pods do not have; set it to . and "
        "render in the "
        "project's folder, whose content lies at /mnt/project in the cluster, or name an address that pods "
        "reach, as in s3://bucket/project",
    ),
]


@pytest.mark.parametrize(("fields", "words", "said"), REFUSED)
def test_refused(
    change: Change, capsys: pytest.CaptureFixture[str], fields: dict[str, Any], words: list[str], said: str
) -> None:
    change(fields)
    assert main(["kuberay", "render", *CPU, *words]) == 2
    assert capsys.readouterr().err == f"error: {said}\n"
    assert not Path("kuberay").exists()


def test_paths_must_hold_on_the_claim_too(change: Change, capsys: pytest.CaptureFixture[str]) -> None:
    here = str(Path.cwd())
    for path in (f"{here}/configs/train.yaml", "../project/configs/train.yaml"):
        assert main(["kuberay", "render", *CPU, "--config-path", path]) == 2
        assert capsys.readouterr().err == (
            f"error: --config-path: found {path}; allowed: a path below the folder you stand in, as in "
            "configs/train.yaml: that folder's content lies at /mnt/project in the cluster; or an address as "
            "in s3://bucket/train.yaml\n"
        )
    for root in (here, f"file://{here}"):
        change({"project_root": root})
        assert main(["kuberay", "render", *CPU]) == 2
        assert f"project_root: found {here}, which pods do not have" in capsys.readouterr().err
    change({"project_root": "/mnt/project"})
    assert main(["kuberay", "render", *CPU, "--config-path", "./configs/train.yaml"]) == 0
    entrypoint = yaml.safe_load(Path("kuberay/rayjob-train.yaml").read_text())["spec"]["entrypoint"]
    assert "--config-path configs/train.yaml " in entrypoint


def test_a_project_in_an_object_store_and_what_it_is_opened_with(change: Change) -> None:
    assert main(["kuberay", "render", *CPU, "--output", "on-the-claim"]) == 0
    change({"project_root": "s3://bucket/project"})
    words = ["--env-from", "store", "--env-from", "tracking", "--service-account", "trainer"]
    assert main(["kuberay", "render", *CPU, *words]) == 0
    jobs = [Path(folder, "rayjob-preprocess.yaml").read_text() for folder in ("on-the-claim", "kuberay")]
    assert [yaml.safe_load(text)["spec"]["entrypoint"] for text in jobs] == [
        "sequifier-ray preprocess",
        "sequifier-ray preprocess --scratch /mnt/project",
    ]
    for name in ("rayjob-preprocess", "rayjob-train", "raycluster"):
        spec = yaml.safe_load(Path(f"kuberay/{name}.yaml").read_text())["spec"]
        cluster = spec.get("rayClusterSpec", spec)
        for group in (cluster["headGroupSpec"], *cluster["workerGroupSpecs"]):
            pod = group["template"]["spec"]
            assert pod["serviceAccountName"] == "trainer"
            assert pod["containers"][0]["envFrom"] == [
                {"secretRef": {"name": "store"}},
                {"secretRef": {"name": "tracking"}},
            ]


def test_more_than_any_machine_has(change: Change, capsys: pytest.CaptureFixture[str]) -> None:
    for option, most in (("--cpus-per-worker", 4096), ("--gpus-per-worker", 64)):
        assert main(["kuberay", "render", *CPU, option, "99999999999"]) == 2
        said = capsys.readouterr().err
        assert option in said
        assert str(most) in said


def test_processes_that_ask_for_next_to_nothing(change: Change) -> None:
    change({"ray.resources_per_worker": {"CPU": 0.0001}})
    assert main(["kuberay", "render", *CPU]) == 0
    assert workers()[0] == 1


@pytest.mark.parametrize(
    "image",
    ["localhost:5000/sequifier-ray:1", "a.example.org/team_1/x__y/z--z.q:V1", f"x:1@sha256:{'a' * 64}"],
)
def test_images_that_can_be(change: Change, image: str) -> None:
    assert main(["kuberay", "render", *CPU, "--image", image]) == 0


@pytest.mark.parametrize("tag", ["v3", "array1.2.3", f"ray-{RAY}", "1.4.2"])
def test_tags_that_name_no_other_ray(change: Change, tag: str) -> None:
    assert main(["kuberay", "render", *CPU, "--image", f"me/sequifier-ray:{tag}"]) == 0


def test_a_digest_needs_no_tag(change: Change) -> None:
    assert main(["kuberay", "render", *CPU, "--image", f"me/sequifier-ray@sha256:{'0' * 64}"]) == 0


def test_a_ray_without_tokens() -> None:
    check_ray_version("2.52.0")
    check_ray_version("3.0.0.dev0")
    expected = (
        "Ray 2.51.2 is installed, and KubeRay protects clusters by a token from 2.52.0 on; "
        "install a newer Ray"
    )
    with pytest.raises(ConfigError) as error:
        check_ray_version("2.51.2")
    assert str(error.value) == expected
