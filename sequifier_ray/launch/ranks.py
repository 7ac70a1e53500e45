"""What torchrun's variables say of this process; with ``context.py`` the only reader of RANK and its like."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from typing import NoReturn

from sequifier_ray.errors import ConfigError, SequifierRayError


def under_torchrun(environment: Mapping[str, str] = os.environ) -> bool:
    """Whether a torchrun-like launcher started this process."""
    return "RANK" in environment and "WORLD_SIZE" in environment


def has_torchrun_variables(environment: Mapping[str, str] = os.environ) -> bool:
    """Whether RANK or WORLD_SIZE is there: one without the other is a mistake to tell, not to pass over."""
    return "RANK" in environment or "WORLD_SIZE" in environment


def is_lead(environment: Mapping[str, str] = os.environ) -> bool:
    """Whether this is rank 0, or the only process."""
    return not under_torchrun(environment) or environment["RANK"] == "0"


def leave(code: int) -> NoReturn:
    """End this process without the interpreter's shutdown, and without taking the process group apart.

    A gloo thread that drops its last tensor while either happens aborts the process or waits for ever
    (torch 2.13), and a run that ended well would count as failed. Everything is written by then; closed
    connections tell the other ranks of a failure at once.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def should_tell(error: SequifierRayError, environment: Mapping[str, str] = os.environ) -> bool:
    """Whether this process prints an error, so that several do not say the same.

    What all ranks raise alike is rank 0's to tell; a mistake in the configuration is told by the first
    process of each node.
    """
    if error.everywhere:
        return is_lead(environment)
    if isinstance(error, ConfigError) and under_torchrun(environment):
        return environment.get("LOCAL_RANK", "0") == "0"
    return True
