"""Training stands still only while its state is copied, and no rank ever holds the whole model."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

SCRIPT = """
import json, resource, sys, time
from pathlib import Path
import torch, torch.distributed as dist, torch.multiprocessing as mp
from dataclasses import replace

def work(rank, folder):
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=2)
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard
    from sequifier_ray.train.checkpoint import StepFolders
    from sequifier_ray.train.parallel import ShardedParallel
    from sequifier_ray.train.saver import Saver
    from sequifier_ray.train.state import OrderKey, TrainState

    # 25 layers of 2000 x 2000: 100 million parameters, 1.2 GB with Adam's two moments, half of it a rank
    model = torch.nn.Sequential(*[torch.nn.Linear(2000, 2000, bias=False) for _ in range(25)])
    mesh = init_device_mesh("cpu", (2,))
    for layer in model:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.ones(1, 2000)).sum().backward()
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    strategy = ShardedParallel(torch.device("cpu"), rank, 2)
    state = TrainState(OrderKey(1, 10, 8, "shuffled", "f"), 1, run_id="r", run_started_s=1.0)
    saver = Saver(StepFolders(f"{folder}/steps", 2), strategy, print)
    saver.start(replace(state, update=1), model, optimizer)
    saver.wait()
    resident = lambda: int(Path("/proc/self/statm").read_text().split()[1]) * 4096
    before, highest = resident(), 0
    figures = []
    for update in (2, 3, 4):
        dist.barrier()
        started = time.perf_counter()
        saver.start(replace(state, update=update), model, optimizer)
        still = time.perf_counter() - started
        while saver._thread.is_alive():
            highest = max(highest, resident())
            time.sleep(0.01)
        saver.wait()
        figures.append((still, time.perf_counter() - started))
    sharded = 3 * 4 * sum(p.to_local().numel() for p in model.parameters())
    found = {"still_s": min(f[0] for f in figures), "whole_s": min(f[1] for f in figures),
             "before_bytes": before, "highest_bytes": highest, "sharded_bytes": sharded}
    Path(f"{folder}/rank-{rank}.json").write_text(json.dumps(found))
    dist.barrier()
    import os
    os._exit(0)

if __name__ == "__main__":
    mp.get_context("spawn")
    mp.spawn(work, args=(sys.argv[1],), nprocs=2)
"""


def test_a_save_of_100_million_parameters(tmp_path: Path) -> None:
    """Printed for the record: seconds of standing still and of the whole save, bytes of a rank."""
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    subprocess.run([sys.executable, str(script), str(tmp_path)], check=True, timeout=500)
    for rank in (0, 1):
        found = json.loads((tmp_path / f"rank-{rank}.json").read_text())
        print(found)
        assert found["still_s"] <= 0.25 * found["whole_s"]
        # The rank's own shards (weights and both moments) once more, and a constant for buffers.
        assert found["highest_bytes"] - found["before_bytes"] <= 1.2 * found["sharded_bytes"] + 100e6
