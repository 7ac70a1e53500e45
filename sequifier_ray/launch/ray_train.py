"""Ray Train starts the workers: on a cluster, or on a local Ray instance that ends with the run."""

from __future__ import annotations

import math
import os
import threading
import time
import traceback
import uuid
from typing import Any

from sequifier_ray import storage
from sequifier_ray.config.resources import in_steps, worker_needs
from sequifier_ray.config.train import TrainConfig
from sequifier_ray.errors import ClusterError, TrainingError
from sequifier_ray.launch.console import Console
from sequifier_ray.launch.failures import Failure
from sequifier_ray.launch.hub import Hub
from sequifier_ray.launch.ledger import ledger_folder
from sequifier_ray.launch.ray_cluster import connected
from sequifier_ray.launch.signals import StopSignals

# The controller looks after its workers this often; it sets how soon a run is seen to end or to fail.
_POLL_INTERVAL_S = "0.5"
# An elastic start waits this long for workers that a lost node no longer has, before it goes on with fewer:
# Ray learns that a node is gone later than that its workers are. It must cover a worker's imports.
_ELASTIC_START_S = "30"
# What Ray Train waits for workers otherwise, and the failed starts that a busy machine may have at least.
_START_S = 60.0
_FEWEST_FAILED_STARTS = 3
# How often an elastic run looks for nodes that have joined.
_ELASTIC_LOOK_S = 10.0
# After the ranks are done Ray Train itself may take many seconds to wind up; nobody waits for that.
_WIND_UP_S = 3.0


def run(config: TrainConfig, console: Console, address: str | None) -> dict[str, Any]:
    """Train on ``world_size`` Ray Train workers; returns rank 0's summary.

    Raises:
        ClusterError: the cluster cannot be reached or lacks resources.
        SequifierRayError: what a rank raised.
    """
    launched_at_s = time.time()
    os.environ.setdefault("RAY_TRAIN_V2_ENABLED", "1")
    os.environ.setdefault("RAY_TRAIN_HEALTH_CHECK_INTERVAL_S", _POLL_INTERVAL_S)
    os.environ.setdefault("RAY_TRAIN_ENABLE_PRINT_PATCH", "0")
    if config.ray.min_world_size is not None:
        os.environ.setdefault("RAY_TRAIN_WORKER_GROUP_START_TIMEOUT_S", _ELASTIC_START_S)
    # Nothing scrapes an instance that lives as long as one run.
    if (address := address or config.ray.address or os.environ.get("RAY_ADDRESS")) is None:
        os.environ.setdefault("RAY_TRAIN_METRICS_ENABLED", "0")
    n_cpus = max(os.cpu_count() or 1, int(_needed(config).get("CPU", 0)))
    with connected(address, n_cpus, "ray.address", console.line) as can_grow:
        _wait_for_resources(config, console, config.ray.resource_timeout_s if can_grow else 0.0)
        hub = _open_hub()
        parcel = {
            "config": config.model_dump(mode="json"),
            "hub": hub,
            "launched_at_s": launched_at_s,
            "launch_id": uuid.uuid4().hex,
            "ledger": ledger_folder(),
        }
        trainer = _trainer(config, parcel)
        outcome: dict[str, Any] = {}
        thread = threading.Thread(target=_fit, args=(trainer, outcome), daemon=True)
        # After ray.init, which sets a SIGTERM handler of its own.
        with StopSignals() as signals:
            thread.start()
            return signals.mark(_follow(config, hub, thread, outcome, signals, console))


def _needed(config: TrainConfig) -> dict[str, float]:
    """What the smallest world that may run needs in all."""
    n_workers = config.ray.min_world_size or config.global_training.world_size
    return {name: amount * n_workers for name, amount in worker_needs(config).items()}


def _open_hub() -> Any:
    """The channel to rank 0, on this node: it must not go with another one."""
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    here: Any = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
    return ray.remote(num_cpus=0, scheduling_strategy=here)(Hub).remote()


def _wait_for_resources(config: TrainConfig, console: Console, timeout_s: float) -> None:
    """Return once the cluster has what the workers need.

    Raises:
        ClusterError: it has not after ``timeout_s``; names what is needed and there.
    """
    deadline_s = time.monotonic() + timeout_s
    told = False
    while missing := _missing(config):
        if time.monotonic() >= deadline_s:
            raise _lacks(config, missing)
        if not told:
            console.line(f"waiting up to {timeout_s:g} s for resources: {missing}")
            told = True
        time.sleep(1.0)


def _missing(config: TrainConfig) -> str:
    """What the smallest world needs and the cluster has not, in words; empty if it has all."""
    import ray

    there: dict[str, float] = ray.cluster_resources()  # type: ignore[no-untyped-call]
    return ", ".join(
        f"{amount:g} {name} (there: {there.get(name, 0):g})"
        for name, amount in _needed(config).items()
        if in_steps(amount) > in_steps(there.get(name, 0))
    )


def _lacks(config: TrainConfig, missing: str) -> ClusterError:
    smallest = config.ray.min_world_size
    size = f"ray.min_world_size {smallest}" if smallest else f"world_size {config.global_training.world_size}"
    return ClusterError(
        f"the Ray cluster lacks resources: {size} needs {missing}; add nodes, lower "
        f"{'ray.min_world_size' if smallest else 'global_training.world_size'}, or change "
        "ray.resources_per_worker"
    )


