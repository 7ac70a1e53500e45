"""Waits for named nodes of a Ray cluster; ``main`` is for ``python -m``, with ADDRESS SECONDS NAME..."""

from __future__ import annotations

import socket
import sys
import time
from collections.abc import Sequence

from sequifier_ray.errors import ClusterError

_POLL_S = 0.3
_REQUEST_S = 5.0


def missing_nodes(address: str, names: Sequence[str], timeout_s: float) -> list[str]:
    """Those of the names whose nodes are not alive in the cluster at ``address`` after ``timeout_s``."""
    from ray._raylet import GcsClient  # type: ignore[attr-defined]
    from ray.exceptions import RayError

    host, _, port = address.rpartition(":")
    deadline_s = time.monotonic() + timeout_s
    missing = list(names)
    client = None
    while True:
        try:
            # A client itself waits for half a minute where nobody answers.
            socket.create_connection((host, int(port)), timeout=_REQUEST_S).close()
            client = client or GcsClient(address=address)
            nodes = client.get_all_node_info(timeout=_REQUEST_S).values()
            alive = {node.node_name for node in nodes if node.state == 0}
            missing = [name for name in names if name not in alive]
        except (RayError, RuntimeError, OSError):
            client = None  # the head is not there yet
        if not missing or time.monotonic() > deadline_s:
            return missing
        time.sleep(_POLL_S)


def main(words: Sequence[str]) -> int:
    """Exit code 0 once all are there, 4 if some are not in time; these are named on stderr."""
    address, timeout_s, *names = words
    missing = missing_nodes(address, names, float(timeout_s))
    if missing:
        text = f"not in the Ray cluster at {address} after {float(timeout_s):g} s: {', '.join(missing)}"
        sys.stderr.write(f"error: {text} (of {', '.join(names)})\n")
        return ClusterError.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
