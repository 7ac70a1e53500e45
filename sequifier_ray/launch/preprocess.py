"""Where a preprocess run works: in this process, or on a Ray cluster."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TYPE_CHECKING

from sequifier_ray import storage
from sequifier_ray.config.preprocess import PreprocessConfig
from sequifier_ray.errors import ConfigError

if TYPE_CHECKING:
    from sequifier_ray.preprocess.pipeline import PreprocessSummary

ENGINES = ("auto", "local", "ray")


def choose_engine(engine: str, address: str | None) -> tuple[str, str | None]:
    """The engine to use and the cluster's address; `auto`: ray where an address is given or `RAY_ADDRESS` is
    set.

    Raises ConfigError for an unknown engine, or an address that it would not use.
    """
    if engine not in ENGINES:
        raise ConfigError(f'--engine: "{engine}" is none of {", ".join(ENGINES)}')
    if engine == "local" and address is not None:
        raise ConfigError(f"--address: {address} has no use with --engine local; leave one of the two out")
    address = address or os.environ.get("RAY_ADDRESS") or None
    if engine == "auto":
        engine = "ray" if address is not None else "local"
    return engine, address if engine == "ray" else None


def preprocess(
    config: PreprocessConfig,
    report: Callable[[str], None],
    engine: str,
    address: str | None,
    scratch: str | None = None,
) -> PreprocessSummary:
    """Run `preprocess` on the engine that was asked for; see `preprocess.pipeline.preprocess`. Results for an
    object store are made in the folder ``scratch`` first; without one on this machine alone.

    Raises:
        ClusterError: the cluster cannot be reached.
        ConfigError: ``scratch`` is no folder, or project_root is no object store.
    """
    chosen, address = choose_engine(engine, address)
    if scratch is not None:
        _check_scratch(scratch, config.project_root)
    if storage.is_local(config.project_root):
        return _run(config, report, chosen, address)
    from sequifier_ray.preprocess.upload import preprocess_to_store

    if chosen == "ray" and scratch is None:
        report(
            f"warning: project_root {config.project_root} is an object store, where workers cannot share "
            "files: the local engine is used instead of --engine ray; name a folder that all nodes share "
            "with --scratch to use ray"
        )
        chosen, address = "local", None
    return preprocess_to_store(config, report, lambda there: _run(there, report, chosen, address), scratch)


def _check_scratch(scratch: str, root: str) -> None:
    if storage.is_local(root):
        raise ConfigError(
            f"--scratch: {scratch} has no use, since results go straight to project_root ({root}); "
            "leave it out"
        )
    if not storage.is_local(scratch) or not os.path.isdir(scratch):
        raise ConfigError(
            f'--scratch: found "{scratch}", which is no folder; name one that exists and all nodes share'
        )


def _run(
    config: PreprocessConfig, report: Callable[[str], None], engine: str, address: str | None
) -> PreprocessSummary:
    from sequifier_ray.preprocess import pipeline

    if engine == "local":
        return pipeline.preprocess(config, report)
    from sequifier_ray.launch.ray_cluster import connected
    from sequifier_ray.launch.ray_preprocess import RayEngine

    n_cpus = min(config.n_cores or 10**9, os.cpu_count() or 1)
    # One task a CPU: polars must not take all of them in each.
    variables = {"env_vars": {"POLARS_MAX_THREADS": "1"}}
    with connected(address, n_cpus, "--address", report, runtime_env=variables):
        return pipeline.preprocess(config, report, RayEngine())
