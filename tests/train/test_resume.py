"""Interrupted runs: the legs together equal the unbroken run, whatever world size goes on."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

sys.path.append(str(Path(__file__).parent))
from engine_ranks import stop_after

from sequifier_ray.errors import ConfigError
from sequifier_ray.launch.choose import train
from sequifier_ray.train import engine
from sequifier_ray.train.worker import Event, WorkerContext

ONE = {
    "global_training__world_size": 1,
    "global_training__batch_size": 128,
    "global_training__distributed": False,
    "global_training__data_parallelism": ...,
    "training_plan__epochs": 2,
}


def run(config: Any, **context: Any) -> tuple[dict[str, Any], list[Event]]:
    events: list[Event] = []
    return engine.run(config, WorkerContext(report=events.append, **context)), events


def texts(events: list[Event], kind: str) -> list[str]:
    return [event["text"] for event in events if event["kind"] == kind]


@pytest.fixture(scope="module")
def unbroken(flights: Any) -> list[float]:
    summary, _ = run(flights.train_config(model_name="unbroken", **ONE))
    assert summary["status"] == "done"
    return flights.losses("unbroken")


def test_two_stops_in_one_epoch_and_one_in_the_next(flights: Any, unbroken: list[float]) -> None:
    config = flights.train_config(model_name="stopped", global_training__resume__policy="if_exists", **ONE)
    per_epoch = len(unbroken) // 2
    # The third leg goes through the validation after the first epoch, which takes two batches.
    for leg, done in ((3, 3), (2, 5), (per_epoch + 3, per_epoch + 5)):
        summary, events = run(config, stop_requested=stop_after(leg))
        assert (summary["status"], summary["updates"]) == ("stopped", done)
    summary, events = run(config)
    assert any(f"resuming from step {per_epoch + 5}" in line for line in texts(events, "line"))
    assert summary["status"] == "done"
    assert flights.losses("stopped") == pytest.approx(unbroken, rel=1e-6)
    assert summary["real_samples_per_epoch"] == flights.summary("unbroken")["real_samples_per_epoch"]
    assert summary["samples"] == flights.summary("unbroken")["samples"]


@pytest.mark.parametrize("kind", ["ddp", "fsdp"])
def test_other_world_size_and_strategy(flights: Any, unbroken: list[float], kind: str) -> None:
    """One process stops in mid-epoch, two go on (as DDP or FSDP), one ends."""
    name = f"resized-{kind}"
    resume = {"global_training__resume__policy": "if_exists", "model_name": name}
    one = flights.train_config(**resume, **ONE)
    run(one, stop_requested=stop_after(4))
    extra = {"global_training__fsdp_cpu_offload": True} if kind == "fsdp" else {}
    two = flights.train_config(
        **resume, global_training__data_parallelism=kind, training_plan__epochs=1, **extra
    )
    assert train(two, "spawn", None) == 0
    run(flights.train_config(**resume, **ONE))
    assert flights.losses(name) == pytest.approx(unbroken, rel=1e-4)


def test_stopped_during_validation_it_is_done_again(flights: Any) -> None:
    """The epoch before counts as done, its validation as due."""
    fields = {
        **ONE,
        "global_training__resume__policy": "if_exists",
        "global_training__inference_batch_size": 32,
    }
    run(flights.train_config(model_name="validated", **fields))
    per_epoch = len(flights.losses("validated")) // 2
    expected = [line["loss"] for line in flights.metrics("validated", "validation")]
    config = flights.train_config(model_name="validated-2", **fields)
    summary, _ = run(config, stop_requested=stop_after(per_epoch + 4))
    assert (summary["status"], summary["updates"], summary["epochs"]) == ("stopped", per_epoch, 1)
    state = json.loads((Path(summary["checkpoints"][-1]) / "state.json").read_text())
    assert state["validation_due"] is True
    assert not flights.metrics("validated-2", "validation")
    summary, _ = run(config)
    assert [line["loss"] for line in flights.metrics("validated-2", "validation")] == pytest.approx(
        expected, rel=1e-6
    )
    assert flights.losses("validated-2") == pytest.approx(flights.losses("validated"), rel=1e-6)
    rates = [
        [line["learning_rate"] for line in flights.metrics(name, "train")]
        for name in ("validated", "validated-2")
    ]
    assert rates[1] == rates[0]
    assert summary["real_samples_per_epoch"] == flights.summary("validated")["real_samples_per_epoch"]


def test_damaged_newest_step_is_passed_over(flights: Any) -> None:
    resume = {"global_training__resume__policy": "if_exists", "global_training__save_interval_batches": 2}
    config = flights.train_config(model_name="damaged", **resume, **ONE)
    run(config, stop_requested=stop_after(5))
    folder = flights.root / "checkpoints" / "damaged"
    newest = sorted(folder.glob("step-*"))[-1]
    shard = next(newest.glob("*.distcp"))
    shard.write_bytes(shard.read_bytes()[:-100])
    (folder / "step-00000009.partial").mkdir()
    (folder / "run.json.0123abcd.partial").write_text("{}")  # as a killed rewrite in a store leaves it
    _, events = run(config, stop_requested=stop_after(1))
    assert any("step-00000005 is passed over: " in text for text in texts(events, "warning"))
    assert any("resuming from step 4" in text for text in texts(events, "line"))
    assert not list(folder.glob("*.partial"))


def test_keeps_latest_and_best(flights: Any) -> None:
    config = flights.train_config(model_name="kept", **{**ONE, "training_plan__epochs": 4})
    summary, _ = run(config)
    states = [json.loads((Path(path) / "state.json").read_text()) for path in summary["checkpoints"]]
    best = states[-1]["best_update"]
    updates = [state["update"] for state in states]
    assert len(updates) == (2 if best in updates[-2:] else 3)
    assert best in updates
    assert set(summary["models"]) == {"last", "best"}


def test_earlier_run_stays_until_the_new_one_has_ended(flights: Any) -> None:
    config = flights.train_config(model_name="again", **ONE)
    first, _ = run(config)
    interrupted, _ = run(config, stop_requested=stop_after(2))
    assert set(first["checkpoints"]) < set(interrupted["checkpoints"])
    assert (flights.root / "models" / "again-last" / "model.safetensors").exists()
    ended, events = run(config)
    assert any("starting at step 0" in text for text in texts(events, "line"))
    own = {json.loads((Path(path) / "state.json").read_text())["run_id"] for path in ended["checkpoints"]}
    assert len(own) == 1


def test_schedule_goes_on_where_it_stood(flights: Any) -> None:
    """Milestones survive the way through JSON."""
    scheduler = {"name": "MultiStepLR", "milestones": [3, 6], "gamma": 0.5}
    fields = {**ONE, "global_training__scheduler": scheduler, "global_training__scheduler_step_on": "batch"}
    run(flights.train_config(model_name="milestones", **fields))
    resume = {**fields, "global_training__resume__policy": "if_exists"}
    run(flights.train_config(model_name="milestones-2", **resume), stop_requested=stop_after(4))
    run(flights.train_config(model_name="milestones-2", **resume))
    rates = [
        [line["learning_rate"] for line in flights.metrics(n, "train")]
        for n in ("milestones", "milestones-2")
    ]
    assert rates[0][0] == 4 * rates[0][-1]
    assert rates[1] == rates[0]


def test_named_checkpoint(flights: Any) -> None:
    config = flights.train_config(model_name="named", global_training__save_interval_batches=2, **ONE)
    run(config, stop_requested=stop_after(3))
    named = {"policy": "required", "checkpoint_path": "checkpoints/named/step-00000002"}
    summary, events = run(
        flights.train_config(model_name="named", global_training__resume=named, **ONE),
        stop_requested=stop_after(1),
    )
    assert any("resuming from step 2" in text for text in texts(events, "line"))
    assert summary["updates"] == 3
    missing = {**named, "checkpoint_path": "checkpoints/named/step-00000099"}
    with pytest.raises(ConfigError, match=r"no complete checkpoint at .*step-00000099"):
        run(flights.train_config(model_name="named", global_training__resume=missing, **ONE))


def test_stopped_run_says_how_to_go_on(flights: Any) -> None:
    _, events = run(flights.train_config(model_name="how", **ONE), stop_requested=stop_after(1))
    assert any(
        "run again with global_training.resume: {policy: if_exists}" in text for text in texts(events, "line")
    )


def test_required_without_a_checkpoint(flights: Any) -> None:
    config = flights.train_config(model_name="none-yet", global_training__resume__policy="required", **ONE)
    with pytest.raises(
        ConfigError, match=r"global_training\.resume: there is no complete checkpoint at .*none-yet"
    ):
        run(config)


def test_another_model_is_refused(flights: Any) -> None:
    resume = {"global_training__resume__policy": "if_exists", "model_name": "other-model"}
    run(flights.train_config(**resume, **ONE), stop_requested=stop_after(1))
    wider = flights.train_config(
        **resume, **ONE, model__backbone__architecture__feed_forward={"dim": 128, "activation": "gelu"}
    )
    with pytest.raises(ConfigError, match=r"belongs to another model: \d+ parameters differ, first "):
        run(wider)


def test_another_order_is_refused_in_mid_epoch(flights: Any) -> None:
    resume = {"global_training__resume__policy": "if_exists", "model_name": "other-order"}
    run(flights.train_config(**resume, **ONE), stop_requested=stop_after(1))
    with pytest.raises(ConfigError, match=r"order depends on seed, which was 1010 and now is 7"):
        run(flights.train_config(**resume, **ONE, seed=7))


def steps(project: Any, name: str) -> list[int]:
    found = (project.root / "checkpoints" / name).glob("step-*/state.json")
    return sorted(json.loads(path.read_text())["update"] for path in found)


def test_from_an_older_step_a_run_of_its_own_begins(flights: Any) -> None:
    """What comes after the step in the folder is none of its history, and none of its to delete."""
    every = {"global_training__save_interval_batches": 2, "global_training__keep_checkpoints": 20, **ONE}
    run(flights.train_config(model_name="forked", **every), stop_requested=stop_after(9))
    resume = {"policy": "required", "checkpoint_path": "checkpoints/forked/step-00000004"}
    fewer = {**every, "global_training__keep_checkpoints": 2}
    config = flights.train_config(model_name="forked", global_training__resume=resume, **fewer)
    run(config, stop_requested=stop_after(3))
    assert steps(flights, "forked") == [2, 4, 6, 6, 7, 8, 9]
    # Without the name it goes on where the newer run stands, not at the abandoned step 9.
    resume = {"policy": "if_exists"}
    config = flights.train_config(model_name="forked", global_training__resume=resume, **fewer)
    _, events = run(config, stop_requested=stop_after(1))
    assert any("resuming from step 7" in text for text in texts(events, "line"))


def test_a_restart_takes_no_other_runs_checkpoints(flights: Any) -> None:
    """Its first start may have died before it left a trace."""
    config = flights.train_config(model_name="restarted", **ONE)
    run(config, launch_id="first", stop_requested=stop_after(3))
    _, events = run(config, launch_id="second", restarts=1, stop_requested=stop_after(2))
    assert any("starting at step 0" in text for text in texts(events, "line"))
    _, events = run(config, launch_id="second", restarts=2, stop_requested=stop_after(1))
    assert any("resuming from step 2" in text for text in texts(events, "line"))


def test_an_earlier_runs_step_of_the_same_number_stays(flights: Any) -> None:
    config = flights.train_config(model_name="numbers", **ONE)
    run(config, stop_requested=stop_after(3))
    second, _ = run(config, stop_requested=stop_after(3))
    assert steps(flights, "numbers") == [3, 3]
    assert len(second["checkpoints"]) == 2


def test_stopped_before_the_first_update_the_optimizer_is_new(flights: Any, unbroken: list[float]) -> None:
    fields = {
        **ONE,
        "global_training__calculate_validation_loss_on_initialization": True,
        "global_training__resume__policy": "if_exists",
    }
    config = flights.train_config(model_name="step-0", **fields)
    summary, _ = run(config, stop_requested=stop_after(1))
    assert (summary["status"], summary["updates"]) == ("stopped", 0)
    run(config)
    assert flights.losses("step-0") == pytest.approx(unbroken, rel=1e-6)


def test_another_learning_rate_counts_from_the_next_start(flights: Any) -> None:
    fields = {**ONE, "global_training__resume__policy": "if_exists", "model_name": "slower"}
    fields["global_training__scheduler"] = {"name": "StepLR", "step_size": 1, "gamma": 0.5}
    run(flights.train_config(**fields))
    fields |= {"training_plan__epochs": 4, "global_training__learning_rate": 0.0001}
    _, events = run(flights.train_config(**fields))
    rates = [line["learning_rate"] for line in flights.metrics("slower", "train")]
    per_epoch = len(rates) // 4
    assert rates[::per_epoch] == pytest.approx([1e-3, 5e-4, 2.5e-5, 1.25e-5])
    assert any("learning_rate is now 0.0001 instead of 0.001" in text for text in texts(events, "line"))


def test_another_optimizer_is_refused(flights: Any) -> None:
    resume = {"global_training__resume__policy": "if_exists", "model_name": "other-optimizer"}
    run(flights.train_config(**resume, **ONE), stop_requested=stop_after(2))
    config = flights.train_config(**resume, **ONE, global_training__optimizer={"name": "SGD"})
    message = r"was made with another optimizer: of every parameter it keeps exp_avg, exp_avg_sq, step, and"
    with pytest.raises(ConfigError, match=message):
        run(config)


@pytest.mark.parametrize("content", [b"\xff\xfe", b"null", b"{}", b'{"format": "sequifier_ray.checkpoint"}'])
def test_a_damaged_state_is_passed_over(flights: Any, content: bytes) -> None:
    name = f"damaged-state-{content.hex()[:8]}"
    resume = {"global_training__resume__policy": "if_exists", "model_name": name}
    config = flights.train_config(**resume, **ONE)
    run(config, stop_requested=stop_after(2))
    (flights.root / "checkpoints" / name / "step-00000002" / "state.json").write_bytes(content)
    _, events = run(config, stop_requested=stop_after(2))
    assert any("step-00000002 is passed over: state.json" in text for text in texts(events, "warning"))


def test_intervals_of_time_save_once(flights: Any) -> None:
    config = flights.train_config(
        model_name="timed",
        global_training__save_interval_minutes=0.005,
        global_training__keep_checkpoints=100,
        **ONE,
    )
    summary, _ = run(config)
    saved = steps(flights, "timed")
    per_epoch = len(flights.losses("timed")) // 2
    within = [step for step in saved if step % per_epoch]
    # However slow the machine is: never more of them than intervals have passed.
    assert len(within) <= summary["train_seconds"] / 0.3 + 1, saved


def test_the_best_model_of_an_earlier_run_does_not_stay(flights: Any) -> None:
    run(flights.train_config(model_name="best-gone", **ONE))
    assert (flights.root / "models" / "best-gone-best").exists()
    run(flights.train_config(model_name="best-gone", **ONE, evaluation=False))
    assert not (flights.root / "models" / "best-gone-best").exists()


def test_what_a_killed_export_has_left_goes(flights: Any) -> None:
    left = flights.root / "models" / "exported-last.0123abcd.partial"
    left.mkdir(parents=True)
    run(flights.train_config(model_name="exported", **ONE))
    assert [path.name for path in left.parent.glob("exported-last*")] == ["exported-last"]
