"""YAML files to load, written as a user would."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from sequifier_ray.config.load import load_preprocess, load_train

PREPROCESS = """\
project_root: .
preprocessing_data_path: data/events.csv
split_ratios: [0.8, 0.2]
window_length: 33
"""
TRAIN = """\
project_root: .
model_name: demo
device: cpu
evaluation: true
global_training:
  training_objective: causal
  context_length: 32
  batch_size: 4
  inference_batch_size: 8
  learning_rate: 1e-3
  optimizer: {name: AdamW, weight_decay: 0.1, betas: [0.9, 0.95]}
  torch_compile: none
  world_size: 1
model:
  backbone:
    architecture:
      dim_model: 8
      num_layers: 2
      attention: {n_heads: 2}
      feed_forward: {dim: 16}
  interface:
    input_columns: [kind, size]
    target_columns: [kind]
    ingestion: {output_dim: 8, feature_embedding_dims: {kind: 6, size: 2}}
dataset:
  part: {metadata_config_path: configs/metadata_configs/events.json}
  criterion: {kind: CrossEntropyLoss}
training_plan: {epochs: 2}
"""


def _loader(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, load: Callable[..., Any], name: str
) -> Any:
    monkeypatch.chdir(tmp_path)

    def edit_and_load(*edits: tuple[str, str], overrides: dict[str, Any] | None = None) -> Any:
        changed = text
        for old, new in edits:
            assert old in changed, f"{old!r} is not in the file"
            changed = changed.replace(old, new, 1)
        Path(name).write_text(changed)
        return load(name, overrides)

    return edit_and_load


@pytest.fixture
def train(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Load train.yaml after replacing pieces of its text."""
    return _loader(tmp_path, monkeypatch, TRAIN, load_train, "train.yaml")


@pytest.fixture
def preprocess(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Load preprocess.yaml after replacing pieces of its text."""
    return _loader(tmp_path, monkeypatch, PREPROCESS, load_preprocess, "preprocess.yaml")
