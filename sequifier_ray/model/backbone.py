"""The transformer between ingestion and decoder."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from sequifier_ray.config.model import Architecture
from sequifier_ray.model.layers import Block, attention_mask, normalization, rope_tables


class Backbone(nn.Module):
    """Blocks and the final norm. Layers of one group of ``shared_layer_groups`` use one block."""

    def __init__(self, settings: Architecture) -> None:
        super().__init__()
        self.block_of_layer = _block_numbers(settings)
        self.blocks = nn.ModuleList(Block(settings) for _ in range(max(self.block_of_layer) + 1))
        self.final_norm = normalization(settings.normalization, settings.dim_model)
        self.settings = settings
        self.uses_rope = settings.position_encoding.type == "rope"
        if self.uses_rope:
            cosines, sines = self._rope(torch.device("cpu"))
            self.register_buffer("cosines", cosines, persistent=False)
            self.register_buffer("sines", sines, persistent=False)

    def _rope(self, device: torch.device) -> tuple[Tensor, Tensor]:
        head_width = self.settings.dim_model // self.settings.attention.n_heads
        assert self.settings.max_context_length is not None
        theta = self.settings.position_encoding.theta
        return rope_tables(head_width, self.settings.max_context_length, theta, device)

    def reset_buffers(self, device: torch.device) -> None:
        """Compute rotary tables anew: construction on the meta device leaves them empty."""
        if self.uses_rope:
            self.cosines, self.sines = self._rope(device)

    def forward(self, x: Tensor, is_real: Tensor) -> Tensor:
        """(B, C, D) and (B, C) bool → (B, C, D)."""
        mask = attention_mask(is_real)
        n = x.shape[1]
        rope = (self.cosines[:n], self.sines[:n]) if self.uses_rope else None
        for number in self.block_of_layer:
            x = self.blocks[number](x, mask, rope)
        normed: Tensor = self.final_norm(x)
        return normed


def _block_numbers(settings: Architecture) -> tuple[int, ...]:
    """Number of the block that each layer uses, in order of first use."""
    leader = {layer: min(group) for group in settings.shared_layer_groups for layer in group}
    numbers: dict[int, int] = {}
    return tuple(
        numbers.setdefault(leader.get(layer, layer), len(numbers)) for layer in range(settings.num_layers)
    )
