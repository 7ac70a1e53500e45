"""The loss against a naive loop, and what must never happen: NaN from nothing, loss from padding."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import pytest
import torch

from sequifier_ray.errors import ConfigError


def test_sums_equal_a_naive_loop(bench: Any) -> None:
    model, objective, batch = bench.model(), bench.objective(), bench.batch((0, 5, 7, 8))
    batch.targets["kind"][0, 1] = 1  # [other]: a class that the head cannot predict
    outputs = model(batch.inputs, batch.is_real)
    loss, count, hits = [0.0, 0.0], [0, 0], 0
    for b in range(4):
        for p in range(4):
            if not batch.target_is_real[b, p]:
                continue
            loss[1] += float((outputs["value"][b, p, 0] - batch.targets["value"][b, p]) ** 2)
            count[1] += 1
            wanted = int(batch.targets["kind"][b, p])
            if wanted >= 3:
                logits = outputs["kind"][b, p].tolist()
                loss[0] += math.log(sum(map(math.exp, logits))) - logits[wanted - 3]
                count[0] += 1
                hits += max(range(6), key=logits.__getitem__) == wanted - 3
    assert objective.count_targets(batch).tolist() == count
    assert objective.loss_sums(outputs, batch).tolist() == pytest.approx(loss, rel=1e-5)
    assert objective.accuracy_sums(outputs, batch).tolist() == [hits, 0]


def test_listed_special_token_is_a_target(bench: Any) -> None:
    interface = {"categorical_decoder_special_tokens": {"kind": ["[other]"]}}
    batch = bench.batch((0,))
    batch.targets["kind"][0, 0] = 1
    assert bench.objective(interface=interface).count_targets(batch)[0] == 4
    assert bench.objective().count_targets(batch)[0] == 3


def test_nothing_valid_is_an_exact_zero_with_zero_gradients(bench: Any) -> None:
    model, objective, batch = bench.model(), bench.objective(), bench.batch((0, 4))
    nothing = dataclasses.replace(batch, target_is_real=torch.zeros_like(batch.target_is_real))
    sums = objective.loss_sums(model(batch.inputs, batch.is_real), nothing)
    sums.sum().backward()
    assert sums.tolist() == [0.0, 0.0]
    assert all(float(p.grad.abs().max()) == 0.0 for p in model.parameters() if p.grad is not None)


def test_naive_guess_is_the_value_before(bench: Any) -> None:
    batch = bench.batch((0, 7))
    sums, counts = bench.objective().naive_sums(batch)
    before, after = batch.inputs["kind"][0, -4:], batch.targets["kind"][0]
    # The second sample has its first event as last input, so that one target has a value before it.
    same_last = int(batch.inputs["kind"][1, -1] == batch.targets["kind"][1, -1])
    assert counts.tolist() == [5, 5]
    assert float(sums[0]) == int((before == after).sum()) + same_last
    errors = (batch.inputs["value"][:, -4:] - batch.targets["value"]) ** 2
    assert float(sums[1]) == pytest.approx(float(errors[0].sum() + errors[1, -1]))


def test_naive_guess_of_a_target_that_is_no_input(bench: Any) -> None:
    interface = {
        "input_columns": ["type", "value"],
        "ingestion": {
            "type": "embedding",
            "output_dim": 16,
            "feature_embedding_dims": {"type": 8, "value": 8},
        },
    }
    batch = bench.batch((0,))
    sums, counts = bench.objective(interface=interface).naive_sums(batch)
    targets = batch.targets["kind"][0]
    assert counts.tolist() == [3, 4]
    assert float(sums[0]) == int((targets[1:] == targets[:-1]).sum())


def test_weights_default_to_one(bench: Any) -> None:
    assert bench.objective(weights={"value": 0.5}).weights.tolist() == [1.0, 0.5]


@pytest.mark.parametrize(
    ("criterion", "text"),
    [
        ({"kind": "CrossEntropy", "value": "MSELoss"}, r'criterion\.kind: .*did you mean "CrossEntropyLoss"'),
        (
            {"kind": "MSELoss", "value": "MSELoss"},
            r'criterion\.kind: "MSELoss" does not suit a categorical target',
        ),
        (
            {"kind": "CrossEntropyLoss", "value": "CrossEntropyLoss"},
            r'criterion\.value: "CrossEntropyLoss" does not suit a real target.*MSELoss',
        ),
        (
            {"kind": "CrossEntropyLoss", "value": "GaussianNLLLoss"},
            r'criterion\.value: "GaussianNLLLoss" does not suit',
        ),
    ],
)
def test_criterion_errors(bench: Any, criterion: dict[str, str], text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        bench.objective(criterion)


@pytest.mark.parametrize("kind", ["CrossEntropyLoss", "NLLLoss", "MultiMarginLoss"])
@pytest.mark.parametrize("value", ["MSELoss", "L1Loss", "HuberLoss", "SmoothL1Loss"])
def test_every_criterion_is_finite(bench: Any, kind: str, value: str) -> None:
    batch = bench.batch((0, 6))
    sums = bench.objective({"kind": kind, "value": value}).loss_sums(
        bench.model()(batch.inputs, batch.is_real), batch
    )
    assert sums.isfinite().all()
    assert (sums > 0).all()
