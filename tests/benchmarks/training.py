"""Samples per second of training beside a bare PyTorch loop and, if given, Sequifier; ratios of one run.

    python tests/benchmarks/training.py [--sequifier PATH_TO_ITS_CLI] [--rounds 3]

Ours, the bare loop and Sequifier take turns on the same data, model sizes and global batch of 128, so that
what else the machine does meets all of them. Medians over rounds; start-up, validation and the first
updates are left out everywhere.
"""

from __future__ import annotations

import argparse
import copy
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import yaml

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent))
from conftest import PREPROCESS, TRAIN  # noqa: E402

FLIGHTS = HERE.parent / "data" / "flights.parquet"


def run(command: list[str], cwd: Path, threads: int | None) -> str:
    environment = dict(os.environ)
    environment.pop("OMP_NUM_THREADS", None)
    if threads is not None:
        environment["OMP_NUM_THREADS"] = str(threads)
    done = subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True)
    if done.returncode != 0:
        raise SystemExit(
            f"{' '.join(command)} ended with {done.returncode}\n{done.stdout[-2000:]}\n{done.stderr[-3000:]}"
        )
    return done.stdout + done.stderr


def train_yaml(kind: str) -> dict[str, Any]:
    """Our configuration: "none", "ddp" or "fsdp"."""
    values = copy.deepcopy(TRAIN)
    values["model_name"] = kind
    values["training_plan"]["epochs"] = 2
    settings = values["global_training"]
    settings["log_interval"] = 10
    values["model"]["backbone"]["architecture"]["dropout"] = 0.1
    if kind == "none":
        settings.update(batch_size=128, world_size=1, distributed=False, data_streams=None)
        del settings["data_parallelism"]
    else:
        settings["data_parallelism"] = kind
    if kind == "fsdp":
        settings["fsdp_cpu_offload"] = False
    return values


def sequifier_yaml(kind: str) -> dict[str, Any]:
    """The same in Sequifier's own fields; one epoch is enough for its steady state."""
    values = train_yaml(kind)
    values["training_plan"]["epochs"] = 1
    settings = values["global_training"]
    del settings["data_streams"], settings["calculate_validation_loss_on_initialization"]
    values.update(export_generative_model=True, export_onnx=False, export_pt=True)
    return values


def ours(project: Path, kind: str, launcher: str) -> float:
    command = [sys.executable, "-m", "sequifier_ray", "train", "--launcher", launcher]
    run([*command, "--config-path", f"configs/{kind}.yaml"], project, None)
    summary = json.loads((project / "logs" / kind / "summary.json").read_text())
    return float(summary["samples_per_s"])


def bare(project: Path, kind: str) -> float:
    command = [sys.executable, str(HERE / "bare_loop.py"), f"configs/{kind}.yaml", "--strategy", kind]
    text = run(command, project, None if kind == "none" else 1)
    (line,) = (line for line in text.splitlines() if line.startswith("{"))
    return float(json.loads(line)["samples_per_s"])


def sequifier(cli: str, project: Path, kind: str, threads: int | None) -> float:
    text = run([cli, "train", "--config-path", f"configs/{kind}.yaml"], project, threads)
    seconds = [float(value) for value in re.findall(r"S/Batch\s+([0-9.e+-]+)", text)]
    return 128 / statistics.median(seconds[2:])


def prepare(folder: Path, cli: str | None) -> tuple[Path, Path]:
    projects = (folder / "ours", folder / "sequifier")
    for project in projects:
        (project / "configs").mkdir(parents=True)
        (project / "data").mkdir()
        (project / "data" / "flights.parquet").symlink_to(FLIGHTS)
        preprocess = {**PREPROCESS, "split_ratios": [0.8, 0.1, 0.1]}
        (project / "configs" / "preprocess.yaml").write_text(yaml.safe_dump(preprocess))
        for kind in ("none", "ddp", "fsdp"):
            values = train_yaml(kind) if project == projects[0] else sequifier_yaml(kind)
            (project / "configs" / f"{kind}.yaml").write_text(yaml.safe_dump(values, sort_keys=False))
    run([sys.executable, "-m", "sequifier_ray", "preprocess"], projects[0], None)
    if cli is not None:
        run([cli, "preprocess", "--config-path", "configs/preprocess.yaml"], projects[1], None)
    return projects


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument(
        "--sequifier", help="path of Sequifier's command, installed in an environment of its own"
    )
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    rates: dict[str, list[float]] = {}
    with tempfile.TemporaryDirectory() as folder:
        project, other = prepare(Path(folder), options.sequifier)
        for _ in range(options.rounds):
            for kind in ("none", "ddp", "fsdp"):
                for launcher in ("local",) if kind == "none" else ("ray", "spawn"):
                    rates.setdefault(f"ours {kind} {launcher}", []).append(ours(project, kind, launcher))
                rates.setdefault(f"bare {kind}", []).append(bare(project, kind))
                if options.sequifier:
                    threads = (1, None) if kind == "ddp" else (None,)
                    for count in threads:
                        name = f"sequifier {kind}" + (" one thread" if count else "")
                        rates.setdefault(name, []).append(sequifier(options.sequifier, other, kind, count))
                print(json.dumps({name: round(values[-1]) for name, values in rates.items()}), flush=True)
    medians = {name: statistics.median(values) for name, values in rates.items()}
    for name, value in medians.items():
        print(f"{name:24} {value:10.0f} samples/s")
    for name, value in medians.items():
        who, _, kind = name.partition(" ")
        for our in (our for our in medians if who != "ours" and our.startswith(f"ours {kind.split()[0]}")):
            print(f"{our:16} / {name:26} {medians[our] / value:6.2f}")


if __name__ == "__main__":
    main()
