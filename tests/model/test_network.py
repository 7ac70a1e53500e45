"""The model: every variant learns, nothing looks ahead or at padding, weights follow from the seed."""

from __future__ import annotations

import dataclasses
import itertools
from typing import Any

import pytest
import torch

from sequifier_ray.errors import ConfigError
from sequifier_ray.model.embedding import share_width
from sequifier_ray.model.initialization import initial_tensor, initialize
from sequifier_ray.model.layers import Dropout, attention_mask, rope_tables, rotate
from sequifier_ray.model.network import build_model

ATTENTIONS = [
    {"type": "mha", "n_heads": 4},
    {"type": "mqa", "n_heads": 4},
    {"type": "gqa", "n_heads": 4, "n_kv_heads": 2, "output_projection": False},
]
VARIANTS: list[dict[str, Any]] = [
    {
        "attention": attention,
        "feed_forward": {"dim": 32, "activation": activation},
        "normalization": {"type": norm, "norm_first": first},
        "position_encoding": {"type": positions},
        "positional_encoding_scope": scope,
    }
    for attention, activation, (norm, first), positions, scope in zip(
        itertools.cycle(ATTENTIONS),
        ["relu", "gelu", "swiglu"] * 4,
        itertools.cycle([("layer_norm", True), ("rmsnorm", True), ("layer_norm", False), ("rmsnorm", False)]),
        ["learned", "learned", "rope", "sinusoidal", "sinusoidal"] * 2 + ["rope", "learned"],
        itertools.cycle(["global", "per_feature"]),
    )
]


@pytest.mark.parametrize("architecture", VARIANTS, ids=range(len(VARIANTS)))
@pytest.mark.parametrize("decoder", ["linear", "mlp"])
def test_every_variant_learns_with_all_parameters(
    bench: Any, architecture: dict[str, Any], decoder: str
) -> None:
    overrides = {
        "architecture": {**architecture, "dropout": 0.1},
        "interface": {"decoder": {"type": decoder, "prediction_length": 4}},
    }
    model, objective, batch = (
        bench.model(**overrides),
        bench.objective(**overrides),
        bench.batch((0, 3, 0, 7)),
    )
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    losses = []
    for _ in range(30):
        loss = objective.loss_sums(model(batch.inputs, batch.is_real), batch).sum()
        loss.backward()
        for name, parameter in model.named_parameters():
            assert parameter.grad is not None, name
            assert parameter.grad.isfinite().all(), name
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    assert losses[-1] < 0.8 * losses[0]


def test_output_shapes(bench: Any) -> None:
    outputs = bench.model()(*_inputs(bench.batch((0, 2))))
    assert {name: tuple(value.shape) for name, value in outputs.items()} == {
        "kind": (2, 4, 6),
        "value": (2, 4, 1),
    }
    special = {"interface": {"categorical_decoder_special_tokens": {"kind": ["[other]"]}}}
    assert bench.model(**special)(*_inputs(bench.batch((0,))))["kind"].shape == (1, 4, 7)


def _inputs(batch: Any) -> tuple[dict[str, torch.Tensor], torch.Tensor]:
    return batch.inputs, batch.is_real


@pytest.mark.parametrize("positions", ["rope", "learned", "sinusoidal"])
def test_no_position_sees_a_later_one(bench: Any, positions: str) -> None:
    model = bench.model(
        architecture={"position_encoding": {"type": positions}}, interface=_all_positions()
    ).eval()
    batch = bench.batch((0, 0), n_predicted=8)
    before = model(*_inputs(batch))["kind"]
    changed = {name: column.clone() for name, column in batch.inputs.items()}
    changed["kind"][:, 5] = 3 + (changed["kind"][:, 5] - 3 + 1) % 6
    changed["value"][:, 5] += 1.0
    after = model(changed, batch.is_real)["kind"]
    torch.testing.assert_close(after[:, :5], before[:, :5])
    assert (after[:, 5:] - before[:, 5:]).abs().amax(-1).min() > 1e-6


def _all_positions() -> dict[str, Any]:
    return {"decoder": {"type": "linear", "prediction_length": 8}}


def test_padding_is_never_seen(bench: Any) -> None:
    model = bench.model(interface=_all_positions()).eval()
    batch = bench.batch((3, 6), n_predicted=8)
    before = model(*_inputs(batch))["value"]
    noisy = {name: torch.where(batch.is_real, c, torch.full_like(c, 4)) for name, c in batch.inputs.items()}
    after = model(noisy, batch.is_real)["value"]
    assert before.isfinite().all()
    torch.testing.assert_close(after[batch.is_real], before[batch.is_real])
    seen = {name: column + 0 for name, column in noisy.items()}
    assert not torch.allclose(model(seen, torch.ones_like(batch.is_real))["value"][:, -1], before[:, -1])


