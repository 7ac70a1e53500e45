"""When checkpoints within an epoch are due."""

from __future__ import annotations

import time

from sequifier_ray.config.train import GlobalTraining


class SaveClock:
    """``save_interval_batches`` in updates, the two minute intervals by rank 0's clock."""

    def __init__(self, settings: GlobalTraining) -> None:
        self._every_updates = settings.save_interval_batches
        minutes = [settings.save_interval_minutes, settings.save_latest_interval_minutes]
        given = [60.0 * m for m in minutes if m is not None]
        self._every_s = min(given) if given else None
        self._last_s = time.monotonic()

    def is_due(self, update: int) -> bool:
        """Whether a checkpoint should follow this update."""
        if self._every_updates is not None and update % self._every_updates == 0:
            return True
        return self._every_s is not None and time.monotonic() - self._last_s >= self._every_s

    def saved(self) -> None:
        self._last_s = time.monotonic()
