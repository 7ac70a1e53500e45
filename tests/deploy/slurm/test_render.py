"""The batch scripts: the shipped ones, and those for a user's own numbers."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

from sequifier_ray.cli import main

SCRIPTS = Path(__file__).parents[3] / "deploy" / "slurm"


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The demo's configuration, and the current directory in it."""
    assert main(["make", str(tmp_path / "project"), "--demo"]) == 0
    monkeypatch.chdir(tmp_path / "project")
    return tmp_path / "project"


def _configure(project: Path, world_size: int, device: str = "cpu", **ray: object) -> None:
    path = project / "configs" / "train.yaml"
    values = yaml.safe_load(path.read_text())
    values["device"] = device
    values["global_training"]["backend"] = "nccl" if device == "cuda" else "gloo"
    values["global_training"]["world_size"] = world_size
    values["ray"] = ray
    path.write_text(yaml.safe_dump(values))


def _render(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    capsys.readouterr()
    code = main(["slurm", "render", *words])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


@pytest.mark.parametrize("launcher", ["ray", "torchrun"])
def test_the_shipped_script_is_what_render_prints(
    launcher: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    shipped = (SCRIPTS / f"train-{launcher}.sbatch").read_text()
    command = re.search(r"^#     sequifier-ray slurm render (.*)$", shipped, re.MULTILINE)
    assert command is not None
    code, script, note = _render(capsys, *command.group(1).split())
    assert code == 0
    assert script == shipped
    assert note == "note: there is no configs/train.yaml here, so world_size is not checked\n"


@pytest.mark.parametrize("launcher", ["ray", "torchrun"])
def test_a_script_for_gpus(launcher: str, project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _configure(project, 8, "cuda")
    code, script, note = _render(
        capsys,
        *("--nodes", "2", "--gpus-per-node", "4", "--time", "1-12:00:00", "--launcher", launcher),
        *("--partition", "gpu", "--account", "team_1", "--mem", "200G"),
    )
    assert (code, note) == (0, "")
    lines = [line for line in script.splitlines() if line.startswith("#SBATCH")]
    assert lines == [
        "#SBATCH --job-name=sequifier-ray",
        "#SBATCH --nodes=2",
        "#SBATCH --ntasks-per-node=1",
        "#SBATCH --cpus-per-task=32",
        "#SBATCH --gpus-per-node=4",
        "#SBATCH --mem=200G",
        "#SBATCH --time=1-12:00:00",
        "#SBATCH --partition=gpu",
        "#SBATCH --account=team_1",
        "#SBATCH --output=slurm-%j.out",
        "#SBATCH --open-mode=append",
        "#SBATCH --signal=B:USR1@120",
        "#SBATCH --requeue",
    ]
    assert script.splitlines()[-1] == f'exec sequifier-ray slurm run --launcher {launcher} -- "$@"'
    (project / "job.sbatch").write_text(script)
    subprocess.run(["bash", "-n", str(project / "job.sbatch")], check=True)
    if shutil.which("shellcheck"):
        subprocess.run(["shellcheck", str(project / "job.sbatch")], check=True)


def test_without_gpus_a_process_has_a_cpu(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _configure(project, 5)
    assert "#SBATCH --cpus-per-task=3\n" in _render(capsys, "--nodes", "2")[1]
    assert "#SBATCH --cpus-per-task=7\n" in _render(capsys, "--nodes", "2", "--cpus-per-node", "7")[1]


def test_workers_that_share_a_gpu(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _configure(project, 8, "cuda", resources_per_worker={"GPU": 0.5})
    assert _render(capsys, "--nodes", "2", "--gpus-per-node", "2")[0] == 0


def test_workers_that_ask_for_no_cpu(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for amount in (0, 0.0001):
        _configure(project, 4, resources_per_worker={"CPU": amount})
        assert _render(capsys, "--nodes", "2")[0] == 0
    _configure(project, 4, "cuda", resources_per_worker={"CPU": 0})
    assert _render(capsys, "--nodes", "2", "--gpus-per-node", "2")[0] == 0
    _configure(project, 4, "cuda", resources_per_worker={"CPU": 0, "GPU": 0})
    code, _, error = _render(capsys, "--nodes", "2", "--gpus-per-node", "2")
    assert code == 2
    assert error.startswith("error: ray.resources_per_worker.GPU: found 0 with device: cuda")


@pytest.mark.parametrize(
    ("world_size", "device", "ray", "options", "cpus"),
    [
        (8, "cuda", {"resources_per_worker": {"CPU": 16}}, "--gpus-per-node 4", 64),
        (24, "cuda", {"resources_per_worker": {"GPU": 0.3, "CPU": 3.3}}, "--gpus-per-node 4", 40),
        (10, "cpu", {"resources_per_worker": {"CPU": 1.1}}, "", 6),
        (6, "cpu", {"resources_per_worker": {"CPU": 0.1}}, "", 1),
        (4, "cpu", {"placement_strategy": "STRICT_PACK"}, "", 4),
        (2, "cpu", {"placement_strategy": "STRICT_SPREAD"}, "", 1),
    ],
)
def test_cpus_for_what_a_worker_takes(
    world_size: int,
    device: str,
    ray: dict[str, object],
    options: str,
    cpus: int,
    project: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    _configure(project, world_size, device, **ray)
    code, script, error = _render(capsys, "--nodes", "2", *options.split())
    assert (code, error) == (0, "")
    assert f"#SBATCH --cpus-per-task={cpus}\n" in script


def test_a_node_holds_no_more_processes_than_there_are(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    _configure(project, 16, "cuda", min_world_size=8, resources_per_worker={"GPU": 0.01})
    code, script, _ = _render(capsys, "--nodes", "2", "--gpus-per-node", "1")
    assert code == 0
    assert "#SBATCH --cpus-per-task=16\n" in script


def test_gpus_that_stay_idle_are_told(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _configure(project, 6, "cuda", min_world_size=2)
    code, script, said = _render(
        capsys, *["--nodes", "2", "--gpus-per-node", "4", "--config-path", "configs/train.yaml"]
    )
    assert code == 0
    assert said == "warning: world_size is 6 and the job has room for 8: GPUs stay idle\n"
    assert " --config-path configs/train.yaml\n" in script


@pytest.mark.parametrize("launcher", ["ray", "torchrun"])
def test_a_warning_before_anyone_listens_does_not_end_the_job(launcher: str, tmp_path: Path) -> None:
    program = tmp_path / "sequifier-ray"
    program.write_text('#!/bin/bash\nkill -USR1 $$\necho "alive: $*"\n')
    program.chmod(0o755)
    done = subprocess.run(
        ["bash", str(SCRIPTS / f"train-{launcher}.sbatch"), "configs/train.yaml"],
        env={"PATH": f"{tmp_path}:/usr/bin:/bin"},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.stdout == f"alive: slurm run --launcher {launcher} -- configs/train.yaml\n"


REFUSALS = [
    (
        ("cuda", 2),
        "--nodes 2 --gpus-per-node 4",
        "global_training.world_size is 2 and 2 × 4 GPUs have room for 8 processes; set world_size: 8, or "
        "other --nodes and --gpus-per-node",
    ),
    (("cuda", 2), "--nodes 2", "device is cuda in the configuration and --gpus-per-node is 0"),
    (
        ("cpu", 2),
        "--nodes 2 --gpus-per-node 4",
        "device is cpu in the configuration and --gpus-per-node 4 would stay idle",
    ),
    (
        ("cpu", 9),
        "--nodes 2 --cpus-per-node 4",
        "9 workers must run (global_training.world_size 9) and the job has room for 8",
    ),
    (
        ("cpu", 3),
        "--nodes 2 --launcher torchrun",
        "global_training.world_size is 3 and torchrun starts equally many processes on each of 2 nodes",
    ),
    (("cpu", 2), "--nodes 0", "--nodes: found 0; allowed: 1 or more"),
    (("cpu", 2), "--launcher mpi", '--launcher: "mpi" is none of ray, torchrun'),
    (("cpu", 2), "--time tomorrow", '--time: found "tomorrow"; allowed: minutes, hours:minutes:seconds'),
    (("cpu", 2), "--mem much", '--mem: found "much"; allowed: a number and K, M, G or T'),
    *(
        (("cpu", 2), f"{option} {10**9}", f"{option}: found 1000000000; allowed: {most} or less")
        for option, most in (("--nodes", 10000), ("--gpus-per-node", 64), ("--cpus-per-node", 4096))
    ),
    *(
        (
            ("cpu", 2),
            f"--time {time}",
            f"--time: found {time}, which is {minutes} minutes; allowed: 10 minutes",
        )
        for time, minutes in (("0", 0), ("1", 1), ("9:59", 9.98333), ("0:9:30", 9.5), ("0-0:9", 9))
    ),
    *(
        (("cpu", 2), f"--time {time}", f"--time: found {time}; allowed: at most 365 days")
        for time in ("366-0", "525601", "9000:00:00", "365-0:0:1")
    ),
    *(
        (("cpu", 2), f"--time {time}", f'--time: found "{time}"; allowed: minutes, hours:minutes:seconds')
        for time in ("99999999999", "٣:00:00", "1:2:3:4", "1-", "24:00:00x")
    ),
    *(
        (("cpu", 2), f"--mem {memory}", f"--mem: found {memory}; allowed: from 1G to 1024T, or 0 for all")
        for memory in ("1025T", "1K", "64", "999999999999T")
    ),
    (("cpu", 2), "--mem 99999999999999T", '--mem: found "99999999999999T"; allowed: a number and K, M'),
    (("cpu", 2), "--mem ٣G", '--mem: found "٣G"; allowed: a number and K, M'),
    (("cpu", 2), "--partition=--wrap=x", '--partition: found "--wrap=x"; allowed: one word'),
    (("cpu", 2), "--account=ä", '--account: found "ä"; allowed: one word'),
    (("cpu", 2), "--partition=a;b", '--partition: found "a;b"; allowed: one word'),
]


@pytest.mark.parametrize("time", ["10", "10:00", "00:10:00", "0-0:10", "0-1", "365-0", "525600", "1-12:30"])
def test_times_that_leave_room_for_the_warning(
    time: str, project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, script, _ = _render(capsys, "--time", time, "--mem", "0")
    assert code == 0
    assert f"#SBATCH --time={time}\n" in script


PLACEMENTS = [
    (
        8,
        {"resources_per_worker": {"CPU": 2}},
        "--gpus-per-node 4 --cpus-per-node 4",
        "--cpus-per-node: 2 × 4 CPUs have room for 4 processes, and 2 × 4 GPUs for 8; leave it out, or lower "
        "CPU in ray.resources_per_worker",
    ),
    (
        8,
        {"resources_per_worker": {"GPU": 8}},
        "--gpus-per-node 4",
        "global_training.world_size is 8 and 2 × 4 GPUs have room for 0 processes; give more "
        "--gpus-per-node, or lower GPU in ray.resources_per_worker",
    ),
    (
        8,
        {"resources_per_worker": {"spot": 1}},
        "--gpus-per-node 4",
        "ray.resources_per_worker: found spot, which nodes of a job do not offer with device: cuda; allowed: "
        "CPU, GPU, memory",
    ),
    (
        8,
        {"resources_per_worker": {"CPU": 1e6}},
        "--gpus-per-node 4",
        "a node's processes (4) take 4000000 CPUs, and no machine has more than 4096; lower CPU",
    ),
    (
        8,
        {"placement_strategy": "STRICT_SPREAD", "min_world_size": 4},
        "--gpus-per-node 4",
        "4 workers must run (global_training.world_size 8) and the job has room for 2 (node 1: 32 CPUs, 4 "
        "GPUs, node 2: 32 CPUs, 4 GPUs; ray.placement_strategy: STRICT_SPREAD)",
    ),
    (
        8,
        {"placement_strategy": "STRICT_PACK"},
        "--gpus-per-node 4",
        "global_training.world_size is 8 and 2 × 4 GPUs have room for 4 processes; set world_size: 4",
    ),
]


@pytest.mark.parametrize(("world_size", "ray", "options", "text"), PLACEMENTS)
def test_processes_that_find_no_place(
    world_size: int,
    ray: dict[str, object],
    options: str,
    text: str,
    project: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    _configure(project, world_size, "cuda", **ray)
    code, script, error = _render(capsys, "--nodes", "2", *options.split())
    assert (code in (2, 4), script) == (True, "")
    assert error.startswith(f"error: {text}")


@pytest.mark.parametrize(("configured", "options", "text"), REFUSALS)
def test_numbers_that_cannot_be(
    configured: tuple[str, int],
    options: str,
    text: str,
    project: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    _configure(project, configured[1], configured[0])
    code, script, error = _render(capsys, *options.split())
    assert code == (4 if "must run" in text else 2)
    assert script == ""
    assert f"error: {text}" in error
