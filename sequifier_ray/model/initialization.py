"""Initial weights: a function of the seed and the parameter's name alone.

No parameter's values depend on another's, on the order of construction, or on the number of processes.
Matrices are normal with the variance of Glorot & Bengio 2010; maps back into the residual stream are
scaled down by sqrt(2 · layers), as in GPT-2 (Radford et al. 2019); embeddings are normal with standard
deviation 0.1, norms 1, biases 0.
"""

from __future__ import annotations

import hashlib
import math

import torch
from torch import Tensor, nn

from sequifier_ray.model.network import SequenceModel

EMBEDDING_STD = 0.1
_INTO_RESIDUAL = (".attention.output.weight", ".feed_forward.down.weight", ".feed_forward.w3.weight")


def initial_tensor(model: SequenceModel, name: str, seed: int) -> Tensor:
    """The full float32 value of parameter ``name``, on the CPU; ``model`` may lie on the meta device."""
    shape = model.get_parameter(name).shape
    owner, _, kind = name.rpartition(".")
    module = model.get_submodule(owner)
    with torch.device("cpu"):
        if kind == "bias":
            return torch.zeros(shape)
        if isinstance(module, nn.Embedding):
            return EMBEDDING_STD * torch.randn(shape, generator=_generator(seed, name))
        if isinstance(module, nn.Linear):
            fan_in = shape[1]
            # The joint map to queries, keys and values counts as the square ones it stands for.
            fan_out = fan_in if name.endswith(".attention.qkv.weight") else shape[0]
            std = math.sqrt(2.0 / (fan_in + fan_out))
            if name.endswith(_INTO_RESIDUAL):
                std /= math.sqrt(2.0 * len(model.backbone.block_of_layer))
            return std * torch.randn(shape, generator=_generator(seed, name))
        assert isinstance(module, (nn.LayerNorm, nn.RMSNorm)), name
        return torch.ones(shape)


def initialize(model: SequenceModel, seed: int) -> None:
    """Give every parameter of a model that lies in host memory its initial value."""
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.copy_(initial_tensor(model, name, seed))


def _generator(seed: int, name: str) -> torch.Generator:
    digest = hashlib.sha256(f"{seed}:{name}".encode()).digest()
    return torch.Generator("cpu").manual_seed(int.from_bytes(digest[:8], "big") >> 1)
