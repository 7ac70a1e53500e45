"""One process, no Ray: this one."""

from __future__ import annotations

import time
from typing import Any

from sequifier_ray.config.train import TrainConfig
from sequifier_ray.launch.console import Console
from sequifier_ray.launch.context import device_for
from sequifier_ray.launch.ledger import keep_ledger, ledger_folder
from sequifier_ray.launch.signals import StopSignals
from sequifier_ray.train import engine
from sequifier_ray.train.worker import WorkerContext


def run(config: TrainConfig, console: Console) -> dict[str, Any]:
    """Train in this process; returns the summary. An update still takes as many samples as configured."""
    launched_at_s = time.time()
    if config.global_training.world_size > 1:
        console.line(
            f"local launcher: 1 process instead of world_size {config.global_training.world_size}; an "
            "update takes the same "
            "samples, in more micro-batches"
        )
    with StopSignals() as signals:
        context = WorkerContext(
            device=device_for(config, 0),
            launcher="local",
            launched_at_s=launched_at_s,
            report=console.show,
            stop_requested=signals.is_requested,
            applied=keep_ledger(0, ledger_folder()),
        )
        return signals.mark(engine.run(config, context))
