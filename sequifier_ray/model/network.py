"""The whole model: ingestion, positions, backbone, heads."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from sequifier_ray.config.model import ModelConfig
from sequifier_ray.data.metadata import DatasetDescription
from sequifier_ray.model.backbone import Backbone
from sequifier_ray.model.embedding import Ingestion, Positions, check_columns
from sequifier_ray.model.heads import Heads
from sequifier_ray.model.layers import Dropout


class SequenceModel(nn.Module):
    """Columns of B samples and C positions → a prediction per target for the last P positions."""

    def __init__(self, config: ModelConfig, description: DatasetDescription) -> None:
        super().__init__()
        architecture, interface = config.backbone.architecture, config.interface
        check_columns("target_columns", interface.target_columns, description)
        self.ingestion = Ingestion(architecture, interface, description)
        has_positions = architecture.position_encoding.type != "rope"
        self.positions = Positions(architecture, self.ingestion.widths) if has_positions else None
        self.dropout = Dropout(architecture.dropout)
        self.backbone = Backbone(architecture)
        self.heads = Heads(architecture, interface, description)

    @property
    def blocks(self) -> list[nn.Module]:
        """The distinct transformer blocks, each once: units of compilation and sharding."""
        return list(self.backbone.blocks)

    def reset_buffers(self, device: torch.device) -> None:
        """Compute all fixed tables anew, on ``device``."""
        self.backbone.reset_buffers(device)
        if self.positions is not None:
            self.positions.reset_buffers(device)

    def forward(self, inputs: dict[str, Tensor], is_real: Tensor) -> dict[str, Tensor]:
        """``inputs`` column → (B, C), ``is_real`` (B, C) → target → (B, P, outputs)."""
        x = self.ingestion(inputs)  # (B, C, output_dim)
        if self.positions is not None:
            x = self.positions(x)
        x = self.backbone(self.dropout(self.ingestion.to_model(x)), is_real)  # (B, C, D)
        predictions: dict[str, Tensor] = self.heads(x)
        return predictions


def build_model(config: ModelConfig, description: DatasetDescription, context_length: int) -> SequenceModel:
    """An uninitialized model for views of ``context_length`` events; works on the meta device.

    Raises:
        ConfigError: a column the data set does not have, or widths that do not fit.
    """
    limit = config.backbone.architecture.max_context_length
    assert limit is not None, "the configuration fills it in"
    assert context_length <= limit, "the configuration checks it"
    return SequenceModel(config, description)
