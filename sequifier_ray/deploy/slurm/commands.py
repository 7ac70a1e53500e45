"""``sequifier-ray slurm``: ``render`` prints a batch script, ``run`` is what batch scripts call."""

from __future__ import annotations

import math
import os
import sys
from typing import Annotated

import typer

from sequifier_ray.errors import ConfigError

DEFAULT_CONFIG = "configs/train.yaml"
_LONGEST_WAIT_S = 86_400

app = typer.Typer(help="Train in a Slurm job.", no_args_is_help=True, rich_markup_mode=None)
Launcher = Annotated[str, typer.Option(help="How processes start: ray or torchrun.")]


@app.command()
def render(
    nodes: Annotated[int, typer.Option(help="Nodes of the job.")] = 2,
    gpus_per_node: Annotated[int, typer.Option(help="GPUs on each node.")] = 0,
    time: Annotated[str, typer.Option(help="Time limit, as sbatch takes it.")] = "24:00:00",
    launcher: Launcher = "ray",
    cpus_per_node: Annotated[
        int | None, typer.Option(help="CPUs on each node; not given: 8 a GPU, else 1 a process.")
    ] = None,
    mem: Annotated[
        str | None, typer.Option(help="Memory on each node, as in 64G; not given: Slurm's default.")
    ] = None,
    partition: Annotated[str | None, typer.Option(help="Partition to run in.")] = None,
    account: Annotated[str | None, typer.Option(help="Account that pays.")] = None,
    config_path: Annotated[
        str | None,
        typer.Option(help=f"Configuration to hold the numbers against; {DEFAULT_CONFIG} if there is one."),
    ] = None,
    verbose: Annotated[bool, typer.Option("--verbose", help="Show the traceback of an error.")] = False,
) -> int:
    """Print a batch script for these numbers, ready for sbatch."""
    from sequifier_ray.config.load import load_train
    from sequifier_ray.deploy.slurm.render import Wishes
    from sequifier_ray.deploy.slurm.render import render as script

    config = None
    if config_path is None and not os.path.exists(DEFAULT_CONFIG):
        print(f"note: there is no {DEFAULT_CONFIG} here, so world_size is not checked", file=sys.stderr)
    else:
        config = load_train(config_path or DEFAULT_CONFIG)
    wishes = Wishes(
        launcher=launcher,
        nodes=nodes,
        gpus=gpus_per_node,
        time=time,
        cpus=cpus_per_node,
        memory=mem,
        partition=partition,
        account=account,
        config_path=config_path,
    )
    print(script(wishes, config, lambda text: print(f"warning: {text}", file=sys.stderr)), end="")
    return 0


@app.command(context_settings={"allow_extra_args": True, "ignore_unknown_options": True})
def run(
    context: typer.Context,
    launcher: Launcher = "ray",
    wait: Annotated[
        float, typer.Option(min=1, max=_LONGEST_WAIT_S, help="Seconds that nodes may take to come together.")
    ] = 300.0,
    max_requeues: Annotated[
        int, typer.Option(min=0, help="How often the job may put itself back in the queue.")
    ] = 100,
) -> int:
    """Inside a job: run `[train|preprocess] [CONFIG] [OPTION...]` on all its nodes."""
    from sequifier_ray.deploy.slurm import job

    if math.isnan(wait):  # which is in any range
        raise ConfigError(f"--wait: found nan; allowed: from 1 to {_LONGEST_WAIT_S}")
    program = context.find_root().command
    return job.run(launcher, context.args, job.Limits(wait, max_requeues), program)
