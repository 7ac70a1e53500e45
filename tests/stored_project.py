"""A project in an object store, worked on by the command line as a user would."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from sequifier_ray import storage


@dataclass
class Stored:
    """The project's address, the configurations on this machine, and the server's log of requests."""

    root: str
    local: Any
    log: Path

    def command(self, verb: str, config: Path, *options: str) -> subprocess.Popen[str]:
        words = [sys.executable, "-m", "sequifier_ray", verb, "--config-path", str(config), *options]
        return subprocess.Popen(
            words,
            env={**os.environ, "OMP_NUM_THREADS": "1", "TMPDIR": str(self.local.root / "tmp")},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    def run(self, verb: str, config: Path, *options: str) -> tuple[int, str, str]:
        process = self.command(verb, config, *options)
        try:
            out, err = process.communicate(timeout=400)
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
        return process.returncode, out, err

    def train_yaml(self, name: str, **fields: Any) -> Path:
        fields = {
            "project_root": self.root,
            "model_name": name,
            "global_training.batch_size": 16,
            "global_training.save_interval_batches": 15,
            "global_training.resume.policy": "if_exists",
            "global_training.shard_cache_path": str(self.local.root / "cache"),
            "training_plan.epochs": 2,
            **fields,
        }
        path: Path = self.local.write_train(fields, f"{name}.yaml")
        return path

    def figures(self, name: str) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(storage.read_text(f"{self.root}/logs/{name}/summary.json"))
        return found

    def losses(self, name: str) -> list[float]:
        lines = map(json.loads, storage.read_text(f"{self.root}/logs/{name}/metrics.jsonl").splitlines())
        return [line["loss"] for line in lines if line["kind"] == "train"]

    def preprocess(self) -> Path:
        """Take the table into the store and preprocess it there; the configuration."""
        (self.local.root / "tmp").mkdir(exist_ok=True)
        table = "data/flights.parquet"
        storage.copy_file(str(self.local.root / table), f"{self.root}/{table}")
        values = yaml.safe_load((self.local.root / "configs" / "preprocess.yaml").read_text())
        config: Path = self.local.root / "configs" / "stored.yaml"
        config.write_text(yaml.safe_dump({**values, "project_root": self.root}))
        code, _, err = self.run("preprocess", config)
        assert code == 0, err
        return config