def test_rotary_scores_depend_on_distance_alone() -> None:
    cosines, sines = rope_tables(8, 16, 10000.0, torch.device("cpu"))
    query, key = torch.randn(8), torch.randn(8)
    turned_q = rotate(query.expand(1, 1, 16, 8), cosines, sines)[0, 0]
    turned_k = rotate(key.expand(1, 1, 16, 8), cosines, sines)[0, 0]
    scores = turned_q @ turned_k.T
    for distance in (0, 1, 5):
        same = torch.diagonal(scores, distance)
        torch.testing.assert_close(same, same[0].expand_as(same), rtol=1e-4, atol=1e-5)


def test_mask_is_causal_without_padding_and_never_empty() -> None:
    mask = attention_mask(torch.tensor([[False, True, True]]))[0, 0]
    assert mask.tolist() == [[True, False, False], [False, True, False], [False, True, True]]


def test_grouped_heads_equal_repeated_ones(bench: Any) -> None:
    grouped = bench.model(architecture={"attention": {"type": "gqa", "n_heads": 4, "n_kv_heads": 2}}).eval()
    plain = bench.model().eval()
    weights = grouped.state_dict()
    for name, value in weights.items():
        if name.endswith("attention.qkv.weight"):
            query, key, key_value = value.view(8, 4, 16).split([4, 2, 2])
            repeated = [part.repeat_interleave(2, dim=0) for part in (key, key_value)]
            weights[name] = torch.cat([query, *repeated]).reshape(48, 16)
    plain.load_state_dict(weights)
    batch = bench.batch((0, 4))
    torch.testing.assert_close(grouped(*_inputs(batch))["kind"], plain(*_inputs(batch))["kind"])


@pytest.mark.parametrize("shape", [(1000,), (31, 33, 5)])
def test_dropout_drops_its_share_and_keeps_the_mean(shape: tuple[int, ...]) -> None:
    torch.manual_seed(0)
    dropout = Dropout(0.25)
    x = torch.ones(shape, requires_grad=True)
    draws = torch.stack([dropout(x) for _ in range(60)])
    kept = draws > 0
    assert float(kept.float().mean()) == pytest.approx(0.75, abs=0.01)
    torch.testing.assert_close(draws[kept], torch.full_like(draws[kept], 4 / 3))
    assert float(kept.float().mean(0).std()) == pytest.approx((0.75 * 0.25 / 60) ** 0.5, rel=0.2)
    draws[0].sum().backward()
    torch.testing.assert_close(x.grad, draws[0].detach())
    assert dropout.eval()(x) is x


def test_shared_layers_use_one_block(bench: Any) -> None:
    model = bench.model(architecture={"num_layers": 4, "shared_layer_groups": [[0, 2], [1, 3]]})
    assert model.backbone.block_of_layer == (0, 1, 0, 1)
    assert len(model.blocks) == 2


def test_initial_weights_follow_from_seed_and_name_alone(bench: Any) -> None:
    model = bench.model(seed=5)
    with torch.device("meta"):
        empty = build_model(bench.config(), bench.describe(), 8)
    for name, parameter in reversed(list(model.named_parameters())):
        assert torch.equal(initial_tensor(empty, name, 5), parameter)
    other = bench.model(seed=6)
    assert not torch.equal(other.heads.heads[0].weight, model.heads.heads[0].weight)


def test_meta_construction_gives_the_same_outputs(bench: Any) -> None:
    for positions in ("rope", "sinusoidal"):
        architecture = {"position_encoding": {"type": positions}}
        with torch.device("meta"):
            empty = build_model(bench.config(architecture), bench.describe(), 8)
        empty.to_empty(device="cpu")
        initialize(empty, 1)
        empty.reset_buffers(torch.device("cpu"))
        batch = bench.batch((0, 5))
        wanted = bench.model(architecture=architecture).eval()(*_inputs(batch))
        torch.testing.assert_close(empty.eval()(*_inputs(batch)), wanted)


def test_compiles_without_a_graph_break(bench: Any) -> None:
    model, batch = bench.model().eval(), bench.batch((0, 5))
    compiled = torch.compile(model, backend="eager", fullgraph=True)
    torch.testing.assert_close(compiled(*_inputs(batch)), model(*_inputs(batch)))


def test_width_is_shared_by_log_cardinality() -> None:
    widths = share_width({"few": 4, "many": 4096}, 18)
    assert widths == {"few": 4, "many": 14}
    with pytest.raises(ConfigError, match=r"output_dim: 3 is too small for 2 columns .*use 4 or more"):
        share_width({"a": 4, "b": 4}, 3)


def test_real_columns_need_widths(bench: Any) -> None:
    interface = {"ingestion": {"type": "embedding", "output_dim": 16}}
    with pytest.raises(
        ConfigError, match=r"feature_embedding_dims: value are real columns, .*for example \{kind: "
    ):
        bench.model(interface=interface)


def test_unknown_column(bench: Any) -> None:
    description = dataclasses.replace(
        bench.describe(), column_data_types={"kindd": "Int64", "type": "String"}
    )
    with pytest.raises(
        ConfigError, match=r'target_columns: the data set has no column "kind" \(did you mean "kindd"'
    ):
        build_model(bench.config(), description, 8)
