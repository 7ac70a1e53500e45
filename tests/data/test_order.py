"""Order and plan: pure functions with the promises of exactly-once and world-size independence."""

from __future__ import annotations

import json
import math

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from sequifier_ray.data.order import EpochOrder, Plan

COUNTS = st.lists(st.integers(0, 40), min_size=1, max_size=12).map(tuple)
common = settings(max_examples=120, deadline=None)


@common
@given(
    counts=COUNTS,
    block=st.integers(1, 5),
    mode=st.sampled_from(["shuffled", "name", "identity"]),
    seed=st.integers(0, 9),
)
def test_order_is_a_permutation_of_all_samples(
    counts: tuple[int, ...], block: int, mode: str, seed: int
) -> None:
    order = EpochOrder(seed, 3, counts, block, mode)
    n = sum(counts)
    assert order.n_samples == n
    shards, samples = order.locate(np.arange(n))
    found = sorted(zip(shards.tolist(), samples.tolist(), strict=True))
    assert found == [(shard, k) for shard, count in enumerate(counts) for k in range(count)]
    # Any subset, in any order, gives the same answer as the whole.
    some = np.random.default_rng(seed).permutation(n)[: n // 2]
    again = EpochOrder(seed, 3, counts, block, mode, cache_blocks=1).locate(some)
    assert np.array_equal(again[0], shards[some])
    assert np.array_equal(again[1], samples[some])


def test_order_depends_on_seed_and_epoch() -> None:
    counts = (30,) * 6
    places = np.arange(180)
    orders = [
        EpochOrder(seed, epoch, counts, 2, "shuffled").locate(places)
        for seed, epoch in ((1, 0), (1, 1), (2, 0))
    ]
    texts = {json.dumps([o[0].tolist(), o[1].tolist()]) for o in orders}
    assert len(texts) == 3


def test_modes() -> None:
    counts = (10, 20, 30, 40)
    shards, samples = EpochOrder(1, 0, counts, 2, "identity").locate(np.arange(100))
    assert samples.tolist() == [k for count in counts for k in range(count)]
    shards, _ = EpochOrder(1, 0, counts, 2, "name").locate(np.arange(100))
    assert set(shards[:30].tolist()) == {0, 1}
    assert set(shards[30:].tolist()) == {2, 3}
    assert shards[:30].tolist() != sorted(shards[:30].tolist())


def test_only_some_blocks_are_kept() -> None:
    order = EpochOrder(1, 0, (100,) * 50, 2, "shuffled", cache_blocks=3)
    for start in range(0, 5000, 50):
        order.locate(np.arange(start, start + 50))
    assert len(order._permutations) <= 3
    assert all(len(numbers) == 200 for numbers in order._permutations.values())


@st.composite
def plans(draw: st.DrawFn) -> tuple[Plan, int, int]:
    """A plan, the number of samples, and a world size that divides its streams."""
    world_size = draw(st.integers(1, 4))
    streams = world_size * draw(st.integers(1, 3))
    n_samples = draw(st.integers(0, 300))
    per_update = draw(st.integers(streams, 40))
    return Plan.start(n_samples, streams, per_update), n_samples, world_size


def positions_of(plan: Plan, world_size: int) -> list[int]:
    """What all ranks take until the plan is used up."""
    taken = []
    while plan.n_remaining:
        for rank in range(world_size):
            taken += plan.rank_positions(rank, world_size).tolist()
        plan = plan.advanced()
    return taken


@common
@given(plans(), st.integers(1, 40))
def test_every_sample_exactly_once_and_equal_steps(drawn: tuple[Plan, int, int], batch_size: int) -> None:
    plan, n_samples, world_size = drawn
    assert sorted(positions_of(plan, world_size)) == list(range(n_samples))
    updates, sizes = 0, set()
    while plan.n_remaining:
        counts = [len(plan.rank_positions(rank, world_size)) for rank in range(world_size)]
        number, size = plan.micro_batches(world_size, batch_size)
        sizes.add(size)
        assert number >= 1
        assert size <= batch_size
        assert (number - 1) * size < max(counts) <= number * size
        assert sum(counts) == plan.n_remaining - plan.advanced().n_remaining <= plan.samples_per_update
        assert plan.updates_left == plan.advanced().updates_left + 1
        plan, updates = plan.advanced(), updates + 1
    assert plan.updates_left == 0
    assert len(sizes) <= 1
    assert Plan.start(n_samples, len(plan.streams), plan.samples_per_update).updates_left == updates


@common
@given(plans(), st.integers(0, 12), st.integers(1, 5), st.integers(0, 6), st.integers(1, 5))
def test_stopped_and_resized_twice(
    drawn: tuple[Plan, int, int], first: int, second_size: int, second: int, third_size: int
) -> None:
    plan, n_samples, world_size = drawn
    taken: list[int] = []
    for updates, wanted_size in ((first, world_size), (second, second_size), (10**6, third_size)):
        size = min(wanted_size, plan.samples_per_update)
        plan = Plan.from_json(json.loads(json.dumps(plan.to_json()))).for_world_size(size)
        for _ in range(updates):
            if not plan.n_remaining:
                break
            for rank in range(size):
                taken += plan.rank_positions(rank, size).tolist()
            plan = plan.advanced()
    assert sorted(taken) == list(range(n_samples))


@common
@given(st.integers(1, 300), st.integers(12, 40))
def test_an_update_takes_the_same_samples_for_every_world_size_that_divides(
    n_samples: int, per_update: int
) -> None:
    plan = Plan.start(n_samples, 12, per_update)
    while plan.n_remaining:
        takes = [
            sorted(p for rank in range(size) for p in plan.rank_positions(rank, size).tolist())
            for size in (1, 2, 3, 4, 6, 12)
        ]
        assert all(take == takes[0] for take in takes)
        plan = plan.advanced()


@common
@given(plans())
def test_streams_are_even_and_shares_add_up(drawn: tuple[Plan, int, int]) -> None:
    plan, n_samples, _ = drawn
    sizes = [sum(b - a for a, b in stream) for stream in plan.streams]
    assert max(sizes) - min(sizes) <= 1
    assert sum(plan.share(i) for i in range(len(plan.streams))) == plan.samples_per_update
    assert plan.updates_left >= math.ceil(n_samples / plan.samples_per_update)


@common
@given(st.integers(1, 5), st.integers(1, 8), st.integers(1, 4), st.integers(1, 400))
def test_repeated_samples_stay_below_one_global_batch(
    world_size: int, batch_size: int, accumulation: int, n_samples: int
) -> None:
    per_update = world_size * batch_size * accumulation
    plan = Plan.start(n_samples, world_size, per_update)
    slots = 0
    while plan.n_remaining:
        number, size = plan.micro_batches(world_size, batch_size)
        slots += number * size * world_size
        plan = plan.advanced()
    assert slots - n_samples < per_update + world_size


def test_more_streams_than_samples_in_an_update_are_cut_anew() -> None:
    plan = Plan(Plan.start(100, 12, 12).streams, 4).for_world_size(2)
    assert len(plan.streams) == 2
    assert sorted(positions_of(plan, 2)) == list(range(100))
