"""Trains one model on a GPU in every way that one GPU allows; holds losses and speed against each other.

    python tests/gpu/check.py --out FOLDER [--peak-tflops 989] [--part losses|speed|all] [--device cuda|cpu]

Every run of the first part must give the losses that one process on the processor gives. The second part
compares the throughput of a larger model with a bare loop over it, side by side. ``--device cpu`` tries the
script itself, with a small model in the second part.
"""

from __future__ import annotations

import argparse
import copy
import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import yaml

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent))
from conftest import FLIGHTS, PREPROCESS, TRAIN  # noqa: E402

ONE_PROCESS = {"distributed": False, "data_parallelism": None, "backend": "gloo"}
FSDP = {"data_parallelism": "fsdp", "fsdp_cpu_offload": False}
# Name: (launcher, fields of global_training, how far losses may be from those of the processor).
RUNS: dict[str, tuple[str, dict[str, Any], float]] = {
    "one-process": ("local", ONE_PROCESS, 1e-3),
    "ddp": ("spawn", {}, 1e-3),
    "fsdp": ("spawn", FSDP, 1e-3),
    "fsdp-offload": ("spawn", {**FSDP, "fsdp_cpu_offload": True}, 1e-3),
    "ddp-bf16": ("spawn", {"layer_autocast": True}, 3e-2),
    "fsdp-bf16": ("spawn", {**FSDP, "layer_autocast": True}, 3e-2),
    "ddp-compiled": ("spawn", {"torch_compile": "outer"}, 1e-3),
    "fsdp-compiled": ("spawn", {**FSDP, "torch_compile": "inner"}, 1e-3),
    "ray-ddp": ("ray", {}, 1e-3),
}
# Of the model whose speed is measured.
SIZES = {
    "cuda": {"dim_model": 512, "num_layers": 8, "n_heads": 8, "batch_size": 2048},
    "cpu": {"dim_model": 64, "num_layers": 2, "n_heads": 4, "batch_size": 64},
}


def config(name: str, device: str, fields: dict[str, Any], large: bool = False) -> dict[str, Any]:
    values = copy.deepcopy(TRAIN)
    values.update(model_name=name, device=device, evaluation=False)
    settings = values["global_training"]
    settings.update(batch_size=128, world_size=1, data_streams=1, log_interval=1)
    settings.update(backend="nccl" if device == "cuda" else "gloo")
    settings.update(fields)
    if settings["data_parallelism"] is None:
        del settings["data_parallelism"]
    if large:
        size = SIZES[device]
        settings.update(batch_size=size["batch_size"], log_interval=20)
        values["training_plan"]["epochs"] = 60 if device == "cuda" else 1
        model = values["model"]
        architecture = model["backbone"]["architecture"]
        architecture.update(dim_model=size["dim_model"], num_layers=size["num_layers"])
        architecture["attention"]["n_heads"] = size["n_heads"]
        architecture["feed_forward"]["dim"] = 4 * size["dim_model"]
        ingestion = model["interface"]["ingestion"]
        ingestion["output_dim"] = size["dim_model"]
        widths = ingestion["feature_embedding_dims"]
        widths["dest"] += size["dim_model"] - sum(widths.values())
    return values


def run(words: list[str], project: Path) -> tuple[float, str]:
    started_s = time.perf_counter()
    done = subprocess.run(words, cwd=project, capture_output=True, text=True, timeout=240, check=False)
    if done.returncode:
        raise SystemExit(
            f"{' '.join(words)}: {done.returncode}\n{done.stdout[-1500:]}\n{done.stderr[-3000:]}"
        )
    return time.perf_counter() - started_s, done.stdout


