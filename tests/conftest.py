"""A small real project, preprocessed once, and one Ray instance for all tests that need one."""

from __future__ import annotations

import copy
import json
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

os.environ.setdefault("OMP_NUM_THREADS", "1")
FLIGHTS = Path(__file__).parent / "data" / "flights.parquet"
SEQUIFIER_FOLDER = Path(__file__).parent / "data" / "sequifier_folder"

PREPROCESS: dict[str, Any] = {
    "project_root": ".",
    "preprocessing_data_path": "data/flights.parquet",
    "read_format": "parquet",
    "write_format": "pt",
    "merge_output": False,
    "split_ratios": [0.8, 0.2],
    "window_length": 33,
    "window_stride": 8,
}
TRAIN: dict[str, Any] = {
    "project_root": ".",
    "model_name": "demo",
    "device": "cpu",
    "global_training": {
        "read_format": "pt",
        "training_objective": "causal",
        "context_length": 32,
        "batch_size": 64,
        "inference_batch_size": 256,
        "learning_rate": 0.001,
        "optimizer": {"name": "AdamW"},
        "log_interval": 1,
        "calculate_validation_loss_on_initialization": False,
        "distributed": True,
        "data_parallelism": "ddp",
        "world_size": 2,
        "backend": "gloo",
        "torch_compile": "none",
        "data_streams": 2,
    },
    "model": {
        "backbone": {
            "architecture": {
                "dim_model": 64,
                "num_layers": 2,
                "attention": {"type": "mha", "n_heads": 4},
                "feed_forward": {"dim": 256, "activation": "gelu"},
                "normalization": {"type": "rmsnorm", "norm_first": True},
                "position_encoding": {"type": "rope"},
                "dropout": 0.0,
            }
        },
        "interface": {
            "input_columns": ["carrier", "origin", "dest", "dep_delay", "arr_delay", "distance", "air_time"],
            "target_columns": ["dest", "arr_delay"],
            "ingestion": {
                "type": "embedding",
                "output_dim": 64,
                "feature_embedding_dims": {
                    "carrier": 8,
                    "origin": 8,
                    "dest": 24,
                    "dep_delay": 6,
                    "arr_delay": 6,
                    "distance": 6,
                    "air_time": 6,
                },
            },
            "decoder": {"type": "linear", "prediction_length": 32},
        },
    },
    "dataset": {
        "part": {"metadata_config_path": "configs/metadata_configs/flights.json"},
        "criterion": {"dest": "CrossEntropyLoss", "arr_delay": "MSELoss"},
    },
    "training_plan": {"epochs": 1},
    "evaluation": True,
}


class Project:
    """A folder with data and configs. Overrides are dotted field names."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def write_train(self, overrides: dict[str, Any], name: str = "train.yaml") -> Path:
        """A train.yaml with overrides; the value ``...`` removes a field."""
        values = copy.deepcopy(TRAIN)
        for field, value in {"project_root": str(self.root), **overrides}.items():
            *parents, last = field.split(".")
            place = values
            for parent in parents:
                place = place.setdefault(parent, {})
            if value is ...:
                place.pop(last, None)
            else:
                place[last] = value
        path = self.root / "configs" / name
        path.write_text(yaml.safe_dump(values, sort_keys=False))
        return path

    def train_config(self, **fields: Any) -> Any:
        """A loaded train configuration; keyword names use ``__`` for dots."""
        from sequifier_ray.config.load import load_train

        overrides = {name.replace("__", "."): value for name, value in fields.items()}
        name = f"{overrides.get('model_name', 'demo')}.yaml"
        return load_train(str(self.write_train(overrides, name)))

    def preprocess(self, **fields: Any) -> None:
        """Preprocess with overrides of the top-level fields."""
        from sequifier_ray.config.load import load_preprocess
        from sequifier_ray.preprocess.pipeline import preprocess

        path = self.root / "configs" / "preprocess.yaml"
        path.write_text(yaml.safe_dump({**PREPROCESS, "project_root": str(self.root), **fields}))
        preprocess(load_preprocess(str(path)), report=lambda text: None)

    def losses(self, model_name: str) -> list[float]:
        """The training loss of every logged update."""
        return [line["loss"] for line in self.metrics(model_name, "train")]

    def metrics(self, model_name: str, kind: str) -> list[dict[str, Any]]:
        lines = (self.root / "logs" / model_name / "metrics.jsonl").read_text().splitlines()
        return [line for line in map(json.loads, lines) if line["kind"] == kind]

    def summary(self, model_name: str) -> dict[str, Any]:
        values: dict[str, Any] = json.loads((self.root / "logs" / model_name / "summary.json").read_text())
        return values


def make_project(root: Path, n_sequences: int) -> Project:
    """A project on the flights of some aircraft, half of them with short (padded) histories."""
    import polars as pl

    (root / "data").mkdir(parents=True)
    (root / "configs").mkdir()
    flights = pl.read_parquet(FLIGHTS)
    counts = flights.group_by("sequenceId").len().sort("sequenceId")
    short = counts.filter(pl.col("len").is_between(3, 40))["sequenceId"].head(n_sequences // 2)
    kept = pl.concat([short, counts["sequenceId"].head(n_sequences - n_sequences // 2)]).unique()
    flights.filter(pl.col("sequenceId").is_in(kept.implode())).write_parquet(
        root / "data" / "flights.parquet"
    )
    return Project(root)


@pytest.fixture(scope="session")
def flights(tmp_path_factory: pytest.TempPathFactory) -> Project:
    """240 aircraft, preprocessed; tests give their runs model names of their own."""
    project = make_project(tmp_path_factory.mktemp("flights"), 240)
    project.preprocess()
    return project


@pytest.fixture(scope="session")
def sequifier_and_ours(tmp_path_factory: pytest.TempPathFactory) -> tuple[Project, Project]:
    """A folder as Sequifier 3.1.1.0 wrote it, and our own shards of its table with the same settings."""
    theirs, ours = (Project(tmp_path_factory.mktemp(name)) for name in ("theirs", "ours"))
    shutil.copytree(SEQUIFIER_FOLDER, theirs.root, dirs_exist_ok=True)
    shutil.copy(SEQUIFIER_FOLDER / "events.parquet", ours.root)
    (ours.root / "configs").mkdir()
    ours.preprocess(
        preprocessing_data_path="events.parquet",
        selected_columns=["kind", "size"],
        window_length=12,
        window_stride=4,
        max_target_offset=2,
    )
    return theirs, ours


@pytest.fixture(scope="session")
def ray_instance() -> Iterator[None]:
    """One local Ray for all tests that train on it."""
    os.environ["RAY_AUTH_MODE"] = "disabled"
    os.environ["RAY_TRAIN_HEALTH_CHECK_INTERVAL_S"] = "0.3"
    import ray

    ray.init(address="local", num_cpus=3, include_dashboard=False, log_to_driver=False, logging_level="ERROR")
    yield
    ray.shutdown()


@pytest.fixture
def new_project(tmp_path: Path) -> Callable[[int], Project]:
    """Makes a project of its own for a test: so many aircraft, not yet preprocessed."""
    return lambda n_sequences: make_project(tmp_path / "project", n_sequences)