def _trainer(config: TrainConfig, parcel: dict[str, Any]) -> Any:
    import ray.train
    from ray.train.torch import TorchConfig, TorchTrainer

    from sequifier_ray.launch.context import group_backend
    from sequifier_ray.launch.ray_worker import train_worker

    # Train V2 puts other classes under these names than the type stubs of V1 say.
    train: Any = ray.train
    per_worker = worker_needs(config)
    n_workers = config.global_training.world_size
    smallest = config.ray.min_world_size
    variables = {name: os.environ[name] for name in storage.ENVIRONMENT if name in os.environ}
    variables |= {"OMP_NUM_THREADS": str(max(1, int(per_worker.get("CPU", 1))))}
    return TorchTrainer(
        train_worker,
        train_loop_config=parcel,
        torch_config=TorchConfig(
            backend=group_backend(config), timeout_s=int(config.global_training.collective_timeout_s)
        ),
        scaling_config=train.ScalingConfig(
            num_workers=n_workers if smallest is None else (smallest, n_workers),
            use_gpu=config.device == "cuda",
            resources_per_worker=per_worker,
            placement_strategy=config.ray.placement_strategy,
            **({} if smallest is None else {"elastic_resize_monitor_interval_s": _ELASTIC_LOOK_S}),
        ),
        run_config=train.RunConfig(
            name="ray",
            storage_path=config.ray.storage_path or config.resolve(f"logs/{config.model_name}"),
            failure_config=train.FailureConfig(
                max_failures=config.ray.max_failures, controller_failure_limit=_failed_starts(config)
            ),
            worker_runtime_env={"env_vars": variables},
            logging_config=train.LoggingConfig(log_level="ERROR"),
        ),
    )


def _failed_starts(config: TrainConfig) -> int:
    """How many starts may wait in vain for the workers of a lost node: as long as ``resource_timeout_s``."""
    one_s = float(os.environ.get("RAY_TRAIN_WORKER_GROUP_START_TIMEOUT_S", _START_S))
    return max(_FEWEST_FAILED_STARTS, math.ceil(config.ray.resource_timeout_s / one_s))


def _fit(trainer: Any, outcome: dict[str, Any]) -> None:
    """Run Ray Train to its end; in a thread of its own, so that signals stay ours."""
    try:
        trainer.fit()
    except (Exception, SystemExit) as error:  # noqa: BLE001 - Ray raises many kinds; the main thread tells it
        outcome["error"] = error
        outcome["trace"] = traceback.format_exc()


def _follow(
    config: TrainConfig,
    hub: Any,
    thread: threading.Thread,
    outcome: dict[str, Any],
    signals: StopSignals,
    console: Console,
) -> dict[str, Any]:
    """Show what rank 0 tells until it has finished or failed, or Ray Train gave up."""
    import ray

    stop_sent, n_known = False, 0
    echo: Failure | None = None
    while True:
        was_alive = thread.is_alive()
        if signals.requested and not stop_sent:
            console.line("stop requested: saving at the next update (a second signal ends at once)")
            hub.request_stop.remote()
            stop_sent = True
        try:
            events = ray.get(hub.take.remote(n_known))
        except ray.exceptions.ActorUnavailableError:
            events = []  # for a while; one that is dead raises another error
        except ray.exceptions.RayError as error:
            raise ClusterError(
                f"Ray is gone ({str(error).strip().splitlines()[0]}); start it and run again with "
                "global_training.resume: {policy: if_exists} to go on from the last checkpoint"
            ) from error
        n_known += len(events)
        # A rank's own failure is told before the echoes of it on other ranks.
        for event in sorted(events, key=lambda event: event["kind"] != "failed"):
            if event["kind"] == "finished":
                thread.join(_WIND_UP_S)
                summary: dict[str, Any] = event["summary"]
                return summary
            if event["kind"] == "failed":
                event["failure"].raise_again()
            if event["kind"] == "lost":
                echo = event["failure"]
                console.warn(f"{event['failure'].text}; Ray Train starts the workers again")
            else:
                console.show(event)
        if not was_alive:
            raise _ray_failure(config, outcome, echo)
        thread.join(0.5)


def _ray_failure(config: TrainConfig, outcome: dict[str, Any], echo: Failure | None) -> Exception:
    """The error for a run that Ray Train ended without a word from rank 0."""
    if missing := _missing(config):
        return _lacks(config, missing)
    if echo is not None:
        return echo.as_error()
    error = outcome.get("error")
    if error is None:
        return TrainingError("Ray Train ended without a result; look into Ray's session logs")
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    if type(error).__name__ == "ControllerError":
        # Not the training failed, but the start of its workers, again and again.
        needed = ", ".join(f"{amount:g} {name}" for name, amount in _needed(config).items())
        failure: Exception = ClusterError(
            f"Ray could not start the workers ({lines[-1] if lines else 'no reason given'}); they need "
            f"{needed}, which other jobs may hold, or no single node has: look at `ray status`"
        )
    else:
        failure = TrainingError(f"Ray Train gave up: {lines[0] if lines else type(error).__name__}")
    failure.__cause__ = error
    return failure
