"""What srun starts on every node of a job: it takes a plan from stdin, runs its part, and ends it when stdin
ends. So nothing outlives the batch step, and nobody has to look for processes by name."""

from __future__ import annotations

import ctypes
import json
import os
import queue
import signal
import subprocess
import sys
import threading
from pathlib import Path
from types import FrameType

from sequifier_ray.deploy.slurm.plan import (
    READY,
    STOP,
    Plan,
    job_folder,
    make_job_folder,
    remove_job_folder,
)
from sequifier_ray.deploy.slurm.ray_node import RayNode, gpus_here
from sequifier_ray.deploy.slurm.signals import children_of
from sequifier_ray.deploy.slurm.torchrun_node import TorchrunNode
from sequifier_ray.errors import SequifierRayError

_GRACE_S = 15.0
_POLL_S = 0.3
_PR_SET_CHILD_SUBREAPER = 36


def main() -> int:
    """Run this node's part; the exit code is that of its part, 0 when it was told to end."""
    _adopt_orphans()
    # The batch step passes requests to stop on by stdin, at a time when they can be heard.
    signal.signal(signal.SIGUSR1, signal.SIG_IGN)
    lines: queue.Queue[str | None] = queue.Queue()

    def leave(number: int, frame: FrameType | None) -> None:
        lines.put(None)

    signal.signal(signal.SIGTERM, leave)
    name = os.environ["SLURMD_NODENAME"]
    print(READY + json.dumps({"gpus": gpus_here(), "cpus": len(os.sched_getaffinity(0))}), flush=True)
    threading.Thread(target=_listen, args=(lines,), daemon=True).start()
    line = lines.get()
    if line is None:
        return 0
    plan = Plan.from_line(line)
    folder = job_folder(plan.job_id, plan.place)
    try:
        make_job_folder(folder)
        return _work(plan, folder, name, lines)
    except SequifierRayError as error:
        print(f"error: {name}: {error}", file=sys.stderr, flush=True)
        return error.exit_code
    finally:
        remove_job_folder(folder)


def _listen(lines: queue.Queue[str | None]) -> None:
    for line in sys.stdin:
        lines.put(line)
    lines.put(None)


def _work(plan: Plan, folder: Path, name: str, lines: queue.Queue[str | None]) -> int:
    part = RayNode(plan, folder, name) if plan.launcher == "ray" else TorchrunNode(plan, folder)
    child = part.start()
    try:
        while True:
            part.watch()
            try:
                line = lines.get(timeout=_POLL_S)
            except queue.Empty:
                line = ""
            if line is None:
                return 0
            if line.strip() == STOP:
                part.stop()
            if child.poll() is not None:
                return part.exit_code(child.returncode)
    finally:
        _end(child)
        _end_orphans()


def _adopt_orphans() -> None:
    """Become the parent of whatever loses its own below this process, so that it can be ended by its id."""
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def _end_orphans() -> None:
    """End what the part has left behind: workers of Ray outlive their raylet for some seconds."""
    while orphans := children_of(os.getpid()):
        for pid in orphans:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)


def _end(child: subprocess.Popen[bytes]) -> None:
    if child.poll() is None:
        child.terminate()
        try:
            child.wait(_GRACE_S)
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait()


if __name__ == "__main__":
    sys.exit(main())
