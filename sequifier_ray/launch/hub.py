"""The small channel between a Ray run's ranks and its driver."""

from __future__ import annotations

import time
from typing import Any

Event = dict[str, Any]


class Hub:
    """An actor without a CPU of its own: events go in from the ranks, the stop request comes back."""

    def __init__(self) -> None:
        self._events: list[Event] = []
        self._n_given_up = 0
        self._stop = False
        self._n_starts = 0
        self._has_failed = False

    def enter(self) -> tuple[int, bool]:
        """Rank 0 is here: how often the workers were started before, and whether the run has failed."""
        self._n_starts += 1
        return self._n_starts - 1, self._has_failed

    def put(self, events: list[Event]) -> bool:
        """Take events; answers whether the run should stop."""
        self._has_failed = self._has_failed or any(event["kind"] == "failed" for event in events)
        self._events.extend(events)
        return self._stop

    def take(self, n_known: int) -> list[Event]:
        """All events but the first ``n_known``, which the driver has: an answer that is lost can be asked for
        again."""
        self._events = self._events[n_known - self._n_given_up :]
        self._n_given_up = n_known
        return list(self._events)

    def request_stop(self) -> None:
        """Ask the run to save and end."""
        self._stop = True


class HubLink:
    """Rank 0's end: sends what it has every ``interval_s``, never waits for an answer."""

    def __init__(self, hub: Any, wait: Any, clock: Any, interval_s: float = 0.5) -> None:
        self._hub = hub
        self._wait = wait
        self._clock = clock
        self._interval_s = interval_s
        self._events: list[Event] = []
        self._reply: Any = None
        self._sent_s = float("-inf")
        self._stop = False

    def report(self, event: Event) -> None:
        """Keep an event for the next parcel; of progress only the newest counts."""
        if event["kind"] == "progress":
            self._events = [e for e in self._events if e["kind"] != "progress"]
        self._events.append(event)
        self._exchange()

    def stop_requested(self) -> bool:
        """Whether the hub's latest answer asked to stop."""
        self._exchange()
        return self._stop

    def _exchange(self) -> None:
        now_s = self._clock()
        if now_s - self._sent_s < self._interval_s:
            return
        if self._reply is not None:
            ready, _ = self._wait([self._reply], timeout=0)
            if not ready:
                return
            self._stop = self._answer(self._reply) or self._stop
        self._reply = self._hub.put.remote(self._events)
        self._events = []
        self._sent_s = now_s

    def _answer(self, reply: Any) -> bool:
        """What the hub said; a hub that cannot be reached just now says nothing, and the run goes on."""
        import ray

        try:
            return bool(ray.get(reply))
        except ray.exceptions.ActorUnavailableError:
            return False

    def flush(self, *events: Event) -> None:
        """Send everything and wait until the hub has it."""
        import ray

        parcel = [*self._events, *events]
        while True:
            try:
                ray.get(self._hub.put.remote(parcel))
            except ray.exceptions.ActorUnavailableError:
                time.sleep(self._interval_s)  # unlike one that is dead it may answer again
                continue
            self._events = []
            return
