"""Small models from real configurations, and batches made by hand."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from sequifier_ray.config.model import ModelConfig
from sequifier_ray.config.train import Dataset
from sequifier_ray.data.batch import SequenceBatch
from sequifier_ray.data.metadata import ColumnStatistics, DatasetDescription
from sequifier_ray.model.initialization import initialize
from sequifier_ray.model.network import SequenceModel, build_model
from sequifier_ray.model.objectives import CausalObjective

CONTEXT = 8


def describe() -> DatasetDescription:
    """Columns: ``kind`` (9 classes), ``type`` (5 classes), ``value`` (real)."""
    return DatasetDescription(
        n_classes={"kind": 9, "type": 5},
        id_maps={"kind": {str(i): i for i in range(3, 9)}, "type": {"a": 3, "b": 4}},
        split_paths=("data/x-split0",),
        column_data_types={"kind": "Int64", "type": "String", "value": "Float64"},
        selected_columns_statistics={"value": ColumnStatistics(0.0, 1.0)},
        normalize_real_columns=True,
        normalize_on_all_data=False,
        split_ratios=(1.0,),
        split_method="within_sequence",
        window_length=CONTEXT + 1,
        window_stride=4,
        max_target_offset=1,
        special_token_ids={"[unknown]": 0, "[other]": 1, "[mask]": 2},
        write_format="pt",
        merge_output=False,
    )


def model_config(
    architecture: dict[str, Any] | None = None, interface: dict[str, Any] | None = None
) -> ModelConfig:
    """A model of width 16 with two layers; both arguments override fields."""
    values = {
        "dim_model": 16,
        "max_context_length": CONTEXT,
        "num_layers": 2,
        "attention": {"type": "mha", "n_heads": 4},
        "feed_forward": {"dim": 32, "activation": "gelu"},
        "position_encoding": {"type": "rope"},
        **(architecture or {}),
    }
    ends = {
        "input_columns": ["kind", "type", "value"],
        "target_columns": ["kind", "value"],
        "ingestion": {
            "type": "embedding",
            "output_dim": 16,
            "feature_embedding_dims": {"kind": 8, "type": 4, "value": 4},
        },
        "decoder": {"type": "linear", "prediction_length": 4},
        **(interface or {}),
    }
    return ModelConfig.model_validate({"backbone": {"architecture": values}, "interface": ends})


class Bench:
    """A model, its objective, and batches."""

    describe = staticmethod(describe)
    config = staticmethod(model_config)

    def model(self, seed: int = 1, **overrides: dict[str, Any]) -> SequenceModel:
        model = build_model(model_config(**overrides), describe(), CONTEXT)
        initialize(model, seed)
        return model

    def objective(
        self,
        criterion: dict[str, str] | None = None,
        weights: dict[str, float] | None = None,
        **overrides: Any,
    ) -> CausalObjective:
        dataset = Dataset.model_validate(
            {
                "part": {"metadata_config_path": "x.json"},
                "criterion": criterion or {"kind": "CrossEntropyLoss", "value": "MSELoss"},
                "loss_weights": weights,
            }
        )
        return CausalObjective(model_config(**overrides), dataset, describe())

    def batch(self, paddings: tuple[int, ...], n_predicted: int = 4, seed: int = 0) -> SequenceBatch:
        """One sample per entry, left-padded by so many events (0 … CONTEXT); values drawn from ``seed``."""
        generator = np.random.default_rng(seed)
        n, width = len(paddings), CONTEXT + 1
        real = np.arange(width) >= np.array(paddings)[:, None]
        events = {
            "kind": generator.integers(3, 9, (n, width)),
            "type": generator.integers(3, 5, (n, width)),
            "value": generator.normal(size=(n, width)),
        }
        events = {name: np.where(real, column, 0) for name, column in events.items()}
        inputs = {
            name: torch.tensor(c[:, :CONTEXT], dtype=torch.float32 if name == "value" else torch.int32)
            for name, c in events.items()
        }
        targets = {
            name: torch.tensor(
                events[name][:, width - n_predicted :],
                dtype=torch.float32 if name == "value" else torch.int64,
            )
            for name in ("kind", "value")
        }
        return SequenceBatch(
            inputs,
            torch.tensor(real[:, :CONTEXT]),
            targets,
            torch.tensor(real[:, width - n_predicted :]),
            torch.ones(n, dtype=torch.bool),
            np.arange(n),
        )


@pytest.fixture
def bench() -> Bench:
    return Bench()
