"""A folder that Sequifier wrote trains unchanged, with the losses of our own shards of the same table."""

from __future__ import annotations

import copy
import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml

from sequifier_ray.cli import main
from sequifier_ray.config.load import load_preprocess
from sequifier_ray.preprocess.pipeline import preprocess

FOLDER = Path(__file__).parents[1] / "data" / "sequifier_folder"
TRAIN: dict[str, Any] = {
    "model_name": "m",
    "device": "cpu",
    "global_training": {
        "read_format": "pt",
        "training_objective": "causal",
        "context_length": 8,
        # All samples in one update: their order is not that of our shards.
        "batch_size": 1000,
        "inference_batch_size": 7,
        "learning_rate": 0.01,
        "optimizer": {"name": "AdamW"},
        "log_interval": 1,
        "torch_compile": "none",
        "backend": "gloo",
    },
    "model": {
        "backbone": {
            "architecture": {
                "dim_model": 8,
                "num_layers": 1,
                "attention": {"n_heads": 2},
                "feed_forward": {"dim": 16},
                "dropout": 0.0,
            }
        },
        "interface": {
            "input_columns": ["word", "size"],
            "target_columns": ["word", "size"],
            "ingestion": {
                "type": "embedding",
                "output_dim": 8,
                "feature_embedding_dims": {"word": 5, "size": 3},
            },
            "decoder": {"type": "linear", "prediction_length": 8},
        },
    },
    "dataset": {
        "part": {"metadata_config_path": "configs/metadata_configs/events.json"},
        "criterion": {"word": "CrossEntropyLoss", "size": "MSELoss"},
    },
    "training_plan": {"epochs": 6},
    "evaluation": True,
}


def losses(root: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, list[float]]:
    """Losses of training and validation, in the order they were logged."""
    settings = copy.deepcopy(TRAIN) | {"project_root": str(root)}
    (root / "train.yaml").write_text(yaml.safe_dump(settings))
    monkeypatch.chdir(root)
    assert main(["train", "--config-path", "train.yaml"]) == 0
    found: dict[str, list[float]] = {}
    for line in (root / "logs" / "m" / "metrics.jsonl").read_text().splitlines():
        values = json.loads(line)
        if "loss" in values:
            found.setdefault(values["kind"], []).append(values["loss"])
    return found


def test_the_same_losses(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    theirs, ours = tmp_path / "theirs", tmp_path / "ours"
    shutil.copytree(FOLDER, theirs)
    ours.mkdir()
    shutil.copy(FOLDER / "events.csv", ours)
    settings = {
        "project_root": str(ours),
        "preprocessing_data_path": "events.csv",
        "write_format": "pt",
        "merge_output": False,
        "split_ratios": [0.7, 0.3],
        "window_length": 9,
        "window_stride": 4,
    }
    (ours / "p.yaml").write_text(yaml.safe_dump(settings))
    preprocess(load_preprocess(str(ours / "p.yaml")), lambda line: None)
    expected = losses(ours, monkeypatch)
    found = losses(theirs, monkeypatch)
    assert len(expected["train"]) == 6
    assert len(expected["validation"]) == 7
    assert found.keys() == expected.keys()
    for kind, values in expected.items():
        assert found[kind] == pytest.approx(values, rel=1e-5), kind
    assert expected["train"][-1] < expected["train"][0]
