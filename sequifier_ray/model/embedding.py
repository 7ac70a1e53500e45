"""From columns to vectors: one table per categorical column, one linear map per real one, joined."""

from __future__ import annotations

import math
import re

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sequifier_ray.config.model import Architecture, Interface
from sequifier_ray.data.metadata import DatasetDescription
from sequifier_ray.errors import ConfigError, nearest

_FIELD = "model.interface.ingestion.feature_embedding_dims"
_LEAST_WIDTH = 2


def check_columns(field: str, columns: tuple[str, ...], description: DatasetDescription) -> None:
    """Raises ConfigError naming the first of ``columns`` that the data set does not have."""
    for name in columns:
        if name not in description.columns:
            raise ConfigError(
                f'model.interface.{field}: the data set has no column "{name}"'
                f"{nearest(name, description.columns)}; it has "
                f"{', '.join(description.columns)}"
            )


def share_width(n_classes: dict[str, int], output_dim: int) -> dict[str, int]:
    """Split ``output_dim`` among categorical columns by the logarithm of their classes, at least 2 each.

    Largest remainders get what rounding leaves; the widths sum to ``output_dim``.

    Raises:
        ConfigError: ``output_dim`` is less than 2 for each.
    """
    spare = output_dim - _LEAST_WIDTH * len(n_classes)
    if spare < 0:
        raise ConfigError(
            f"model.interface.ingestion.output_dim: {output_dim} is too small for {len(n_classes)} "
            "columns of at least "
            f"{_LEAST_WIDTH} each; use {_LEAST_WIDTH * len(n_classes)} or more"
        )
    weights = {name: math.log(max(count, 2)) for name, count in n_classes.items()}
    total = sum(weights.values())
    exact = {name: spare * weight / total for name, weight in weights.items()}
    widths = {name: _LEAST_WIDTH + int(share) for name, share in exact.items()}
    left = output_dim - sum(widths.values())
    for name in sorted(exact, key=lambda n: int(exact[n]) - exact[n])[:left]:
        widths[name] += 1
    return widths


def feature_widths(interface: Interface, description: DatasetDescription) -> dict[str, int]:
    """Embedding width of every input column.

    Raises:
        ConfigError: real columns are among the inputs and no widths are given; suggests some.
    """
    given = interface.ingestion.feature_embedding_dims
    if given is not None:
        return dict(given)
    classes = {name: description.n_classes.get(name, 10) for name in interface.input_columns}
    widths = share_width(classes, interface.ingestion.output_dim)
    reals = [name for name in interface.input_columns if name in description.real_columns]
    if reals:
        suggestion = ", ".join(f"{name}: {width}" for name, width in widths.items())
        raise ConfigError(
            f"{_FIELD}: {', '.join(reals)} are real columns, so that the widths must be given and sum to "
            "output_dim "
            f"{interface.ingestion.output_dim}; for example {{{suggestion}}}"
        )
    return widths


class Ingestion(nn.Module):
    """Columns (B, C) each → (B, C, D)."""

    def __init__(
        self, architecture: Architecture, interface: Interface, description: DatasetDescription
    ) -> None:
        super().__init__()
        check_columns("input_columns", interface.input_columns, description)
        self.widths = feature_widths(interface, description)
        self.columns = tuple(interface.input_columns)
        self.categorical = tuple(name in description.id_maps for name in self.columns)
        # Keys carry a number: a column may be called like an attribute of the module ("type", "values").
        features: dict[str, nn.Module] = {}
        for i, name in enumerate(self.columns):
            width = self.widths[name]
            is_categorical = self.categorical[i]
            key = f"{i}_{re.sub(r'[^0-9A-Za-z]', '_', name)}"
            features[key] = (
                nn.Embedding(description.n_classes[name], width) if is_categorical else nn.Linear(1, width)
            )
        self.features = nn.ModuleDict(features)
        joined = interface.ingestion.output_dim
        self.to_model: nn.Module = nn.Identity()
        if joined != architecture.dim_model:
            self.to_model = nn.Linear(joined, architecture.dim_model, bias=False)

    def forward(self, inputs: dict[str, Tensor]) -> Tensor:
        """Joined embedding, (B, C, output_dim), in the order of ``input_columns``."""
        parts = []
        for name, is_categorical, feature in zip(
            self.columns, self.categorical, self.features.values(), strict=True
        ):
            if is_categorical:
                parts.append(F.embedding(inputs[name], feature.weight))  # type: ignore[arg-type]
            else:
                parts.append(feature(inputs[name].unsqueeze(-1)))
        return torch.cat([part.to(parts[-1].dtype) for part in parts], dim=-1)


def sinusoid_table(width: int, length: int, theta: float, device: torch.device) -> Tensor:
    """Fixed positions of Vaswani et al. 2017: (length, width), sines in even places, cosines in odd ones."""
    pairs = torch.arange(0, width, 2, device=device, dtype=torch.float32)
    angles = torch.arange(length, device=device, dtype=torch.float32)[:, None] * theta ** (-pairs / width)
    return torch.stack([angles.sin(), angles.cos()], dim=-1).flatten(1)[:, :width]


class Positions(nn.Module):
    """Adds absolute positions, learned or sinusoidal, counted from the view's left end, padding included.

    Scope "global" has one table for the joined embedding, "per_feature" one for each feature's part of it.
    """

    def __init__(self, architecture: Architecture, widths: dict[str, int]) -> None:
        super().__init__()
        assert architecture.max_context_length is not None
        self.length = architecture.max_context_length
        self.theta = architecture.position_encoding.theta
        is_global = architecture.positional_encoding_scope == "global"
        self.widths = (sum(widths.values()),) if is_global else tuple(widths.values())
        self.is_learned = architecture.position_encoding.type == "learned"
        if self.is_learned:
            self.tables = nn.ModuleList(nn.Embedding(self.length, width) for width in self.widths)
        else:
            self.register_buffer("sinusoid", self._sinusoid(torch.device("cpu")), persistent=False)

    def _sinusoid(self, device: torch.device) -> Tensor:
        return torch.cat([sinusoid_table(w, self.length, self.theta, device) for w in self.widths], dim=-1)

    def reset_buffers(self, device: torch.device) -> None:
        """Compute the fixed table anew: construction on the meta device leaves it empty."""
        if not self.is_learned:
            self.sinusoid = self._sinusoid(device)

    def forward(self, x: Tensor) -> Tensor:
        """(B, C, output_dim) → the same."""
        n = x.shape[1]
        if self.is_learned:
            # Sliced, not looked up: every update touches the first C rows.
            return x + torch.cat([table.weight[:n] for table in self.tables], dim=-1)  # type: ignore[index]
        return x + self.sinusoid[:n].to(x.dtype)
