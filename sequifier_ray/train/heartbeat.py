"""Every rank says now and then that it lives and what it does, so that one that falls silent can be named.

The words go through the process group's store, in a thread: a process that is stopped stops speaking, one
that waits in a collective does not. They are read only once a collective has waited too long.
"""

from __future__ import annotations

import json
import socket
import threading
import time
from dataclasses import dataclass
from datetime import timedelta
from types import TracebackType
from typing import Any

import torch.distributed as dist

# Slow enough to cost nothing, quick enough to be told apart from silence within seconds.
INTERVAL_S = 1.0
# How long a silence is listened to before it counts as one.
SILENCE_S = 4.0
STORE_TIMEOUT = timedelta(seconds=5)


@dataclass(frozen=True)
class Silent:
    """A rank that does not speak, and what it said last; `host` None: nothing is known of it."""

    rank: int
    host: str | None
    update: int
    phase: str

    def __str__(self) -> str:
        if self.host is None:
            return f"rank {self.rank} (which cannot even be asked what it does)"
        return f"rank {self.rank} on node {self.host} (last heard of at update {self.update}, {self.phase})"


class Heartbeat:
    """One rank's voice and ears; use as a context manager. A world of one is silent."""

    def __init__(self, rank: int, world_size: int) -> None:
        self._rank = rank
        self._world_size = world_size
        self._store: Any = None if world_size == 1 else _own_connection()
        self._now: tuple[str, int] = ("starting", 0)
        self._closed = threading.Event()
        self._n_beats = 0
        self._thread = threading.Thread(target=self._speak, name="heartbeat", daemon=True)

    def __enter__(self) -> Heartbeat:
        if self._store is not None:
            self._thread.start()
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._closed.set()

    def note(self, phase: str, update: int) -> None:
        """What this rank does from now on."""
        self._now = (phase, update)

    def silent_ranks(self) -> list[Silent]:
        """Listen for a few seconds: the ranks that say nothing new meanwhile."""
        found: list[Silent] = []
        # Where rank 0 hangs, which holds the store, the very asking may never return.
        thread = threading.Thread(target=self._listen, args=(found,), daemon=True)
        thread.start()
        thread.join(2 * SILENCE_S)
        return [Silent(0, None, 0, "")] if thread.is_alive() else found

    def _listen(self, silent: list[Silent]) -> None:
        before = [self._hear(rank) for rank in range(self._world_size)]
        time.sleep(SILENCE_S)
        for rank, earlier in enumerate(before):
            if rank != self._rank and self._hear(rank) == earlier:
                words = earlier or {}
                host, update, phase = words.get("host"), words.get("update", 0), words.get("phase", "")
                silent.append(Silent(rank, host, update, phase))

    def _speak(self) -> None:
        while not self._closed.is_set():
            phase, update = self._now
            self._n_beats += 1
            words = {"host": socket.gethostname(), "phase": phase, "update": update, "beat": self._n_beats}
            try:
                self._store.set(_key(self._rank), json.dumps(words))
            except (RuntimeError, OSError):
                return  # the store went with rank 0; the collectives tell
            self._closed.wait(INTERVAL_S)

    def _hear(self, rank: int) -> dict[str, Any] | None:
        try:
            if not self._store.check([_key(rank)]):
                return None
            words: dict[str, Any] = json.loads(self._store.get(_key(rank)))
        except (RuntimeError, OSError):
            return None
        return words


def _key(rank: int) -> str:
    return f"heartbeat/{rank}"


def _own_connection() -> Any:
    """The store of the process group, over a connection that waits for nobody else's requests."""
    kinds: Any = dist  # the stubs lack these names
    store: Any = kinds.distributed_c10d._get_default_store()
    while isinstance(store, kinds.PrefixStore):
        store = store.underlying_store
    if isinstance(store, kinds.TCPStore):
        store = store.clone()
        store.set_timeout(STORE_TIMEOUT)
    return store
