"""The ``ray:`` section of train.yaml: where workers come from and what becomes of lost ones."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, field_validator

from sequifier_ray.config.base import INTEGER_BOUND, Count, NonNegative, Problem, Section, Text, require
from sequifier_ray.config.resources import SMALLEST_AMOUNT


class RayConfig(Section):
    """How the ray launcher starts workers; without effect on the other launchers."""

    address: Text | None = Field(
        default=None,
        description="Cluster to use: `auto`, `ray://host:port`, or null for RAY_ADDRESS, else a "
        "local instance "
        "that ends with the run.",
    )
    resources_per_worker: dict[Text, NonNegative] = Field(
        default_factory=dict,
        description="Ray resources of one worker by name, on top of `{CPU: 1}` or, with `device: cuda`, "
        "`{CPU: 1, GPU: 1}`: 0, or at least 0.0001; GPU up to 1, or a whole number. `memory` is in bytes.",
    )

    @field_validator("resources_per_worker")
    @classmethod
    def _as_ray_takes_them(cls, value: dict[str, float]) -> dict[str, float]:
        """Ray itself would say so once the cluster is held."""
        problems = [
            Problem(name, f"found {amount:g}; allowed: 0, or at least {SMALLEST_AMOUNT:g}")
            for name, amount in value.items()
            if 0 < amount < SMALLEST_AMOUNT
        ]
        gpus = value.get("GPU", 0)
        if gpus > 1 and gpus % 1:
            problems.append(Problem("GPU", f"found {gpus:g}; allowed: up to 1, or a whole number"))
        require(problems)
        return value

    placement_strategy: Literal["PACK", "SPREAD", "STRICT_PACK", "STRICT_SPREAD"] = Field(
        default="PACK", description="How Ray places workers on nodes."
    )
    min_world_size: Count | None = Field(
        default=None,
        description="Fewest workers an elastic run goes on with, up to `world_size`; null: not elastic.",
    )
    max_failures: int = Field(
        default=3,
        strict=True,
        ge=-1,
        lt=INTEGER_BOUND,
        description="Worker-group failures a run survives; -1: any number.",
    )
    resource_timeout_s: NonNegative = Field(
        default=600.0, description="Seconds to wait for resources that the cluster lacks before giving up."
    )
    storage_path: Text | None = Field(
        default=None,
        description="Shared folder or `s3://…` for Ray's own files; null: `logs/<model_name>` in "
        "the project.",
    )
