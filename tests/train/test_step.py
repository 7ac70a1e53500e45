"""One update: padding, accumulation and empty batches change nothing but rounding."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
import torch

from sequifier_ray.data.batch import SequenceBatch
from sequifier_ray.data.loader import ShardLoader
from sequifier_ray.data.order import EpochOrder, Plan
from sequifier_ray.model.initialization import initialize
from sequifier_ray.model.network import build_model
from sequifier_ray.model.objectives import CausalObjective
from sequifier_ray.train.evaluate import evaluate
from sequifier_ray.train.parallel import Strategy
from sequifier_ray.train.preflight import survey
from sequifier_ray.train.step import UpdateResult, announce, update

FLAGS = torch.zeros(2)


class Bench:
    """Takes single updates from the same initial weights."""

    def __init__(self, config: Any) -> None:
        self.config = config
        self.ground = survey(config)
        self.objective = CausalObjective(config.model, config.dataset, self.ground.description)
        self.strategy = Strategy(torch.device("cpu"))

    def model(self) -> torch.nn.Module:
        model = build_model(self.config.model, self.ground.description, 32)
        initialize(model, 1)
        return model

    def batches(self, n_samples: int, size: int) -> list[SequenceBatch]:
        """The first samples of validation order in micro-batches, filled up where they do not divide."""
        dataset = self.ground.train
        order = EpochOrder(1, 0, dataset.shard_sample_counts, 8, "identity")
        plan = Plan((((0, n_samples),),), -(-n_samples // size) * size)
        with ShardLoader(dataset, order, plan, 0, 1, size) as loader:
            return next(iter(loader)).micro_batches

    def update(
        self, batches: list[SequenceBatch], **options: Any
    ) -> tuple[UpdateResult, dict[str, torch.Tensor]]:
        model = self.model()
        optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
        before = {name: value.clone() for name, value in model.state_dict().items()}
        announced = announce(self.objective, self.strategy, batches, FLAGS)
        result = update(
            model, self.objective, optimizer, self.strategy, batches, announced, options.get("max_norm")
        )
        return result, {name: before[name] - value for name, value in model.state_dict().items()}


@pytest.fixture(scope="module")
def bench(flights: Any) -> Bench:
    return Bench(flights.train_config(model_name="step"))


def assert_equal(found: dict[str, torch.Tensor], wanted: dict[str, torch.Tensor]) -> None:
    for name, value in wanted.items():
        torch.testing.assert_close(found[name], value, rtol=1e-4, atol=1e-6)


def test_micro_batches_and_filled_up_batches_give_the_same_gradient(bench: Bench) -> None:
    whole, gradient = bench.update(bench.batches(50, 50))
    for size in (1, 7, 25, 64):
        batches = bench.batches(50, size)
        filled = sum(int((~batch.sample_is_real).sum()) for batch in batches)
        assert (filled > 0) == (50 % size > 0)
        result, found = bench.update(batches)
        assert_equal(found, gradient)
        torch.testing.assert_close(result.local_loss, whole.local_loss, rtol=1e-5, atol=1e-6)
        assert result.n_target_tokens == whole.n_target_tokens


def test_the_data_have_padded_samples(bench: Bench) -> None:
    """Else the equality tests would say little."""
    batch = bench.batches(bench.ground.train.n_samples, bench.ground.train.n_samples)[0]
    padded = ~batch.is_real.all(dim=1)
    assert 0.02 < float(padded.float().mean()) < 0.9
    assert not batch.target_is_real.all()


def test_uneven_masks_are_weighed_by_tokens_not_by_micro_batches(bench: Bench) -> None:
    batch = bench.batches(40, 40)[0]
    mask = batch.target_is_real.clone()
    mask[20:] &= torch.from_numpy(np.arange(32) >= 30)
    batch = dataclasses.replace(batch, target_is_real=mask)
    _, gradient = bench.update([batch])
    halves = [_slice(batch, slice(0, 20)), _slice(batch, slice(20, 40))]
    _, found = bench.update(halves)
    assert_equal(found, gradient)


def _slice(batch: SequenceBatch, part: slice) -> SequenceBatch:
    return SequenceBatch(
        {name: value[part] for name, value in batch.inputs.items()},
        batch.is_real[part],
        {name: value[part] for name, value in batch.targets.items()},
        batch.target_is_real[part],
        batch.sample_is_real[part],
        batch.positions[part],
    )


def test_micro_batch_without_targets_adds_an_exact_zero(bench: Bench) -> None:
    batch = bench.batches(20, 20)[0]
    empty = dataclasses.replace(batch, target_is_real=torch.zeros_like(batch.target_is_real))
    _, gradient = bench.update([batch])
    _, found = bench.update([empty, batch])
    assert_equal(found, gradient)


def test_update_without_any_target_changes_nothing(bench: Bench) -> None:
    batch = bench.batches(20, 20)[0]
    empty = dataclasses.replace(batch, target_is_real=torch.zeros_like(batch.target_is_real))
    result, change = bench.update([empty])
    assert result.n_target_tokens == 0
    assert result.local_loss.tolist() == [0.0, 0.0]
    assert all(not value.any() for value in change.values())


def test_clipping_bounds_the_global_norm(bench: Bench) -> None:
    batches = bench.batches(30, 30)
    free, gradient = bench.update(batches)
    norm = float(torch.stack([value.square().sum() for value in gradient.values()]).sum().sqrt())
    assert float(free.grad_norm) == pytest.approx(norm, rel=1e-4)
    clipped, change = bench.update(batches, max_norm=norm / 10)
    assert float(clipped.grad_norm) == pytest.approx(norm, rel=1e-4)
    assert_equal(change, {name: value / 10 for name, value in gradient.items()})


def test_validation_does_not_depend_on_the_batch_size(bench: Bench) -> None:
    results = [
        evaluate(bench.model(), bench.objective, bench.ground.train, bench.strategy, size, lambda: False)
        for size in (7, 64, 10**4)
    ]
    assert bench.ground.train.n_samples % 7
    for result in results[1:]:
        assert result.loss == pytest.approx(results[0].loss, rel=1e-5)
        assert result.accuracy == pytest.approx(results[0].accuracy)
        assert result.naive == pytest.approx(results[0].naive)
