"""A connection to Ray: to a cluster, or to a local instance that ends with the run."""

from __future__ import annotations

import os
import socket
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from sequifier_ray.errors import ClusterError

# Ray's sockets lie below the temporary folder, and the path of a socket has 107 bytes at most.
_LONG_TMP = 30
# How long a head node may take to answer.
_REACH_S = 10.0


@contextmanager
def connected(
    address: str | None, n_cpus: int, field: str, tell: Callable[[str], None], **options: Any
) -> Iterator[bool]:
    """A connection to Ray at `address`, or to an instance of its own with `n_cpus` where it is None; yields
    whether nodes may still join. Ends what it started and nothing else.

    Raises:
        ClusterError: the cluster cannot be reached; names `field`, which else could say where it is.
    """
    if address is None:
        # A token protects the local instance; asking for it by name avoids Ray's notice about it.
        os.environ.setdefault("RAY_AUTH_MODE", "token")
    import ray

    if ray.is_initialized():
        yield True
        return
    if address is not None:
        _check_reachable(address, field)
    common: dict[str, Any] = {"log_to_driver": False, "logging_level": "ERROR", **options}
    try:
        if address is None:
            tell("starting a local Ray instance")
            if "RAY_TMPDIR" not in os.environ and len(tempfile.gettempdir()) > _LONG_TMP:
                common["_temp_dir"] = "/tmp/ray"
            ray.init(address="local", num_cpus=n_cpus, include_dashboard=False, **common)
        else:
            ray.init(address=address, **common)
    except (ConnectionError, RuntimeError, ValueError, ray.exceptions.RayError) as error:
        raise ClusterError(
            f"cannot connect to Ray at {address or 'a local instance'} "
            f"({str(error).strip().splitlines()[0]}); check --address, "
            f"{field} and RAY_ADDRESS, and RAY_AUTH_MODE if the cluster wants a token"
        ) from error
    try:
        yield address is not None
    finally:
        ray.shutdown()


def _check_reachable(address: str, field: str) -> None:
    """Raise ClusterError if nothing listens at ``host:port``: Ray itself tries for minutes."""
    host, separator, port = address.removeprefix("ray://").rpartition(":")
    if not separator or not port.isdecimal():
        return  # "auto" and other names are Ray's to resolve
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=_REACH_S).close()
    except OSError as error:
        raise ClusterError(
            f"cannot connect to Ray at {address} ({error}); check --address, {field} and RAY_ADDRESS, "
            "and that the head node runs"
        ) from error
