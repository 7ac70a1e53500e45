"""The processes that srun started, one a node, as the batch step sees them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from types import TracebackType
from typing import Any

from sequifier_ray.deploy.slurm.plan import READY, STOP, Plan
from sequifier_ray.errors import ClusterError

_END_S = 30.0
_POLL_S = 0.1
# What the batch script's own size would make srun do; each step here is one process on one node.
_FOR_THE_BATCH = ("SLURM_NTASKS", "SLURM_NPROCS", "SLURM_CPUS_PER_TASK", "SLURM_TRES_PER_TASK", "SRUN_")


class NodeProcess:
    """One srun and what it says. ``facts`` are the node's, once it is ready."""

    def __init__(self, name: str, binds_cpus: bool) -> None:
        self.name = name
        self.facts: dict[str, Any] | None = None
        self.was_told = False
        self._srun = subprocess.Popen(
            [
                *("srun", "--overlap", "--nodes=1", "--ntasks=1", f"--nodelist={name}"),
                # All CPUs of the job on this node: its processes share them out among themselves.
                *(["--cpu-bind=none"] if binds_cpus else []),
                *("--unbuffered", "--job-name=sequifier-ray-node"),
                *(sys.executable, "-u", "-m", "sequifier_ray.deploy.slurm.node"),
            ],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=step_environment(os.environ),
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    @property
    def code(self) -> int | None:
        """Exit code; None while it runs."""
        return self._srun.poll()

    def send(self, line: str) -> None:
        """A line to its stdin; nothing if it has ended."""
        assert self._srun.stdin is not None
        with suppress(BrokenPipeError):  # it has ended; its exit code tells
            self._srun.stdin.write(line)
            self._srun.stdin.flush()

    def release(self) -> None:
        """Let it end its part and itself."""
        assert self._srun.stdin is not None
        with suppress(BrokenPipeError):  # it has ended
            self._srun.stdin.close()

    def end(self, deadline_s: float) -> None:
        """Wait for its end; after the deadline srun cancels its step."""
        for act in (self._srun.terminate, self._srun.kill):
            try:
                self._srun.wait(max(0.1, deadline_s - time.monotonic()))
                break
            except subprocess.TimeoutExpired:
                act()
                deadline_s = time.monotonic() + _END_S / 3
        self._reader.join(1.0)

    def _read(self) -> None:
        assert self._srun.stdout is not None
        for line in self._srun.stdout:
            if self.facts is None and line.startswith(READY):
                self.facts = json.loads(line.removeprefix(READY))
            else:
                sys.stdout.write(line)
                sys.stdout.flush()


class Nodes:
    """All nodes of a job; leaving the context ends what runs on them, and nothing else."""

    def __init__(self, names: Sequence[str], binds_cpus: bool) -> None:
        self._names, self._binds_cpus = names, binds_cpus
        self.all: list[NodeProcess] = []

    def __enter__(self) -> Nodes:
        self.all = [NodeProcess(name, self._binds_cpus) for name in self._names]
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        for node in self.all:
            node.release()
        now_s = time.monotonic()
        for node in self.all:
            # One that never came has nothing to clear away.
            node.end(now_s if node.facts is None else now_s + _END_S)

    def wait_until_ready(self, wait_s: float, is_stopped: Callable[[], bool]) -> None:
        """Return once every node runs its process, or a stop is asked for.

        Raises:
            ClusterError: names those that do not.
        """
        deadline_s = time.monotonic() + wait_s
        while missing := [node for node in self.all if node.facts is None]:
            ended = [node for node in missing if node.code is not None]
            if ended:
                self._raise_ended(ended[0])
            if is_stopped():
                return
            if time.monotonic() > deadline_s:
                names = ", ".join(node.name for node in missing)
                raise ClusterError(
                    f"after {wait_s:g} s srun has started nothing on {names} (of {', '.join(self._names)}); "
                    f"see `scontrol show node {missing[0].name}`, or leave it out with "
                    f"`sbatch --exclude={missing[0].name}`"
                )
            time.sleep(_POLL_S)

    def raise_if_ended(self) -> None:
        """Raise ClusterError if a node's process has ended, which now none should."""
        for node in self.all:
            if node.code is not None:
                self._raise_ended(node)

    def send_all(self, plans: Mapping[str, Plan]) -> None:
        """Tell every node its part."""
        for node in self.all:
            node.send(plans[node.name].to_line())

    def request_stop(self) -> None:
        """Ask every node to stop with a checkpoint."""
        for node in self.all:
            node.send(STOP + "\n")

    def newly_ended(self) -> list[NodeProcess]:
        """Nodes whose processes have ended since this was last asked."""
        found = [node for node in self.all if node.code is not None and not node.was_told]
        for node in found:
            node.was_told = True
        return found

    def _raise_ended(self, node: NodeProcess) -> None:
        raise ClusterError(
            f"node {node.name} did not take its part: srun ended there with exit code {node.code}, and said "
            "why above; the project and this Python environment must be there under the same paths on every "
            f"node ({sys.executable})"
        )


def step_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """The environment for srun, without what sizes the batch step."""
    return {name: value for name, value in environment.items() if not name.startswith(_FOR_THE_BATCH)}
