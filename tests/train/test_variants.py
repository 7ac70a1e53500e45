"""Strategies, precision and compilation on two real processes: they run, agree, and keep float32 state."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from sequifier_ray.launch.choose import train
from sequifier_ray.train.checkpoint import load_weights

FSDP = {"global_training__data_parallelism": "fsdp", "global_training__fsdp_cpu_offload": False}
VARIANTS = {
    "ddp-bf16": {"global_training__layer_autocast": True},
    "fsdp-bf16": {**FSDP, "global_training__layer_autocast": True},
    "fsdp-offload": {**FSDP, "global_training__fsdp_cpu_offload": True},
    "fsdp-inner-shared": {
        **FSDP,
        "global_training__torch_compile": "inner",
        "model__backbone__architecture__shared_layer_groups": [[0, 1]],
    },
    "ddp-outer": {"global_training__torch_compile": "outer"},
}


@pytest.mark.parametrize("name", VARIANTS)
def test_variant(flights: Any, name: str, capsys: Any) -> None:
    fields = dict(VARIANTS[name])
    config = flights.train_config(model_name=name, global_training__gradient_clip=1.0, **fields)
    assert train(config, "spawn", None) == 0
    is_compiled = "global_training__torch_compile" in fields
    assert ("torch_compile: the model is compiled" in capsys.readouterr().out) is is_compiled
    for field in ("global_training__layer_autocast", "global_training__torch_compile"):
        fields.pop(field, None)
    fields = {k: v for k, v in fields.items() if "fsdp" not in k and "parallelism" not in k}
    plain = flights.train_config(
        model_name=f"{name}-plain",
        global_training__gradient_clip=1.0,
        global_training__distributed=False,
        global_training__data_parallelism=...,
        global_training__world_size=1,
        global_training__batch_size=128,
        **fields,
    )
    assert train(plain, "local", None) == 0
    assert " on 1 process (local, none) in " in capsys.readouterr().out
    tolerance = 0.03 if "bf16" in name else 1e-4
    assert flights.losses(name) == pytest.approx(flights.losses(f"{name}-plain"), rel=tolerance)
    norms = [[line["grad_norm"] for line in flights.metrics(n, "train")] for n in (name, f"{name}-plain")]
    n_compared = 3 if "bf16" in name else None  # rounding to bf16 moves the norm of later, clipped steps
    assert norms[0][:n_compared] == pytest.approx(norms[1][:n_compared], rel=max(tolerance, 1e-3))
    weights = load_weights(flights.summary(name)["checkpoints"][-1])
    assert {value.dtype for value in weights.values()} == {torch.float32}
    exported = load_file(flights.root / "models" / f"{name}-last" / "model.safetensors")
    assert exported.keys() == weights.keys()
    assert all(torch.equal(exported[key], weights[key]) for key in weights)