def train(project: Path, launcher: str, values: dict[str, Any]) -> tuple[dict[str, Any], list[float]]:
    name = values["model_name"]
    path = project / "configs" / f"{name}.yaml"
    path.write_text(yaml.safe_dump(values, sort_keys=False))
    command = [sys.executable, "-m", "sequifier_ray", "train", "--launcher", launcher]
    seconds, _ = run([*command, "--config-path", str(path)], project)
    summary = json.loads((project / "logs" / name / "summary.json").read_text())
    lines = map(json.loads, (project / "logs" / name / "metrics.jsonl").read_text().splitlines())
    print(f"{name:16} {seconds:6.1f} s  {summary['samples_per_s']:>10,.0f} samples/s", flush=True)
    return summary, [line["loss"] for line in lines if line["kind"] == "train"]


def same_losses(project: Path, device: str) -> dict[str, Any]:
    """How far the losses of every kind of run are from the processor's."""
    _, wanted = train(project, "local", config("processor", "cpu", ONE_PROCESS))
    found = {}
    for name, (launcher, fields, tolerance) in RUNS.items():
        _, losses = train(project, launcher, config(name, device, fields))
        worst = max(abs(a - b) / abs(b) for a, b in zip(losses[:50], wanted[:50], strict=True))
        found[name] = {"largest_relative_difference": worst, "allowed": tolerance}
        print(f"{'':16} losses differ by {worst:.1e} at most, allowed {tolerance:.0e}", flush=True)
    return found


def speed(project: Path, device: str, peak_tflops: float) -> dict[str, Any]:
    """Samples per second of a larger model beside a bare loop over it."""
    values = config("large", device, {**ONE_PROCESS, "layer_autocast": device == "cuda"}, large=True)
    summary, _ = train(project, "local", values)
    command = [sys.executable, str(HERE.parent / "benchmarks" / "bare_loop.py"), "configs/large.yaml"]
    _, text = run([*command, "--device", device, "--updates", "40"], project)
    (line,) = (line for line in text.splitlines() if line.startswith("{"))
    bare = float(json.loads(line)["samples_per_s"])
    ours = float(summary["samples_per_s"])
    # Kaplan et al. 2020: 6 operations a parameter and token, without the attention's own; 12 L C d for it.
    layers, width, context = SIZES[device]["num_layers"], SIZES[device]["dim_model"], 32
    per_token = 6 * 12 * layers * width**2 + 12 * layers * width * context
    share = ours * context * per_token / (peak_tflops * 1e12)
    print(
        f"large model: {ours:,.0f} samples/s, bare loop {bare:,.0f}: {ours / bare:.2f}; {share:.1%} of peak"
    )
    return {"samples_per_s": ours, "bare_samples_per_s": bare, "ratio": ours / bare, "share_of_peak": share}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", default="gpu-figures")
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cuda")
    parser.add_argument(
        "--peak-tflops", type=float, default=989.0, help="bf16, dense; 989 on an H100 or H200"
    )
    parser.add_argument("--part", choices=["losses", "speed", "all"], default="all")
    options = parser.parse_args()
    out = Path(options.out).absolute()
    shutil.rmtree(out, ignore_errors=True)
    (out / "configs").mkdir(parents=True)
    (out / "data").mkdir()
    shutil.copy(FLIGHTS, out / "data" / "flights.parquet")
    (out / "configs" / "preprocess.yaml").write_text(yaml.safe_dump(PREPROCESS))
    os.environ.setdefault("OMP_NUM_THREADS", "4")
    run([sys.executable, "-m", "sequifier_ray", "preprocess"], out)
    figures = {}
    if options.part != "speed":
        figures["losses"] = same_losses(out, options.device)
    if options.part != "losses":
        figures["speed"] = speed(out, options.device, options.peak_tflops)
    (out / "figures.json").write_text(json.dumps(figures, indent=1))
    losses = figures.get("losses", {})
    wrong = {n: f for n, f in losses.items() if f["largest_relative_difference"] > f["allowed"]}
    if wrong:
        raise SystemExit(f"losses differ: {json.dumps(wrong)}")
    print(f"figures in {out / 'figures.json'}")


if __name__ == "__main__":
    main()
