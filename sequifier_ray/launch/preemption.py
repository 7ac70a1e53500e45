"""Ray's notice that it will take a node away, heard beside the training."""

from __future__ import annotations

import threading
from collections.abc import Callable

import ray
from ray.train import get_preemption_info

_LOOK_INTERVAL_S = 2.0


class PreemptionNotice:
    """Listens on a rank until a node of the run is about to go.

    Ray answers all ranks together, so every rank asks in a thread of its own, whatever its training does.
    ``tell`` takes the notice as a line, from the thread that asks for it.
    """

    def __init__(self, tell: Callable[[str], None]) -> None:
        self._tell = tell
        self._line: str | None = None
        self._is_told = False
        threading.Thread(target=self._listen, daemon=True, name="preemption-notice").start()

    def came(self) -> bool:
        """Whether a node of the run is about to go."""
        if self._line is not None and not self._is_told:
            self._tell(self._line)
            self._is_told = True
        return self._line is not None

    def came_just_now(self) -> bool:
        """The same, but true only once."""
        return not self._is_told and self.came()

    def _listen(self) -> None:
        pause = threading.Event()
        while not pause.wait(_LOOK_INTERVAL_S):
            try:
                info = get_preemption_info()
            except ray.exceptions.RayError:
                return  # the run is over, or its ranks are started again
            if info is not None:
                ranks = " and ".join(map(str, info.preempted_ranks))
                self._line = f"Ray is about to take the node of rank {ranks} away: saving at the next update"
                return
