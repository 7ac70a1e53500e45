"""Parts of a block. B samples, C positions, D model width, H heads, K key/value heads, E head width."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sequifier_ray.config.model import Architecture, Attention, FeedForward, Normalization

RMS_EPS = 1e-6


def normalization(settings: Normalization, width: int) -> nn.Module:
    """Layer norm (Ba et al. 2016) or RMS norm (Zhang & Sennrich 2019) over the last dimension."""
    if settings.type == "rmsnorm":
        return nn.RMSNorm(width, eps=RMS_EPS)
    return nn.LayerNorm(width)


def attention_mask(is_real: Tensor) -> Tensor:
    """Who may look at whom: (B, C) bool → (B, 1, C, C) bool, True where query i may see key j.

    Only events at or before the query, never padding; every position sees itself, so that a padded query
    has something to attend to and stays finite.
    """
    n = is_real.shape[1]
    causal = torch.ones(n, n, dtype=torch.bool, device=is_real.device).tril()
    itself = torch.eye(n, dtype=torch.bool, device=is_real.device)
    return ((is_real[:, None, :] & causal) | itself)[:, None]


def rope_tables(width: int, length: int, theta: float, device: torch.device) -> tuple[Tensor, Tensor]:
    """Cosines and sines of rotary positions (Su et al. 2021), half-split form; both (length, width)."""
    frequencies = theta ** (-torch.arange(0, width, 2, device=device, dtype=torch.float32) / width)
    angles = torch.arange(length, device=device, dtype=torch.float32)[:, None] * frequencies
    angles = torch.cat([angles, angles], dim=-1)
    return angles.cos(), angles.sin()


def rotate(x: Tensor, cosines: Tensor, sines: Tensor) -> Tensor:
    """Turn each pair (x_i, x_{i + E/2}) by its position's angle; (B, H, C, E) → the same."""
    first, second = x.chunk(2, dim=-1)
    turned = torch.cat([-second, first], dim=-1)
    return x * cosines.to(x.dtype) + turned * sines.to(x.dtype)


class SelfAttention(nn.Module):
    """Causal self-attention with as many key/value heads as asked for (mha, gqa, mqa); no biases."""

    def __init__(self, settings: Attention, width: int) -> None:
        super().__init__()
        self.n_heads, self.n_kv_heads = settings.n_heads, settings.kv_heads
        self.head_width = width // settings.n_heads
        # Queries, keys and values of all heads in one product: small ones leave cores idle.
        self.qkv = nn.Linear(width, (self.n_heads + 2 * self.n_kv_heads) * self.head_width, bias=False)
        self.output = nn.Linear(width, width, bias=False) if settings.output_projection else nn.Identity()

    def forward(self, x: Tensor, mask: Tensor, rope: tuple[Tensor, Tensor] | None) -> Tensor:
        """(B, C, D) and a mask (B, 1, C, C) → (B, C, D)."""
        b, c, _ = x.shape
        heads = self.qkv(x).view(b, c, -1, self.head_width).transpose(1, 2)  # (B, H + 2 K, C, E)
        turning, value = heads.split([self.n_heads + self.n_kv_heads, self.n_kv_heads], dim=1)
        if rope is not None:
            turning = rotate(turning, *rope)
        query, key = turning.split([self.n_heads, self.n_kv_heads], dim=1)  # (B, H, C, E), (B, K, C, E)
        seen = F.scaled_dot_product_attention(
            query,
            key,
            value,
            attn_mask=mask,
            enable_gqa=self.n_kv_heads != self.n_heads,
        )
        joined: Tensor = self.output(seen.transpose(1, 2).reshape(b, c, -1))
        return joined


class Perceptron(nn.Module):
    """down(activation(up(x))), with biases."""

    def __init__(self, settings: FeedForward, width: int) -> None:
        super().__init__()
        self.up = nn.Linear(width, settings.dim)
        self.down = nn.Linear(settings.dim, width)
        self.activation = F.relu if settings.activation == "relu" else F.gelu

    def forward(self, x: Tensor) -> Tensor:
        """(B, C, D) → (B, C, D)."""
        mapped: Tensor = self.down(self.activation(self.up(x)))
        return mapped


class SwiGLU(nn.Module):
    """w3(silu(w1 x) · w2 x) (Shazeer 2020), without biases."""

    def __init__(self, settings: FeedForward, width: int) -> None:
        super().__init__()
        self.w1 = nn.Linear(width, settings.dim, bias=False)
        self.w2 = nn.Linear(width, settings.dim, bias=False)
        self.w3 = nn.Linear(settings.dim, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """(B, C, D) → (B, C, D)."""
        mapped: Tensor = self.w3(F.silu(self.w1(x)) * self.w2(x))
        return mapped


class Dropout(nn.Module):
    """Dropout (Srivastava et al. 2014) whose probability is rounded to 1/65536 on the CPU.

    There torch draws one random number per activation, a tenth of a small model's update; four 16-bit
    numbers from one 64-bit draw do as well.
    """

    def __init__(self, probability: float) -> None:
        super().__init__()
        self.probability = probability

    def forward(self, x: Tensor) -> Tensor:
        """Any shape → the same, activations dropped in training and the rest scaled up."""
        if not self.training or self.probability == 0.0:
            return x
        if x.device.type != "cpu" or torch.compiler.is_compiling():
            return F.dropout(x, self.probability)
        n_dropped = round(self.probability * 65536)  # of 65536 equally likely values
        draws = torch.empty(-(-x.numel() // 4), dtype=torch.int64).random_(-(2**63), None)
        keep = (draws.view(torch.int16)[: x.numel()] >= n_dropped - 32768).view(x.shape)
        return x * keep * (65536 / (65536 - n_dropped))


class Block(nn.Module):
    """Attention and feed-forward, each with a residual connection, normalized before or after."""

    def __init__(self, settings: Architecture) -> None:
        super().__init__()
        width = settings.dim_model
        self.norm_first = settings.normalization.norm_first
        self.attention_norm = normalization(settings.normalization, width)
        self.attention = SelfAttention(settings.attention, width)
        self.feed_forward_norm = normalization(settings.normalization, width)
        kind = SwiGLU if settings.feed_forward.activation == "swiglu" else Perceptron
        self.feed_forward = kind(settings.feed_forward, width)
        self.dropout = Dropout(settings.dropout)

    def forward(self, x: Tensor, mask: Tensor, rope: tuple[Tensor, Tensor] | None) -> Tensor:
        """(B, C, D) → (B, C, D)."""
        if self.norm_first:
            x = x + self.dropout(self.attention(self.attention_norm(x), mask, rope))
            normed_first: Tensor = x + self.dropout(self.feed_forward(self.feed_forward_norm(x)))
            return normed_first
        x = self.attention_norm(x + self.dropout(self.attention(x, mask, rope)))
        normed_after: Tensor = self.feed_forward_norm(x + self.dropout(self.feed_forward(x)))
        return normed_after
