"""Decoders: from the last positions of the backbone to one prediction per target."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sequifier_ray.config.model import Architecture, Interface
from sequifier_ray.data.metadata import DatasetDescription

NOT_PREDICTABLE = -100


def predictable_ids(interface: Interface, description: DatasetDescription, column: str) -> list[int]:
    """Ids that a categorical head can predict, in the order of its outputs: listed special tokens, then 3…"""
    listed = interface.categorical_decoder_special_tokens.get(column, ())
    special = sorted(description.special_token_ids[token] for token in listed)
    first = max(description.special_token_ids.values()) + 1
    return special + list(range(first, description.n_classes[column]))


def output_index(interface: Interface, description: DatasetDescription, column: str) -> Tensor:
    """Id → output of the head, (n_classes,) int64; NOT_PREDICTABLE for ids that it cannot predict."""
    table = torch.full((description.n_classes[column],), NOT_PREDICTABLE)
    ids = predictable_ids(interface, description, column)
    table[torch.tensor(ids, dtype=torch.long)] = torch.arange(len(ids))
    return table


class MlpHead(nn.Module):
    """A hidden layer of the model's width before the linear map."""

    def __init__(self, architecture: Architecture, n_outputs: int) -> None:
        super().__init__()
        self.hidden = nn.Linear(architecture.dim_model, architecture.dim_model)
        self.output = nn.Linear(architecture.dim_model, n_outputs)

    def forward(self, x: Tensor) -> Tensor:
        """(B, P, D) → (B, P, outputs)."""
        mapped: Tensor = self.output(F.gelu(self.hidden(x)))
        return mapped


class Heads(nn.Module):
    """One linear or mlp decoder per target over the last P positions."""

    def __init__(
        self, architecture: Architecture, interface: Interface, description: DatasetDescription
    ) -> None:
        super().__init__()
        self.columns = tuple(interface.target_columns)
        self.prediction_length = interface.decoder.prediction_length
        heads: list[nn.Module] = []
        for name in self.columns:
            is_categorical = name in description.id_maps
            n_outputs = len(predictable_ids(interface, description, name)) if is_categorical else 1
            if interface.decoder.type == "mlp":
                heads.append(MlpHead(architecture, n_outputs))
            else:
                heads.append(nn.Linear(architecture.dim_model, n_outputs))
        self.heads = nn.ModuleList(heads)

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        """(B, C, D) → target → (B, P, outputs); a real target has one output."""
        last = x[:, x.shape[1] - self.prediction_length :]
        return {name: head(last) for name, head in zip(self.columns, self.heads, strict=True)}
