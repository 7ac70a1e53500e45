"""``sequifier-ray kuberay``: manifests for a user's own numbers."""

from __future__ import annotations

from typing import Annotated

import typer

from sequifier_ray.deploy.kuberay.words import MOST_CPUS, MOST_GPUS

app = typer.Typer(help="Manifests for KubeRay.", no_args_is_help=True)


@app.command()
def render(
    image: Annotated[
        str, typer.Option(help="Image with sequifier-ray and its tag (deploy/kuberay/Dockerfile).")
    ],
    gpus_per_worker: Annotated[
        int, typer.Option(min=0, max=MOST_GPUS, help="GPUs of a worker pod; 0: train on CPUs.")
    ],
    config_path: Annotated[
        str, typer.Option(help="Training to size the workers for, seen from the project's folder.")
    ] = "configs/train.yaml",
    cpus_per_worker: Annotated[
        int | None,
        typer.Option(
            min=1, max=MOST_CPUS, help="CPUs of a worker pod; what its processes need if not given."
        ),
    ] = None,
    memory_per_worker: Annotated[
        str | None, typer.Option(help="Memory of a worker pod: 32Gi. By its processes if not given.")
    ] = None,
    name: Annotated[str, typer.Option(help="Of the cluster and the claim; jobs add -train.")] = "sequifier",
    storage: Annotated[str, typer.Option(help="Size of the claim.")] = "100Gi",
    storage_class: Annotated[
        str | None, typer.Option(help="One that gives ReadWriteMany; the cluster's default if not given.")
    ] = None,
    env_from: Annotated[
        list[str] | None,
        typer.Option(help="Secret whose entries all pods get as environment variables; repeatable."),
    ] = None,
    service_account: Annotated[
        str | None, typer.Option(help="Service account of all pods; the namespace's default if not given.")
    ] = None,
    output: Annotated[str, typer.Option(help="Folder to write to.")] = "kuberay",
    verbose: Annotated[bool, typer.Option("--verbose", help="Show the traceback of an error.")] = False,
) -> int:
    """Write a claim, jobs that preprocess and train, and a cluster for work by hand."""
    from importlib.metadata import version

    from sequifier_ray.config.load import load_train
    from sequifier_ray.deploy.kuberay.manifests import manifests
    from sequifier_ray.deploy.kuberay.output import write
    from sequifier_ray.deploy.kuberay.sizes import Wishes, plan

    wishes = Wishes(
        image=image,
        gpus_per_worker=gpus_per_worker,
        cpus_per_worker=cpus_per_worker,
        memory_per_worker=memory_per_worker,
        name=name,
        storage=storage,
        storage_class=storage_class,
        env_from=tuple(env_from or ()),
        service_account=service_account,
    )
    deployment = plan(load_train(config_path), config_path, wishes, version("ray"))
    for path in write(output, manifests(deployment)):
        print(f"wrote {path}")
    print(f"next: kubectl apply -f {output}/claim.yaml -f {output}/raycluster.yaml, and copy the project in")
    return 0
