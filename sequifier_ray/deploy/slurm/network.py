"""Addresses that other nodes can reach, and ports that nobody uses."""

from __future__ import annotations

import fcntl
import ipaddress
import socket
import struct
from collections.abc import Sequence

from sequifier_ray.errors import ClusterError

# Between the ports that Ray gives its workers by default (up to 19999) and those that the kernel gives to
# whoever asks for any (from 32768).
LOWEST_PORT, HIGHEST_PORT = 20000, 32000
_PER_JOB = 20
_SIOCGIFADDR = 0x8915
_NOWHERE = "192.0.2.1"  # reserved for documentation: only the route towards it is looked up


def resolve(name: str) -> str:
    """The IPv4 address of a node.

    Raises:
        ClusterError: the name is not known here.
    """
    try:
        return str(socket.getaddrinfo(name, None, socket.AF_INET, socket.SOCK_STREAM)[0][4][0])
    except OSError as error:
        raise ClusterError(
            f"node {socket.gethostname()} cannot find the address of {name} ({error}); Slurm's NodeAddr of "
            "every node must be known on all others"
        ) from error


def address_towards(peer: str) -> str:
    """This node's own address on the way to ``peer``: the one by which ``peer`` can answer."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect((peer, 9))  # sends nothing
        return str(probe.getsockname()[0])


def address_between(name: str, peers: Sequence[tuple[str, str]]) -> str:
    """This node's address for its peers, pairs of name and address as Slurm has them.

    Raises:
        ClusterError: it is a loopback address, and there are peers.
    """
    if not peers:
        try:
            return address_towards(_NOWHERE)
        except OSError:
            return "127.0.0.1"
    peer, reached_by = peers[0]
    number = resolve(reached_by)
    try:
        address = address_towards(number)
    except OSError as error:
        raise ClusterError(f"node {name} has no route to {peer} at {number} ({error})") from error
    if is_loopback(number) or is_loopback(address):
        raise ClusterError(
            f"node {name} sees {peer} at the loopback address {number}, which means another machine on every "
            "node; give each node in slurm.conf or /etc/hosts an address of the network between them"
        )
    return address


def is_loopback(address: str) -> bool:
    """Whether an address leads back to the machine itself."""
    return ipaddress.ip_address(address).is_loopback


def interface_of(address: str) -> str | None:
    """Name of the network interface that has an address; None if none has."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        for _, name in socket.if_nameindex():
            request = struct.pack("256s", name.encode()[:15])
            try:
                answer = fcntl.ioctl(probe.fileno(), _SIOCGIFADDR, request)
            except OSError:
                continue  # an interface without an IPv4 address
            if socket.inet_ntoa(answer[20:24]) == address:
                return name
    return None


def free_ports(job_id: int, count: int) -> list[int]:
    """So many ports in a row that are free on this node, from the job's own place in the range onwards.

    Raises:
        ClusterError: there are none.
    """
    n_places = (HIGHEST_PORT - LOWEST_PORT) // _PER_JOB
    for step in range(n_places):
        first = LOWEST_PORT + (job_id + step) % n_places * _PER_JOB
        ports = list(range(first, first + count))
        if all(map(_is_free, ports)):
            return ports
    raise ClusterError(
        f"node {socket.gethostname()} has no {count} free ports in a row between {LOWEST_PORT} and "
        f"{HIGHEST_PORT}; ask who uses them, with `ss -ltn`"
    )


def _is_free(port: int) -> bool:
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        # What an ended job left in TIME_WAIT is free; a listener is not, whatever its address.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("", port))
        except OSError:
            return False
    return True
